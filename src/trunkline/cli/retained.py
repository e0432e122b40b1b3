"""`trunkline retained`: the last messages that MQTT keeps for those who subscribe later."""

from __future__ import annotations

from typing import cast

import click

from trunkline.cli.amqp_options import listed
from trunkline.cli.mqtt_options import mqtt_options
from trunkline.cli.options import json_option
from trunkline.cli.output import Cell, Json, print_json, print_table, remark
from trunkline.client.mqtt import MqttClient


@click.group
def retained() -> None:
    """List and clear retained MQTT messages."""


@retained.command("list")
@click.argument("topic_filter", required=False, default="#", metavar="[FILTER]")
@json_option
@mqtt_options
def list_retained(client: MqttClient, *, topic_filter: str, as_json: bool) -> None:
    """List retained messages; with FILTER, those of the topics that it matches.

    \b
    trunkline retained list
    trunkline retained list 'config/+' --json
    """
    answer = cast(dict[str, object], client.manage("retained", filter=topic_filter))
    messages = listed(answer["messages"])
    if as_json:
        print_json(cast(Json, messages))
        return
    columns = ("topic", "bytes", "qos", "publisher", "expiry_s")
    rows = [tuple(cast(Cell, entry[name]) for name in columns) for entry in messages]
    print_table(("topic", "bytes", "qos", "publisher", "expiry s"), rows, empty="there are no retained messages")
    total = cast(int, answer["total"])
    if total > len(messages):
        remark(f"{len(messages)} of {total} are shown; give a filter to see others")


@retained.command
@click.argument("topic_filter", metavar="FILTER")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@mqtt_options
def clear(client: MqttClient, *, topic_filter: str, yes: bool, as_json: bool) -> None:
    """Forget the retained messages of the topics that FILTER matches.

    \b
    trunkline retained clear config/7
    trunkline retained clear 'old/#' --yes
    """
    if not yes and ("#" in topic_filter or "+" in topic_filter):
        answer = cast(dict[str, object], client.manage("retained", filter=topic_filter))
        click.confirm(f"clear {answer['total']} retained messages?", abort=True)
    answer = cast(dict[str, object], client.manage("clear", filter=topic_filter))
    if as_json:
        print_json({"cleared": cast(int, answer["cleared"])})
    else:
        remark(f"cleared {answer['cleared']} retained message{'' if answer['cleared'] == 1 else 's'}")
