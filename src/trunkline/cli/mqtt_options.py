"""Options of the commands that talk MQTT: where the broker is, and how long to wait for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from trunkline.cli.login_options import NAMES, login_of, login_options
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
    @login_options
    @click.pass_context
    @functools.wraps(function)
    def command(ctx: click.Context, /, url: str | None, timeout_s: float, *args: P.args, **kwargs: P.kwargs) -> None:
        who = {name: kwargs.pop(name) for name in NAMES}
        function(Connector(_address(ctx, url, who), int(timeout_s * 1000)), *args, **kwargs)

    return command


def mqtt_options(function: Callable[Concatenate[MqttClient, P], None]) -> Callable[..., None]:
    """As `connector_options`, but the command gets a client, and it is closed after."""

    @connector_options
    @functools.wraps(function)
    def command(connector: Connector, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with connector.connect() as client:
            function(client, *args, **kwargs)

    return command


def _address(ctx: click.Context, url: str | None, who: Mapping[str, object]) -> MqttAddress:
    from trunkline.client.mqtt import DEFAULT_PORT, DEFAULT_TLS_PORT, MqttAddress, parse_url

    config = settings_of(ctx, who)
    login = login_of(config)
    if url is not None:
        try:
            address = parse_url(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
    else:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(config.host, config.host)
        port = (config.mqtt_port or DEFAULT_PORT) if login.tls is None else (config.mqtt_tls_port or DEFAULT_TLS_PORT)
        address = MqttAddress(host, port)
    if login.tls is not None and (url is None or address.tls is not None):
        address = address._replace(tls=login.tls)
    if login.user is not None and address.user is None:
        address = address._replace(user=login.user, password=login.password)
    return address
