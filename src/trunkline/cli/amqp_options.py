"""Options of the commands that talk AMQP: where the broker is, and arguments of queues, exchanges and bindings."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from trunkline.cli.login_options import NAMES, login_of, login_options
from trunkline.cli.options import parse_pairs, settings_of
from trunkline.cli.output import remark

if TYPE_CHECKING:
    from trunkline.broker.messaging.typed_values import FieldValue
    from trunkline.client.amqp import Address, AmqpClient

P = ParamSpec("P")


def amqp_options(function: Callable[Concatenate[AmqpClient, P], None]) -> Callable[..., None]:
    """Adds `--url`, `--vhost` and `--request-timeout`; the command gets a client, and it is closed after."""

    @click.option(
        "--url",
        metavar="amqp://USER:PASSWORD@HOST:PORT/VHOST",
        help="Broker to talk to.  [default: guest on 127.0.0.1:5672, or as configured]",
    )
    @click.option("--vhost", metavar="NAME", help="Virtual host.  [default: / or the one in --url]")
    @click.option(
        "--request-timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1, max=3600),
        default=30.0,
        metavar="SECONDS",
        help="How long to wait for an answer.  [default: 30]",
    )
    @login_options
    @click.pass_context
    @functools.wraps(function)
    def command(
        ctx: click.Context, /, url: str | None, vhost: str | None, timeout_s: float, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        from trunkline.client.amqp import AmqpClient

        address = amqp_address(ctx, url, {name: kwargs.pop(name) for name in NAMES})
        if vhost is not None:
            address = address._replace(vhost=vhost)

        def told(reason: str) -> None:
            remark(f"the broker takes no publications for now: {reason}; waiting for at most {timeout_s:g} s")

        with AmqpClient(address, timeout_ms=int(timeout_s * 1000), on_blocked=told) as client:
            function(client, *args, **kwargs)

    return command


def amqp_address(ctx: click.Context, url: str | None, who: Mapping[str, object]) -> Address:
    """Where the broker is, and who asks: `who` is what `login_options` were given, which the URL comes before."""
    from trunkline.client.amqp import DEFAULT_PORT, DEFAULT_TLS_PORT, Address, parse_url

    config = settings_of(ctx, who)
    login = login_of(config)
    if url is not None:
        try:
            address = parse_url(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
    else:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(config.host, config.host)
        port = (config.amqp_port or DEFAULT_PORT) if login.tls is None else (config.amqp_tls_port or DEFAULT_TLS_PORT)
        address = Address(host, port)
    if login.tls is not None and (url is None or address.tls is not None):
        address = address._replace(tls=login.tls)
    if login.user is not None and "@" not in (url or ""):
        address = address._replace(user=login.user, password=login.password)
    return address


def arguments_option(function: Callable[P, None]) -> Callable[P, None]:
    return click.option(
        "-a",
        "--argument",
        "arguments",
        multiple=True,
        metavar="NAME=VALUE",
        callback=parse_arguments,
        help="An argument such as x-message-ttl=60000; may be repeated. JSON values are taken as such.",
    )(function)


def parse_arguments(
    ctx: click.Context | None, param: click.Parameter | None, values: Iterable[str]
) -> dict[str, FieldValue]:
    return {name: typed(value) for name, value in parse_pairs(ctx, param, values)}


def typed(text: str) -> FieldValue:
    """`5`, `true` and `{"a": 1}` are what they look like; everything else is a string, as is `"5"` in quotes."""
    try:
        value: FieldValue = json.loads(text)
    except ValueError:
        return text
    return value


def listed(answer: object) -> list[dict[str, object]]:
    """A list of objects, which is what the broker's lists are."""
    return [entry for entry in answer if isinstance(entry, dict)] if isinstance(answer, list) else []
