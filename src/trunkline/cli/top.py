"""`trunkline top`: what the broker does now, in the terminal; the overview of the page, for those who have no browser."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.login_options import login_of, login_options
from trunkline.cli.options import json_option, settings_of

if TYPE_CHECKING:
    from rich.console import Group

    from trunkline.client.http import HttpClient

_LINES = 15


@click.command
@click.option(
    "--url", metavar="http://HOST:PORT", help="The broker's HTTP port.  [default: 127.0.0.1:15672, or as configured]"
)
@click.option("--interval", "interval_s", type=click.FloatRange(0.2, 3600), default=2.0, metavar="SECONDS", help="How often to look.  [default: 2]")  # fmt: skip
@click.option("--once", is_flag=True, help="Look twice, an interval apart, print and end.")
@login_options
@json_option
@click.pass_context
def top(
    ctx: click.Context, /, url: str | None, interval_s: float, once: bool, as_json: bool, **who: str | None
) -> None:
    """Rates, queues and groups, over and over, until Ctrl-C.

    \b
    trunkline top
    trunkline top --once --json
    trunkline top --url https://broker.example.org:15671 --user ops --ca ca.pem
    """
    from trunkline.client.http import DEFAULT_PORT, HttpClient, HttpRefused

    config = settings_of(ctx, who)
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(config.host, config.host)
    try:
        client = HttpClient(url or f"http://{host}:{config.http_port or DEFAULT_PORT}", login_of(config))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    with contextlib.closing(client):
        try:
            look(client)
            if once:
                time.sleep(interval_s)
                seen = look(client)
                _print(seen, as_json=as_json)
            else:
                _watch(client, interval_s, as_json=as_json)
        except HttpRefused as error:
            hint = "log in with --user and --password-file" if error.status == 401 else "is http_port on?"
            raise CommandError(str(error), hint) from error


def look(client: HttpClient) -> dict[str, Any]:
    queues = client.get(f"/api/queues?page=1&page_size={_LINES}&sort=messages&sort_reverse=true")["items"]
    groups = client.get(f"/api/v1/groups?page=1&page_size={_LINES}&sort=lag&sort_reverse=true")["items"]
    return {"overview": client.get("/api/v1/overview"), "queues": queues, "groups": groups}


def _watch(client: HttpClient, interval_s: float, *, as_json: bool) -> None:
    if as_json:
        while True:
            time.sleep(interval_s)
            click.echo(json.dumps(look(client)))
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(shown(look(client)), refresh=True)
            time.sleep(interval_s)


def _print(seen: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(seen))
        return
    from rich.console import Console

    Console().print(shown(seen))


def shown(seen: dict[str, Any]) -> Group:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    overview = seen["overview"]
    rates, totals, node = overview["rates"], overview["totals"], overview["node"]
    head = Text.assemble(
        ("Trunkline ", "bold green"), f"{overview['version']}  up {_span(overview['uptime_ms'])}  ",
        f"memory {_bytes(node['memory_bytes'])}  disk free {_bytes(node['disk_free_bytes'])}  ",
        f"connections {totals['connections']}  topics {totals['topics']}  queues {totals['queues']}",
    )  # fmt: skip
    parts: list[Text | Table] = [head]
    if overview["blocked"]:
        parts.append(Text(f"publishers wait: {overview['blocked']}", "bold red"))
    speed = Table(box=box.SIMPLE, title="per second", title_justify="left")
    names = {"log": "log", "publish": "published", "deliver": "delivered", "acknowledge": "acked", "mqtt_in": "MQTT in", "mqtt_out": "MQTT out"}  # fmt: skip
    for name in names.values():
        speed.add_column(name, justify="right")
    speed.add_row(*(f"{rates[name]:,.0f}" for name in names))
    parts.append(speed)
    queues = Table(box=box.SIMPLE, title="queues, longest first", title_justify="left")
    for name in ("queue", "vhost"):
        queues.add_column(name, overflow="fold")
    for name in ("ready", "unacked", "consumers", "in/s", "out/s"):
        queues.add_column(name, justify="right")
    for each in seen["queues"]:
        stats = each["message_stats"]
        queues.add_row(
            Text(each["name"]), Text(each["vhost"]), f"{each['messages_ready']:,}", f"{each['messages_unacknowledged']:,}",
            str(each["consumers"]), f"{stats['publish_details']['rate']:,.0f}", f"{stats['deliver_get_details']['rate']:,.0f}",
        )  # fmt: skip
    if seen["queues"]:
        parts.append(queues)
    groups = Table(box=box.SIMPLE, title="groups, furthest behind first", title_justify="left")
    for name in ("group", "state"):
        groups.add_column(name, overflow="fold")
    groups.add_column("behind", justify="right")
    for each in seen["groups"]:
        groups.add_row(Text(each["name"]), Text(each["state"]), f"{each['lag']:,}")
    if seen["groups"]:
        parts.append(groups)
    return Group(*parts)


def _span(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
