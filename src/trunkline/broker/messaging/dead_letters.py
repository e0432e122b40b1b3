"""Dead letters: the history that a message carries from queue to queue.

A message that a queue gives up is published again, to the queue's dead-letter exchange, with its history in record
headers, for every protocol alike:

    x-death                       JSON: one object per queue and reason, latest first, each
                                  {"count", "reason", "queue", "time" (s), "exchange", "routing-keys", "original-expiration"?}
    x-first-death-queue, …-reason, …-exchange    what happened first; never changed afterwards
    x-last-death-queue, …-reason, …-exchange     what happened last

Copies: the message's own routing key and those in its header CC (and `amqp.bcc`, which receivers do not see) are where it goes,
and those that receivers may know are `routing-keys` in its history; unless the queue sets the key of its dead letters: then
that is the only one, and the message has no copies from there on.

As in RabbitMQ: a second death in the same queue for the same reason raises that entry's count and moves it to the front;
the message loses its own expiry (else it would die again at once); what a client claims of a first death does not count
if it knows of no death; and a cycle in which no client rejected the
message is cut: it is dropped when it would come back to a queue where it died, with no rejection since.

Bounded: `MAX_DEATHS` entries; the oldest go. Anybody can write these headers: what is no list of objects, is larger than
`MAX_DEATHS_BYTES` or nested deeper than `MAX_DEATHS_DEPTH` is no history, and counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from trunkline.log.batch import MAX_RECORD_HEADERS
from trunkline.log.records import decode_headers, encode_headers

MAX_DEATHS: Final = 64
MAX_DEATHS_BYTES: Final = 256 << 10
MAX_DEATHS_DEPTH: Final = 16

EXCHANGE_HEADER: Final = "amqp.exchange"
ROUTING_KEY_HEADER: Final = "amqp.routing-key"
EXPIRATION_HEADER: Final = "amqp.expiration"
COPIES_HEADER: Final = "CC"
BLIND_COPIES_HEADER: Final = "amqp.bcc"
DEATHS_HEADER: Final = "x-death"
_MAX_KEPT: Final = MAX_RECORD_HEADERS - 16  # of a message's own headers: its history must fit, too
_FIRST: Final = "x-first-death-"
_LAST: Final = "x-last-death-"

REJECTED: Final = "rejected"


class DeadLetter(NamedTuple):
    """A message on its way to a dead-letter exchange. `section` is its new header section."""

    routing_keys: tuple[str, ...]
    section: bytes
    died_before_in: frozenset[str]  # queues that it may not come back to, as no client has rejected it since


def bury(section: bytes, queue: str, reason: str, *, routing_key: str | None, exchange: str, now_ms: int) -> DeadLetter:
    """The message's headers after one more death. `routing_key` None keeps the message's own."""
    kept: list[tuple[str, bytes | None]] = []
    found: dict[str, str] = {}
    deaths: list[dict[str, object]] = []
    for name, value in decode_headers(section):
        if name == DEATHS_HEADER:
            deaths = read_deaths(value) or []
        elif name in {EXCHANGE_HEADER, ROUTING_KEY_HEADER, EXPIRATION_HEADER}:
            found[name] = (value or b"").decode("utf-8", "replace")
        elif not name.startswith(_LAST):
            kept.append((name, value))
    del kept[_MAX_KEPT:]
    own_key = found.get(ROUTING_KEY_HEADER, queue)
    own_exchange = found.get(EXCHANGE_HEADER, "")
    copies: tuple[str, ...] = ()
    blind_copies: tuple[str, ...] = ()
    if EXCHANGE_HEADER in found:  # else another protocol's, to which these names mean nothing
        copies, blind_copies = _read_keys(kept, COPIES_HEADER), _read_keys(kept, BLIND_COPIES_HEADER)
        if routing_key is not None:
            kept = [header for header in kept if header[0] not in {COPIES_HEADER, BLIND_COPIES_HEADER}]
    if not deaths:
        kept = [header for header in kept if not header[0].startswith(_FIRST)]
    known_keys = (own_key, *copies)
    deaths = _add_death(deaths, queue, reason, own_exchange, known_keys, found.get(EXPIRATION_HEADER), now_ms)
    first = {name for name, _ in kept}
    died = (("queue", queue), ("reason", reason), ("exchange", own_exchange))
    kept += [(_FIRST + what, text.encode()) for what, text in died if _FIRST + what not in first]
    kept += [(_LAST + what, text.encode()) for what, text in died]
    keys = (*known_keys, *blind_copies) if routing_key is None else (routing_key,)
    headers = [
        (EXCHANGE_HEADER, exchange.encode()),
        (ROUTING_KEY_HEADER, keys[0].encode()),
        *kept,
        (DEATHS_HEADER, json.dumps(deaths, separators=(",", ":")).encode()),
    ]
    return DeadLetter(keys, encode_headers(headers), _cycle(deaths))


def is_history(name: str) -> bool:
    """Whether a header tells of a message's deaths, and so is the broker's to change."""
    return name == DEATHS_HEADER or name.startswith((_FIRST, _LAST))


def _read_keys(headers: Sequence[tuple[str, bytes | None]], name: str) -> tuple[str, ...]:
    """The strings of a JSON array; other things in it are no routing keys."""
    for found, value in headers:
        if found == name:
            try:
                keys = json.loads(value or b"[]")
            except (ValueError, RecursionError):
                return ()
            return tuple(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else ()
    return ()


def read_deaths(value: bytes | None) -> list[dict[str, object]] | None:
    """The objects in a message's history; None for what is none, whoever wrote it."""
    if value is None or len(value) > MAX_DEATHS_BYTES:
        return None
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, list) or _deeper_than(MAX_DEATHS_DEPTH, read):
        return None
    return [dict(death) for death in read if isinstance(death, dict)]


def _deeper_than(levels: int, value: object) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(_deeper_than(levels - 1, item) for item in value)


def _add_death(
    deaths: Sequence[dict[str, object]],
    queue: str,
    reason: str,
    exchange: str,
    routing_keys: Sequence[str],
    expiration: str | None,
    now_ms: int,
) -> list[dict[str, object]]:
    again = next((death for death in deaths if death.get("queue") == queue and death.get("reason") == reason), None)
    if again is None:
        again = {
            "count": 0,
            "reason": reason,
            "queue": queue,
            "time": now_ms // 1000,
            "exchange": exchange,
            "routing-keys": list(routing_keys),
        }
        if expiration is not None:
            again["original-expiration"] = expiration
    count = again.get("count")
    again["count"] = (count if isinstance(count, int) else 0) + 1
    return [again, *(death for death in deaths if death is not again)][:MAX_DEATHS]


def _cycle(deaths: Sequence[dict[str, object]]) -> frozenset[str]:
    """The queues of the latest deaths, back to the last one by a client's rejection."""
    since: set[str] = set()
    for death in deaths:
        if death.get("reason") == REJECTED:
            break
        since.add(str(death.get("queue")))
    return frozenset(since)
