"""Dead letters: the history that a message carries from queue to queue.

A message that a queue gives up is published again, to the queue's dead-letter exchange, with its history in record
headers, for every protocol alike:

    x-death                       JSON: one object per queue and reason, latest first, each
                                  {"count", "reason", "queue", "time" (s), "exchange", "routing-keys", "original-expiration"?}
    x-first-death-queue, …-reason, …-exchange    what happened first; never changed afterwards
    x-last-death-queue, …-reason, …-exchange     what happened last

As in RabbitMQ: a second death in the same queue for the same reason raises that entry's count and moves it to the front;
the message loses its own expiry (else it would die again at once); and a cycle in which no client rejected the
message is cut: it is dropped when it would come back to a queue where it died, with no rejection since.

Bounded: `MAX_DEATHS` entries; the oldest go.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from trunkline.log.records import decode_headers, encode_headers

MAX_DEATHS: Final = 64

EXCHANGE_HEADER: Final = "amqp.exchange"
ROUTING_KEY_HEADER: Final = "amqp.routing-key"
EXPIRATION_HEADER: Final = "amqp.expiration"
DEATHS_HEADER: Final = "x-death"
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
            deaths = _read_deaths(value)
        elif name in {EXCHANGE_HEADER, ROUTING_KEY_HEADER, EXPIRATION_HEADER}:
            found[name] = (value or b"").decode("utf-8", "replace")
        elif not name.startswith(_LAST):
            kept.append((name, value))
    own_key = found.get(ROUTING_KEY_HEADER, queue)
    own_exchange = found.get(EXCHANGE_HEADER, "")
    deaths = _add_death(deaths, queue, reason, own_exchange, own_key, found.get(EXPIRATION_HEADER), now_ms)
    first = {name for name, _ in kept}
    died = (("queue", queue), ("reason", reason), ("exchange", own_exchange))
    kept += [(_FIRST + what, text.encode()) for what, text in died if _FIRST + what not in first]
    kept += [(_LAST + what, text.encode()) for what, text in died]
    key = own_key if routing_key is None else routing_key
    headers = [
        (EXCHANGE_HEADER, exchange.encode()),
        (ROUTING_KEY_HEADER, key.encode()),
        *kept,
        (DEATHS_HEADER, json.dumps(deaths, separators=(",", ":")).encode()),
    ]
    return DeadLetter((key,), encode_headers(headers), _cycle(deaths))


def _read_deaths(value: bytes | None) -> list[dict[str, object]]:
    try:
        read = json.loads(value or b"[]")
    except ValueError:
        return []
    return [dict(death) for death in read if isinstance(death, dict)] if isinstance(read, list) else []


def _add_death(
    deaths: Sequence[dict[str, object]],
    queue: str,
    reason: str,
    exchange: str,
    routing_key: str,
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
            "routing-keys": [routing_key],
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
