"""`trunkline acl`: rules, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, cast

import click

from trunkline.cli.amqp_options import amqp_options, listed
from trunkline.cli.options import json_option
from trunkline.cli.output import Json, print_json, print_table, remark
from trunkline.client.amqp import AmqpClient

P = ParamSpec("P")


@click.group
def acl() -> None:
    """Add, list, remove and try out rules: who may do what, through every protocol.

    \b
    A RESOURCE is one of
      topic:orders          the topic, and the queue of that name
      topic:orders-*        every topic whose name begins so; topic:* is every topic
      group:billing         a consumer group
      transactional-id:x    a producer's transactions
      cluster               the broker itself
      mqtt:sensors/%u/#     MQTT topics; %u is the user's name, %c the client id
    OPERATIONS are read, write, create, delete, alter, describe, describe-configs, alter-configs,
    cluster-action, idempotent-write or all; several are separated by commas.
    """


def _rule_options(function: Callable[P, None]) -> Callable[P, None]:
    for option in (
        click.option("--host", default="*", metavar="ADDRESS", help="Clients from this address.  [default: any]"),
        click.option("--deny", is_flag=True, help="Deny it, which wins over every rule that allows it."),
        click.argument("resource"),
        click.argument("operations"),
        click.argument("whom", metavar="USER"),
    ):
        function = option(function)
    return function


@acl.command("add")
@_rule_options
@amqp_options
def add(client: AmqpClient, *, whom: str, operations: str, resource: str, deny: bool, host: str) -> None:
    """Allow USER, or with `*` everybody, OPERATIONS on RESOURCE.

    \b
    trunkline acl add alice read,write topic:orders
    trunkline acl add alice read group:billing
    trunkline acl add '*' read mqtt:public/#
    """
    done = client.manage("add_rules", user=whom, operations=_words(operations), resource=resource, deny=deny, host=host)
    remark(f"added {_count(done, 'added')} rules")


@acl.command("remove")
@_rule_options
@amqp_options
def remove(client: AmqpClient, *, whom: str, operations: str, resource: str, deny: bool, host: str) -> None:
    """Remove rules; name them as they were added.

    \b
    trunkline acl remove alice write topic:orders
    """
    done = client.manage(
        "remove_rules", user=whom, operations=_words(operations), resource=resource, deny=deny, host=host
    )
    if not _count(done, "removed"):
        raise click.ClickException("there is no such rule; `trunkline acl list` shows them")
    remark(f"removed {_count(done, 'removed')} rules")


@acl.command("list")
@click.option("--of", "whom", metavar="USER", help="Only rules that are about this user, or everybody.")
@json_option
@amqp_options
def list_rules(client: AmqpClient, *, whom: str | None, as_json: bool) -> None:
    """List rules, whatever protocol's tools they came from.

    \b
    trunkline acl list
    trunkline acl list --of alice --json
    """
    found = listed(client.manage("rules", **({} if whom is None else {"user": whom})))
    if as_json:
        print_json(cast(Json, found))
        return
    columns = ("user", "host", "effect", "operation", "resource")
    rows = sorted(tuple(str(entry[name]) for name in columns) for entry in found)
    print_table(columns, rows, empty="there are no rules: everybody may do what no permission is about")


@acl.command("test")
@click.argument("whom", metavar="USER")
@click.argument("operation")
@click.argument("resource")
@click.option(
    "--protocol",
    type=click.Choice(["kafka", "amqp", "mqtt"]),
    default="kafka",
    show_default=True,
    help="The protocol that the user asks in.",
)
@click.option("--host", default="", metavar="ADDRESS", help="Where the user asks from.")
@click.option("--client-id", default="", metavar="ID", help="The MQTT client id.")
@json_option
@amqp_options
@click.pass_context
def test(
    ctx: click.Context,
    client: AmqpClient,
    *,
    whom: str,
    operation: str,
    resource: str,
    protocol: str,
    host: str,
    client_id: str,
    as_json: bool,
) -> None:
    """Say whether USER may do OPERATION to RESOURCE, and by which rule. Exits with 1 for no.

    By amqp, RESOURCE may also be queue:NAME or exchange:NAME, and OPERATION configure.

    \b
    trunkline acl test alice read topic:orders
    trunkline acl test alice configure queue:orders --protocol amqp --vhost prod
    trunkline acl test alice write mqtt:sensors/1 --protocol mqtt --client-id device-1
    """
    asked = {"user": whom, "operation": operation, "resource": resource, "protocol": protocol}
    found = client.manage("test_access", **asked, host=host, client_id=client_id)
    answer = cast("dict[str, object]", found)
    if as_json:
        print_json(cast(Json, answer))
    else:
        click.echo(f"{'yes' if answer['allowed'] else 'no'}: {answer['why']}")
    if not answer["allowed"]:
        ctx.exit(1)


def _words(operations: str) -> list[str]:
    return [word.strip() for word in operations.split(",") if word.strip()]


def _count(done: object, name: str) -> int:
    return int(str(done[name])) if isinstance(done, dict) else 0
