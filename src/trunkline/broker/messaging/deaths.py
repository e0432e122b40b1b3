"""The deaths of a message: the history that it carries from queue to queue, in record headers, for every protocol alike.

    x-death                       JSON: one object per queue and reason, latest first, each
                                  {"count", "reason", "queue", "time" (s), "exchange", "routing-keys", "original-expiration"?}
    x-first-death-queue, …-reason, …-exchange    what happened first; never changed afterwards
    x-last-death-queue, …-reason, …-exchange     what happened last

Bounded: `MAX_DEATHS` entries; the oldest go. Anybody can write these headers: what is no list of objects, is larger than
`MAX_DEATHS_BYTES` or nested deeper than `MAX_DEATHS_DEPTH` is no history, and counts for nothing; nor does an entry that no table of
headers could hold: a number of more than 64 bits, a name of more than 255 bytes, half a character.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

MAX_DEATHS: Final = 64
MAX_DEATHS_BYTES: Final = 256 << 10
MAX_DEATHS_DEPTH: Final = 16

DEATHS_HEADER: Final = "x-death"
FIRST_DEATH: Final = "x-first-death-"
LAST_DEATH: Final = "x-last-death-"

REJECTED: Final = "rejected"
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_MAX_NAME_BYTES: Final = 255


def is_history(name: str) -> bool:
    """Whether a header tells of a message's deaths, and so is the broker's to change."""
    return name == DEATHS_HEADER or name.startswith((FIRST_DEATH, LAST_DEATH))


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
    return [dict(death) for death in read if isinstance(death, dict) and _fits_a_table(death)]


def _fits_a_table(value: object) -> bool:
    if isinstance(value, dict):
        return all(_fits_a_table(name) and len(name.encode()) <= _MAX_NAME_BYTES for name in value) and all(
            map(_fits_a_table, value.values())
        )
    if isinstance(value, list):
        return all(map(_fits_a_table, value))
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return not isinstance(value, int) or _LEAST <= value <= _MOST


def _deeper_than(levels: int, value: object) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(_deeper_than(levels - 1, item) for item in value)


def add_death(
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
    again["count"] = (min(count, _MOST - 1) if isinstance(count, int) else 0) + 1
    return [again, *(death for death in deaths if death is not again)][:MAX_DEATHS]


def cycle_of(deaths: Sequence[dict[str, object]]) -> frozenset[str]:
    """The queues of the latest deaths, back to the last one by a client's rejection."""
    since: set[str] = set()
    for death in deaths:
        if death.get("reason") == REJECTED:
            break
        since.add(str(death.get("queue")))
    return frozenset(since)
