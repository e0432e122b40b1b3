"""Options of the commands that talk AMQP: where the broker is, and arguments of queues, exchanges and bindings."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

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
    @click.pass_context
    @functools.wraps(function)
    def command(
        ctx: click.Context, /, url: str | None, vhost: str | None, timeout_s: float, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        from trunkline.client.amqp import AmqpClient

        address = _address(ctx, url)
        if vhost is not None:
            address = address._replace(vhost=vhost)

        def told(reason: str) -> None:
            remark(f"the broker takes no publications for now: {reason}; waiting for at most {timeout_s:g} s")

        with AmqpClient(address, timeout_ms=int(timeout_s * 1000), on_blocked=told) as client:
            function(client, *args, **kwargs)

    return command


def _address(ctx: click.Context, url: str | None) -> Address:
    from trunkline.client.amqp import DEFAULT_PORT, Address, parse_url

    if url is not None:
        try:
            return parse_url(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
    config = settings_of(ctx)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(config.host, config.host)
    return Address(host, config.amqp_port or DEFAULT_PORT)


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
