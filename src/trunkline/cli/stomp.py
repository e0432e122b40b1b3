"""`trunkline stomp`: send and subscribe. Ctrl-C and SIGTERM end a subscription cleanly with exit code 0."""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Concatenate, ParamSpec

import click

from trunkline.cli.login_options import NAMES, login_of, login_options
from trunkline.cli.options import json_option, parse_pairs, settings_of
from trunkline.cli.output import print_json, reader_gone, remark
from trunkline.client.stomp import DEFAULT_PORT, DEFAULT_TLS_PORT, StompAddress, StompClient, parse_url

P = ParamSpec("P")
MAX_BODY_BYTES = 512 << 20


def _client_options(function: Callable[Concatenate[StompClient, P], None]) -> Callable[..., None]:
    """Adds `--url`, `--request-timeout` and who logs in; the command gets a client, and it is closed after."""

    @click.option(
        "--url",
        metavar="stomp://USER:PASSWORD@HOST:PORT/VHOST",
        help="Broker to talk to.  [default: 127.0.0.1:61613, or as configured]",
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
        with StompClient(_address(ctx, url, who), timeout_ms=int(timeout_s * 1000)) as client:
            function(client, *args, **kwargs)

    return command


def _address(ctx: click.Context, url: str | None, who: Mapping[str, object]) -> StompAddress:
    config = settings_of(ctx, who)
    login = login_of(config)
    if url is not None:
        try:
            address = parse_url(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
    else:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(config.host, config.host)
        port = (config.stomp_port or DEFAULT_PORT) if login.tls is None else (config.stomp_tls_port or DEFAULT_TLS_PORT)
        address = StompAddress(host, port)
    if login.tls is not None and (url is None or address.tls is not None):
        address = address._replace(tls=login.tls)
    if login.user is not None and (url is None or "@" not in url):
        address = address._replace(user=login.user, password=login.password)
    return address


_headers_option = click.option(
    "-H", "--header", "pairs", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="A header of the frame."
)


@click.group
def stomp() -> None:
    """Send messages to STOMP destinations and subscribe to them."""


@stomp.command
@click.argument("destination")
@click.argument("message", required=False)
@click.option("-l", "--lines", is_flag=True, help="Send each line of stdin as a message.")
@_headers_option
@json_option
@_client_options
def send(
    client: StompClient,
    *,
    destination: str,
    message: str | None,
    lines: bool,
    pairs: list[tuple[str, str]],
    as_json: bool,
) -> None:
    """Send a message, and wait until it is on disk. Without MESSAGE it is read from stdin.

    \b
    trunkline stomp send /queue/tasks 'resize 17.png' -H persistent=true
    trunkline stomp send /topic/news.sport < story.json -H content-type=application/json
    tail -f app.log | trunkline stomp send /queue/log --lines
    """
    if lines and message is not None:
        raise click.UsageError("give either MESSAGE or --lines")
    headers = dict(pairs)
    count = 0
    if lines:
        for line in sys.stdin.buffer:
            client.send(destination, line.rstrip(b"\r\n"), headers)
            count += 1
    else:
        body = message.encode() if message is not None else sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise click.UsageError(f"the message is larger than {MAX_BODY_BYTES} bytes")
        client.send(destination, body, headers)
        count = 1
    if as_json:
        print_json({"destination": destination, "messages": count})
    elif lines:
        remark(f"sent {count} message{'' if count == 1 else 's'}")


@stomp.command
@click.argument("destination")
@click.option("-n", "--max", "max_messages", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--timeout",
    "idle_s",
    type=click.FloatRange(min=0.001),
    metavar="SECONDS",
    help="Stop when no message has come for this long.",
)
@click.option("--prefetch", type=click.IntRange(1, 65_535), default=100, show_default=True, help="Messages ahead.")
@click.option("--selector", metavar="FILTER", help="Only messages that this filter matches.")
@_headers_option
@json_option
@_client_options
def subscribe(
    client: StompClient,
    *,
    destination: str,
    max_messages: int | None,
    idle_s: float | None,
    prefetch: int,
    selector: str | None,
    pairs: list[tuple[str, str]],
    as_json: bool,
) -> None:
    """Print the messages of a destination as they come, and acknowledge each when it is printed.

    \b
    trunkline stomp subscribe /queue/tasks
    trunkline stomp subscribe '/topic/news.*' --json
    trunkline stomp subscribe /queue/orders --selector "total > 100" --max 10
    trunkline stomp subscribe /queue/history -H x-queue-type=stream -H x-stream-offset=first --timeout 1
    """
    signal.signal(signal.SIGTERM, _interrupt)
    headers = {"prefetch-count": str(prefetch if max_messages is None else min(prefetch, max_messages)), **dict(pairs)}
    if selector is not None:
        headers["selector"] = selector
    try:
        client.subscribe(destination, headers)
        for count, message in enumerate(client.messages(idle_s, until=reader_gone), 1):
            if as_json:
                body = message.body.decode(errors="replace")
                click.echo(json.dumps({"headers": message.headers, "body": body}, ensure_ascii=False))
            else:
                sys.stdout.buffer.write(message.body + b"\n")
                sys.stdout.buffer.flush()
            client.acknowledge(message)
            if max_messages is not None and count >= max_messages:
                return
    except KeyboardInterrupt:
        pass


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
