"""`trunkline queue`: list, declare, delete, purge, peek, move, delayed, cancel, stats."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import cast

import click

from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.cli.amqp_options import amqp_options, arguments_option, listed
from trunkline.cli.errors import CommandError
from trunkline.cli.options import json_option
from trunkline.cli.output import Cell, Json, print_json, print_table, remark
from trunkline.client.amqp import AmqpClient
from trunkline.protocols.amqp import methods as m

_MAX_SHOWN_CHARS = 60


@click.group
def queue() -> None:
    """List, declare, delete, purge, look into and move messages between queues."""


@queue.command("list")
@json_option
@amqp_options
def list_queues(client: AmqpClient, as_json: bool) -> None:
    """List queues and how much is in them.

    \b
    trunkline queue list
    trunkline queue list --vhost staging --json
    """
    queues = sorted(listed(client.manage("queues")), key=lambda entry: str(entry["name"]))
    if as_json:
        print_json(cast(Json, queues))
        return
    columns = ("name", "ready", "unacked", "delayed", "consumers", "ready_bytes")
    rows = [(*(cast(Cell, entry[name]) for name in columns), _kind(entry)) for entry in queues]
    print_table(
        ("queue", "ready", "unacked", "delayed", "consumers", "bytes", "kind"),
        rows,
        empty="there are no queues yet; `trunkline queue declare NAME` makes one",
    )


def _kind(entry: dict[str, object]) -> str:
    words = ["durable" if entry["durable"] else "transient"]
    words += [word for word in ("exclusive", "auto_delete") if entry[word]]
    return ", ".join(words).replace("_", "-")


@queue.command
@click.argument("name")
@click.option("--transient", is_flag=True, help="Gone when the broker stops.")
@click.option("--auto-delete", is_flag=True, help="Gone when its last consumer is.")
@arguments_option
@json_option
@amqp_options
def declare(
    client: AmqpClient,
    *,
    name: str,
    transient: bool,
    auto_delete: bool,
    arguments: dict[str, FieldValue],
    as_json: bool,
) -> None:
    """Declare a queue; succeeds if it is there just so.

    \b
    trunkline queue declare tasks
    trunkline queue declare tasks -a x-dead-letter-exchange=dead -a x-delivery-limit=5
    trunkline queue declare jobs -a x-max-priority=10 -a x-message-ttl=60000
    """
    method = m.QueueDeclare(0, name, False, not transient, False, auto_delete, False, arguments)
    found = client.call(method, m.QueueDeclareOk)
    if as_json:
        print_json({"queue": found.queue, "ready": found.message_count, "consumers": found.consumer_count})
    else:
        remark(f"declared queue {found.queue}, which has {found.message_count} messages")


@queue.command
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--if-unused", is_flag=True, help="Only without consumers.")
@click.option("--if-empty", is_flag=True, help="Only without messages.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@amqp_options
def delete(
    client: AmqpClient, *, names: tuple[str, ...], if_unused: bool, if_empty: bool, yes: bool, as_json: bool
) -> None:
    """Delete queues and their messages.

    \b
    trunkline queue delete tasks --if-empty
    """
    known = {str(entry["name"]) for entry in listed(client.manage("queues"))}
    missing = [name for name in names if name not in known]
    if missing:
        raise CommandError(f"there is no queue {missing[0]}", "`trunkline queue list` shows what there is")
    if not yes and not if_empty:
        click.confirm(f"Delete {', '.join(names)} and all their messages?", abort=True, err=True)
    counts = {}
    for name in names:
        found = client.call(m.QueueDelete(0, name, if_unused, if_empty, False), m.QueueDeleteOk)
        counts[name] = found.message_count
    if as_json:
        print_json({"deleted": list(names), "messages": counts})
    else:
        remark(", ".join(f"deleted {name} with {count} messages" for name, count in counts.items()))


@queue.command
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@amqp_options
def purge(client: AmqpClient, name: str, yes: bool, as_json: bool) -> None:
    """Drop every message that is ready; what consumers hold stays theirs.

    \b
    trunkline queue purge tasks --yes
    """
    if not yes:
        click.confirm(f"Drop all messages of {name}?", abort=True, err=True)
    found = client.call(m.QueuePurge(0, name, False), m.QueuePurgeOk)
    if as_json:
        print_json({"queue": name, "purged": found.message_count})
    else:
        remark(f"purged {found.message_count} messages of {name}")


@queue.command
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=10, help="How many.  [default: 10]")
@click.option("--offset", type=click.IntRange(0), help="From this offset on, not from the oldest.")
@json_option
@amqp_options
def peek(client: AmqpClient, *, name: str, count: int, offset: int | None, as_json: bool) -> None:
    """Show messages without taking them.

    \b
    trunkline queue peek tasks -n 3
    trunkline queue peek tasks --json
    """
    found = listed(client.manage("peek", queue=name, count=count, offset=offset))
    if as_json:
        for entry in found:
            entry["headers"] = dict(cast("list[tuple[str, str]]", entry["headers"]))
            entry["body"] = base64.b64decode(str(entry["body"])).decode("utf-8", "replace")
        print_json(cast(Json, found))
        return
    rows: list[tuple[Cell, ...]] = []
    for entry in found:
        headers = dict(cast("list[tuple[str, str]]", entry["headers"]))
        body = base64.b64decode(str(entry["body"])).decode("utf-8", "replace")
        rows.append(
            (
                cast(int, entry["offset"]),
                headers.get("amqp.routing-key", ""),
                cast(int, entry["size_bytes"]),
                "yes" if entry["redelivered"] else "",
                _cut(body),
            )
        )
    print_table(("offset", "routing key", "bytes", "redelivered", "body"), rows, empty=f"{name} has no message ready")


@queue.command
@click.argument("source")
@click.argument("destination")
@click.option("-n", "--count", type=click.IntRange(1), help="At most so many.  [default: all]")
@json_option
@amqp_options
def move(client: AmqpClient, *, source: str, destination: str, count: int | None, as_json: bool) -> None:
    """Move messages from one queue to another, oldest first: a dead-letter queue back to its origin, say.

    \b
    trunkline queue move tasks.dead tasks
    trunkline queue move tasks.dead tasks -n 1
    """
    wanted = {} if count is None else {"count": count}
    found = cast("dict[str, int]", client.manage("move", source=source, destination=destination, **wanted))
    if as_json:
        print_json({"source": source, "destination": destination, "moved": found["moved"]})
    else:
        remark(f"moved {found['moved']} messages from {source} to {destination}")


@queue.command
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=10, help="How many.  [default: 10]")
@json_option
@amqp_options
def delayed(client: AmqpClient, name: str, count: int, as_json: bool) -> None:
    """Show the messages that wait for their time, soonest first.

    \b
    trunkline queue delayed reminders
    trunkline queue cancel reminders 17
    """
    found = listed(client.manage("scheduled", queue=name, count=count))
    if as_json:
        print_json(cast(Json, found))
        return
    rows: list[tuple[Cell, ...]] = []
    for entry in found:
        due = datetime.fromtimestamp(cast(int, entry["due_ms"]) / 1000, UTC).isoformat(" ", "seconds")
        held = entry["body"] is not None
        body = base64.b64decode(str(entry["body"])).decode("utf-8", "replace") if held else "(in the log)"
        rows.append((cast(int, entry["id"]), due, cast(Cell, entry["size_bytes"]) if held else "", _cut(body)))
    print_table(("id", "due", "bytes", "body"), rows, empty=f"no message of {name} waits for its time")


@queue.command
@click.argument("name")
@click.argument("number", type=click.IntRange(0), metavar="ID")
@json_option
@amqp_options
def cancel(client: AmqpClient, name: str, number: int, as_json: bool) -> None:
    """Drop a message that waits for its time.

    \b
    trunkline queue cancel reminders 17
    """
    client.manage("cancel", queue=name, id=number)
    if as_json:
        print_json({"queue": name, "cancelled": number})
    else:
        remark(f"cancelled message {number} of {name}")


@queue.command
@click.argument("name")
@json_option
@amqp_options
def stats(client: AmqpClient, name: str, as_json: bool) -> None:
    """Show everything that is known of a queue.

    \b
    trunkline queue stats tasks
    """
    entry = listed(client.manage("queues", name=name))[0]
    if as_json:
        print_json(cast(Json, entry))
        return
    rows = [(field.replace("_", " "), _shown(value)) for field, value in entry.items()]
    print_table(("what", "value"), rows)


def _cut(body: str) -> str:
    return body if len(body) <= _MAX_SHOWN_CHARS else body[: _MAX_SHOWN_CHARS - 1] + "…"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={inner}" for name, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
