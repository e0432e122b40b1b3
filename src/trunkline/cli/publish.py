"""`trunkline publish` and `trunkline get`: single messages, for looking and trying."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import cast

import click

from trunkline.cli.amqp_options import amqp_options, typed
from trunkline.cli.options import json_option, parse_pairs
from trunkline.cli.output import Json, print_json, remark
from trunkline.client.amqp import AmqpClient
from trunkline.protocols.amqp.codec import Properties

MAX_BODY_BYTES = 128 * 1024 * 1024


@click.command
@click.argument("routing_key")
@click.argument("body", required=False)
@click.option("-e", "--exchange", default="", help="Exchange.  [default: the one that leads to the queue of that name]")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="A header.")
@click.option("--content-type", metavar="TYPE", help="Such as application/json.")
@click.option("--priority", type=click.IntRange(0, 255), help="For queues with x-max-priority.")
@click.option("--expiration", type=click.IntRange(0), metavar="MS", help="How long it may wait.")
@click.option("--reply-to", metavar="QUEUE", help="Where answers go.")
@click.option("--correlation-id", metavar="TEXT", help="What answers refer to.")
@click.option("--transient", is_flag=True, help="Need not survive a restart of the broker.")
@json_option
@amqp_options
def publish(
    client: AmqpClient,
    *,
    routing_key: str,
    body: str | None,
    exchange: str,
    headers: list[tuple[str, str]],
    content_type: str | None,
    priority: int | None,
    expiration: int | None,
    reply_to: str | None,
    correlation_id: str | None,
    transient: bool,
    as_json: bool,
) -> None:
    """Publish a message, and wait until the broker has stored it. Without BODY it is read from stdin.

    \b
    trunkline publish tasks 'resize image 17'
    trunkline publish order.eu.created -e orders -H region=eu < order.json
    """
    data = body.encode() if body is not None else sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
    if len(data) > MAX_BODY_BYTES:
        raise click.UsageError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    properties = Properties(
        content_type=content_type,
        headers={name: typed(value) for name, value in headers} or None,
        delivery_mode=1 if transient else 2,
        priority=priority,
        correlation_id=correlation_id,
        reply_to=reply_to,
        expiration=None if expiration is None else str(expiration),
    )
    client.confirm_publications()
    client.publish(exchange, routing_key, data, properties)
    if as_json:
        print_json({"exchange": exchange, "routing_key": routing_key, "bytes": len(data)})
    else:
        remark(f"published {len(data)} bytes")


@click.command
@click.argument("queue")
@click.option("-n", "--count", type=click.IntRange(1), default=1, help="How many at most.  [default: 1]")
@json_option
@amqp_options
def get(client: AmqpClient, *, queue: str, count: int, as_json: bool) -> None:
    """Take messages off a queue and print them: acknowledged once they are printed.

    \b
    trunkline get tasks
    trunkline get tasks -n 100 --json
    """
    taken: list[Json] = []
    for _ in range(count):
        found = client.get(queue, no_ack=False)
        if found is None:
            break
        if as_json:
            properties = {name: value for name, value in asdict(found.properties).items() if value is not None}
            taken.append(
                {
                    "exchange": found.exchange,
                    "routing_key": found.routing_key,
                    "redelivered": found.redelivered,
                    "properties": cast(Json, _plain(properties)),
                    "body": found.body.decode("utf-8", "replace"),
                    "left": found.left,
                }
            )
        else:
            sys.stdout.buffer.write(found.body + b"\n")
            sys.stdout.buffer.flush()
            client.acknowledge(found.tag)
            taken.append(None)
            continue
        client.acknowledge(found.tag)
    if as_json:
        print_json(taken)
    elif not taken:
        remark(f"{queue} has no message ready")


def _plain(value: object) -> object:
    """Field values as JSON has them."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(getattr(value, "seconds", value))
