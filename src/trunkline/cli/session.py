"""`trunkline session`: MQTT sessions, with or without a connection."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import click

from trunkline.cli.amqp_options import listed
from trunkline.cli.mqtt_options import mqtt_options
from trunkline.cli.options import json_option
from trunkline.cli.output import Cell, Json, print_json, print_table, remark
from trunkline.client.mqtt import MqttClient


@click.group
def session() -> None:
    """List, show and end MQTT sessions."""


@session.command("list")
@click.argument("text", required=False, default="")
@json_option
@mqtt_options
def list_sessions(client: MqttClient, *, text: str, as_json: bool) -> None:
    """List sessions; with TEXT, those that have it in their client identifier.

    \b
    trunkline session list
    trunkline session list sensor- --json
    """
    answer = cast(dict[str, object], client.manage("sessions", filter=text))
    sessions = listed(answer["sessions"])
    if as_json:
        print_json(cast(Json, sessions))
        return
    rows = [
        (
            str(entry["client_id"]),
            "connected" if entry["connected"] else "away",
            str(entry["version"]),
            _expiry(entry),
            cast(Cell, entry["subscription_count"]),
            cast(Cell, entry["inflight"]),
            cast(Cell, entry["records_behind"]),
        )
        for entry in sessions
    ]
    print_table(
        ("client", "state", "mqtt", "kept", "subscriptions", "inflight", "behind"), rows, empty="there are no sessions"
    )
    total = cast(int, answer["total"])
    if total > len(sessions):
        remark(f"{len(sessions)} of {total} are shown; name a part of the identifier to see others")


def _expiry(entry: dict[str, object]) -> str:
    if not entry["kept"]:
        return "no"
    return "for ever" if entry["expiry_s"] is None else f"{entry['expiry_s']} s"


@session.command
@click.argument("client_id")
@json_option
@mqtt_options
def show(client: MqttClient, *, client_id: str, as_json: bool) -> None:
    """Show a session, its subscriptions, and how far it is in the log.

    \b
    trunkline session show sensor-7
    """
    found = cast(dict[str, object], client.manage("session", client_id=client_id))
    if as_json:
        print_json(cast(Json, found))
        return
    words = [
        "connected from " + str(found["peer"])
        if found["connected"]
        else f"away since {_time(found['disconnected_ms'])}",
        f"MQTT {found['version']}",
        f"kept: {_expiry(found)}",
        f"{found['inflight']} in flight",
        f"{found['records_behind']} records behind",
    ]
    click.echo(f"{client_id}  {', '.join(words)}")
    rows = [
        (str(entry["filter"]), cast(Cell, entry["qos"]), cast(Cell, entry["identifier"]))
        for entry in listed(found["subscriptions"])
    ]
    print_table(("filter", "qos", "identifier"), rows, empty="it has no subscriptions")


@session.command
@click.argument("client_ids", nargs=-1, required=True, metavar="CLIENT...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@mqtt_options
def kill(client: MqttClient, *, client_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """End sessions, and close their connections. What they had not taken yet stays in the log.

    \b
    trunkline session kill sensor-7
    trunkline session kill sensor-7 sensor-8 --yes
    """
    if not yes:
        click.confirm(f"end {', '.join(client_ids)}?", abort=True)
    for client_id in client_ids:
        client.manage("kill", client_id=client_id)
        if not as_json:
            remark(f"ended {client_id}")
    if as_json:
        print_json({"ended": list(client_ids)})


def _time(ms: object) -> str:
    if not isinstance(ms, int):
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="seconds")
