"""Limits of users and virtual hosts, as RabbitMQ has them, and one of our own.

| of a user | `max-connections`, `max-channels` | AMQP connections, and channels of all of them |
|           | `max-message-rate`                | messages a second, by AMQP and MQTT: who sends more is read later |
| of a vhost | `max-connections`, `max-queues`   | AMQP connections, queues |

A negative limit is none. Memory only; bounded by `MAX_LIMITED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline.security.quotas import Meter

MAX_LIMITED: Final = 20_000
MAX_CONNECTIONS, MAX_CHANNELS, MAX_QUEUES = "max-connections", "max-channels", "max-queues"
MAX_MESSAGE_RATE = "max-message-rate"
USER, VHOST = "user", "vhost"
KNOWN: Final[Mapping[str, frozenset[str]]] = {
    USER: frozenset({MAX_CONNECTIONS, MAX_CHANNELS, MAX_MESSAGE_RATE}),
    VHOST: frozenset({MAX_CONNECTIONS, MAX_QUEUES}),
}


class InvalidLimit(ValueError):
    """A limit that cannot be stored; the text says why."""


class Limits:
    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str], dict[str, int]] = {}  # by kind and name
        self._meters: dict[str, Meter] = {}

    def put(self, kind: str, name: str, values: Mapping[str, object]) -> dict[str, int]:
        """All limits of a user or a virtual host; none removes them. Returns what is kept."""
        known = KNOWN.get(kind)
        if known is None:
            raise InvalidLimit(f"{kind!r} has no limits")
        found: dict[str, int] = {}
        for limit, value in values.items():
            if limit not in known:
                raise InvalidLimit(f"{limit!r} is no limit of a {kind}: there are {', '.join(sorted(known))}")
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidLimit(f"{limit} must be a whole number")
            if value >= 0:
                found[limit] = value
        if found and (kind, name) not in self.by_place and len(self.by_place) >= MAX_LIMITED:
            raise InvalidLimit(f"there are limits of {MAX_LIMITED} users and virtual hosts already")
        if found:
            self.by_place[kind, name] = found
        else:
            self.by_place.pop((kind, name), None)
        self._meters.clear()
        return found

    def of(self, kind: str, name: str, limit: str) -> int | None:
        found = self.by_place.get((kind, name))
        return None if found is None else found.get(limit)

    def rate_wait_ms(self, user: str, messages: int, now_ms: float) -> float:
        """Count what a user has sent; returns how many milliseconds to read no more of it."""
        bound = self.of(USER, user, MAX_MESSAGE_RATE)
        if bound is None:
            return 0.0
        meter = self._meters.get(user)
        if meter is None:
            meter = self._meters[user] = Meter()
        meter.add(messages, now_ms)
        return meter.wait_ms(max(bound, 0.1), now_ms)
