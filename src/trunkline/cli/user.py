"""`trunkline user`: who may log in.

On a running broker, over its management, as an administrator; with `--data` in the directory of a broker that does not run,
which is how the first user is made.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar, cast

import click

from trunkline.cli.amqp_options import amqp_address, listed
from trunkline.cli.errors import CommandError
from trunkline.cli.login_options import NAMES, first_line, login_options
from trunkline.cli.options import json_option, settings_of
from trunkline.cli.output import Json, print_json, print_table, remark

if TYPE_CHECKING:
    from trunkline.broker.core import BrokerCore
    from trunkline.client.amqp import AmqpClient
    from trunkline.config import Config

P = ParamSpec("P")
T = TypeVar("T")
NEW_PASSWORD_VARIABLE = "TRUNKLINE_NEW_PASSWORD"


class Users(Protocol):
    """A broker's users, as these commands see them."""

    def all(self) -> list[dict[str, object]]: ...

    def put(self, name: str, password: str, tags: Sequence[str] | None) -> None:
        """`tags` None: as they are."""

    def permit(self, name: str, vhost: str) -> None: ...

    def delete(self, name: str) -> None: ...


class _Running:
    def __init__(self, client: AmqpClient) -> None:
        self._client = client

    def all(self) -> list[dict[str, object]]:
        return listed(self._client.manage("users"))

    def put(self, name: str, password: str, tags: Sequence[str] | None) -> None:
        said = {} if tags is None else {"tags": list(tags)}
        self._client.manage("put_user", name=name, password=password, **said)

    def permit(self, name: str, vhost: str) -> None:
        self._client.manage("put_permission", user=name, vhost=vhost)

    def delete(self, name: str) -> None:
        self._client.manage("delete_user", name=name)


class _AtRest:
    def __init__(self, config: Config) -> None:
        self._config = config

    def all(self) -> list[dict[str, object]]:
        async def work(core: BrokerCore) -> list[dict[str, object]]:
            return core.administration.users()

        return self._do(work)

    def put(self, name: str, password: str, tags: Sequence[str] | None) -> None:
        self._do(lambda core: core.administration.put_user(name, password, tags))

    def permit(self, name: str, vhost: str) -> None:
        everything = ".*"
        self._do(
            lambda core: core.administration.put_permission(
                name, vhost, configure=everything, write=everything, read=everything
            )
        )

    def delete(self, name: str) -> None:
        self._do(lambda core: core.administration.delete_user(name))

    def _do(self, work: Callable[[BrokerCore], Coroutine[object, object, T]]) -> T:
        from trunkline.app import at_rest
        from trunkline.broker.messaging.refusals import Refused
        from trunkline.log.errors import DataDirectoryInUse

        async def run() -> T:
            async with at_rest(self._config) as core:
                return await work(core)

        try:
            return asyncio.run(run())
        except Refused as refused:
            raise CommandError(refused.text) from None
        except DataDirectoryInUse as error:
            raise CommandError(
                str(error), "ask that broker: leave out --data, and log in as an administrator"
            ) from None


def users_options(function: Callable[Concatenate[Users, P], None]) -> Callable[..., None]:
    """Adds `--data`, `--url` and who asks; the command gets the users that these lead to."""

    @click.option("--data", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Directory of a broker that does not run.")  # fmt: skip
    @click.option("--url", metavar="amqp://HOST:PORT", help="Broker to talk to.  [default: guest on 127.0.0.1:5672, or as configured]")  # fmt: skip
    @login_options
    @click.pass_context
    @functools.wraps(function)
    def command(ctx: click.Context, /, data: Path | None, url: str | None, *args: P.args, **kwargs: P.kwargs) -> None:
        who = {name: kwargs.pop(name) for name in NAMES}
        if data is not None:
            function(_AtRest(replace(settings_of(ctx), data=data)), *args, **kwargs)
            return
        from trunkline.client.amqp import AmqpClient

        with AmqpClient(amqp_address(ctx, url, who)) as client:
            function(_Running(client), *args, **kwargs)

    return command


def new_password_option(function: Callable[P, None]) -> Callable[P, None]:
    return click.option("--new-password-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=f"File whose first line is the user's password.  [default: ${NEW_PASSWORD_VARIABLE}, or what is typed]")(function)  # fmt: skip


def _new_password(path: Path | None, name: str) -> str:
    if path is not None:
        password = first_line(path)
    elif NEW_PASSWORD_VARIABLE in os.environ:
        password = os.environ[NEW_PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        password = click.prompt(f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandError(
            "the password is empty", f"give it in a file, in {NEW_PASSWORD_VARIABLE} or as a line of input"
        )
    return password


@click.group
def user() -> None:
    """Add, list and delete users, and set their passwords."""


@user.command("add")
@click.argument("name")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="administrator, management or monitoring; may be repeated.")  # fmt: skip
@click.option("--vhost", "vhosts", multiple=True, default=("/",), metavar="NAME", help="Virtual host in which the user may do everything; may be repeated; none for none.  [default: /]")  # fmt: skip
@new_password_option
@users_options
def add(
    users: Users, name: str, tags: tuple[str, ...], vhosts: tuple[str, ...], new_password_file: Path | None
) -> None:
    """Add a user. The password is asked for, or read from a file.

    \b
    trunkline user add admin --tag administrator --data /var/lib/trunkline    before the first start
    trunkline user add alice --user admin                                     on a running broker
    """
    if any(each["name"] == name for each in users.all()):
        raise CommandError(f"there is a user {name} already", f"`trunkline user password {name}` sets another password")
    users.put(name, _new_password(new_password_file, name), tags)
    for vhost in vhosts:
        if vhost != "none":
            users.permit(name, vhost)
    remark(f"added user {name}")


@user.command("list")
@json_option
@users_options
def list_users(users: Users, as_json: bool) -> None:
    """List users and their tags.

    \b
    trunkline user list --user admin
    """
    found = users.all()
    if as_json:
        print_json(cast(Json, found))
        return
    print_table(["user", "tags"], [[str(each["name"]), ", ".join(map(str, cast("list[str]", each["tags"])))] for each in found])  # fmt: skip


@user.command("password")
@click.argument("name")
@new_password_option
@users_options
def password(users: Users, name: str, new_password_file: Path | None) -> None:
    """Set a user's password. Its old one is no longer good; connections that are up stay.

    \b
    trunkline user password alice --user admin
    """
    if not any(each["name"] == name for each in users.all()):
        raise CommandError(f"there is no user {name}", f"`trunkline user add {name}` makes it")
    users.put(name, _new_password(new_password_file, name), None)
    remark(f"set the password of {name}")


@user.command("delete")
@click.argument("name")
@users_options
def delete(users: Users, name: str) -> None:
    """Delete a user and its permissions.

    \b
    trunkline user delete alice --user admin
    """
    users.delete(name)
    remark(f"deleted user {name}")
