"""`trunkline mqtt`: subscribe and publish. Ctrl-C and SIGTERM end a subscription cleanly with exit code 0."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import click

from trunkline.cli.interruption import Interrupted, Interruption
from trunkline.cli.mqtt_options import Connector, connector_options
from trunkline.cli.options import json_option, parse_pairs
from trunkline.cli.output import print_json, reader_gone, remark
from trunkline.client.mqtt import MqttClient
from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.packets import Publish
from trunkline.protocols.mqtt.values import MAX_STRING_BYTES

MAX_PAYLOAD_BYTES = 256 * 1024 * 1024 - 1
DAY_S = 86_400
_QOS = click.IntRange(0, 2)


@click.group
def mqtt() -> None:
    """Subscribe to MQTT topics and publish to them."""


@mqtt.command
@click.argument("filters", nargs=-1, required=True, metavar="FILTER...")
@click.option("-q", "--qos", type=_QOS, default=0, show_default=True, help="Quality of service to ask for.")
@click.option("-n", "--max", "max_messages", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--timeout",
    "idle_s",
    type=click.FloatRange(min=0.001),
    metavar="SECONDS",
    help="Stop when no message has come for this long.",
)
@click.option(
    "-i", "--client-id", default="", metavar="NAME", help="Client identifier.  [default: the broker's choice]"
)
@click.option("-k", "--keep", is_flag=True, help="Keep the session for a day: what comes meanwhile is not missed.")
@click.option("-v", "--verbose", is_flag=True, help="Print the topic before each message.")
@json_option
@connector_options
def sub(
    connector: Connector,
    *,
    filters: tuple[str, ...],
    qos: int,
    max_messages: int | None,
    idle_s: float | None,
    client_id: str,
    keep: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Print the messages of topics as they come.

    \b
    trunkline mqtt sub 'sensors/+/temperature' -v
    trunkline mqtt sub 'alarms/#' --qos 1 --keep --client-id night-watch --json
    trunkline mqtt sub '$SYS/#' -v --timeout 2
    """
    if keep and not client_id:
        raise click.UsageError("--keep needs a --client-id to come back under")
    signal.signal(signal.SIGTERM, _interrupt)
    with connector.connect(client_id, keep=keep, expiry_s=DAY_S) as client:
        try:
            client.subscribe(filters, qos)
            _print_messages(client, max_messages, idle_s, verbose=verbose, as_json=as_json)
        except KeyboardInterrupt:
            pass


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _print_messages(
    client: MqttClient, max_messages: int | None, idle_s: float | None, *, verbose: bool, as_json: bool
) -> None:
    for count, message in enumerate(client.messages(idle_s, until=reader_gone), 1):
        if as_json:
            click.echo(json.dumps(_described(message), ensure_ascii=False))
        else:
            head = message.topic.encode() + b" " if verbose else b""
            sys.stdout.buffer.write(head + message.payload + b"\n")
            sys.stdout.buffer.flush()
        client.acknowledge(message)
        if max_messages is not None and count >= max_messages:
            return


def _described(message: Publish) -> dict[str, object]:
    found: dict[str, object] = {
        "topic": message.topic,
        "payload": message.payload.decode(errors="replace"),
        "qos": message.qos,
        "retain": message.retain,
        "dup": message.dup,
    }
    properties = message.properties
    if properties is not None:
        if properties.content_type is not None:
            found["content_type"] = properties.content_type
        if properties.response_topic is not None:
            found["response_topic"] = properties.response_topic
        if properties.message_expiry_interval is not None:
            found["expiry_s"] = properties.message_expiry_interval
        if properties.user_properties:
            found["properties"] = [list(pair) for pair in properties.user_properties]
    return found


def _topic_name(_ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """A broker closes the connection of who publishes to anything else, which QoS 0 does not wait to see."""
    if name is None:
        return None
    if not name:
        raise click.BadParameter("a topic name has at least one character", param=param)
    if "+" in name or "#" in name:
        raise click.BadParameter(f"{name!r} has a wildcard in it, which only subscriptions have", param=param)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise click.BadParameter("a topic name is UTF-8", param=param) from None
    if size > MAX_STRING_BYTES or "\0" in name:
        raise click.BadParameter(f"a topic name has at most {MAX_STRING_BYTES} bytes, and no null", param=param)
    return name


@mqtt.command
@click.argument("topic", callback=_topic_name)
@click.argument("message", required=False)
@click.option("-q", "--qos", type=_QOS, default=0, show_default=True, help="Quality of service.")
@click.option("-r", "--retain", is_flag=True, help="Keep it for those who subscribe later; an empty one clears.")
@click.option("-l", "--lines", is_flag=True, help="Publish each line of stdin as a message.")
@click.option(
    "-p", "--property", "pairs", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="A user property."
)
@click.option("--content-type", metavar="TYPE", help="Such as application/json.")
@click.option("--expiry", type=click.IntRange(0, 0xFFFF_FFFF), metavar="SECONDS", help="How long it may wait.")
@click.option("--response-topic", metavar="TOPIC", callback=_topic_name, help="Where answers go.")
@click.option(
    "-i", "--client-id", default="", metavar="NAME", help="Client identifier.  [default: the broker's choice]"
)
@json_option
@connector_options
def pub(
    connector: Connector,
    *,
    topic: str,
    message: str | None,
    qos: int,
    retain: bool,
    lines: bool,
    pairs: list[tuple[str, str]],
    content_type: str | None,
    expiry: int | None,
    response_topic: str | None,
    client_id: str,
    as_json: bool,
) -> None:
    """Publish a message. Without MESSAGE it is read from stdin.

    \b
    trunkline mqtt pub sensors/7/temperature 21.5 --qos 1
    trunkline mqtt pub config/7 --retain < config.json
    trunkline mqtt pub config/7 '' --retain
    tail -f app.log | trunkline mqtt pub logs/app --lines
    """
    if lines and message is not None:
        raise click.UsageError("give either MESSAGE or --lines")
    properties = Properties()
    properties.user_properties = pairs
    properties.content_type = content_type
    properties.message_expiry_interval = expiry
    properties.response_topic = response_topic
    with connector.connect(client_id) as client:
        if lines:
            interrupted: Interrupted | None = None
            count = 0
            try:
                for line in _lines():
                    client.publish(topic, line.rstrip(b"\r\n"), qos=qos, retain=retain, properties=properties)
                    count += 1
            except Interrupted as error:
                interrupted = error
            client.settle()
            _report(topic, count, as_json=as_json, complete=interrupted is None)
            if interrupted is not None:
                raise click.exceptions.Exit(interrupted.exit_code)
            return
        data = message.encode() if message is not None else sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)
        if len(data) > MAX_PAYLOAD_BYTES:
            raise click.UsageError(f"the message is larger than {MAX_PAYLOAD_BYTES} bytes")
        client.publish(topic, data, qos=qos, retain=retain, properties=properties)
        client.settle()
    if as_json:
        _report(topic, 1, as_json=True, complete=True)


def _lines() -> Iterator[bytes]:
    with Interruption() as interruption:
        while True:
            with interruption.waiting():
                line = sys.stdin.buffer.readline()
            if not line:
                return
            yield line


def _report(topic: str, count: int, *, as_json: bool, complete: bool) -> None:
    if as_json:
        print_json({"topic": topic, "messages": count, "complete": complete})
    else:
        remark(f"published {count} message{'' if count == 1 else 's'}{'' if complete else ' before the interruption'}")
