"""Options of the commands that talk MQTT: where the broker is, and how long to wait for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from trunkline.cli.options import settings_of

if TYPE_CHECKING:
    from trunkline.client.mqtt import MqttAddress, MqttClient

P = ParamSpec("P")


class Connector:
    """Where to connect to, for commands that have more to say about the connection."""

    def __init__(self, address: MqttAddress, timeout_ms: int) -> None:
        self._address = address
        self._timeout_ms = timeout_ms

    def connect(self, client_id: str = "", *, keep: bool = False, expiry_s: int = 0) -> MqttClient:
        from trunkline.client.mqtt import MqttClient

        return MqttClient(
            self._address,
            timeout_ms=self._timeout_ms,
            client_id=client_id,
            clean_start=not keep,
            expiry_s=expiry_s if keep else 0,
        )


def connector_options(function: Callable[Concatenate[Connector, P], None]) -> Callable[..., None]:
    """Adds `--url` and `--request-timeout`; the command gets a `Connector`."""

    @click.option(
        "--url",
        metavar="mqtt://USER:PASSWORD@HOST:PORT",
        help="Broker to talk to.  [default: 127.0.0.1:1883, or as configured]",
    )
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
    def command(ctx: click.Context, /, url: str | None, timeout_s: float, *args: P.args, **kwargs: P.kwargs) -> None:
        function(Connector(_address(ctx, url), int(timeout_s * 1000)), *args, **kwargs)

    return command


def mqtt_options(function: Callable[Concatenate[MqttClient, P], None]) -> Callable[..., None]:
    """As `connector_options`, but the command gets a client, and it is closed after."""

    @connector_options
    @functools.wraps(function)
    def command(connector: Connector, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with connector.connect() as client:
            function(client, *args, **kwargs)

    return command


def _address(ctx: click.Context, url: str | None) -> MqttAddress:
    from trunkline.client.mqtt import DEFAULT_PORT, MqttAddress, parse_url

    if url is not None:
        try:
            return parse_url(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
    config = settings_of(ctx)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(config.host, config.host)
    return MqttAddress(host, config.mqtt_port or DEFAULT_PORT)
