"""The audit trail: logins, refusals and administrative changes, as records of the topic `__audit`.

A record's value is a JSON object:

    time_ms, kind      when, and which of the kinds below
    user, host         whose principal it was
    protocol           kafka, amqp, mqtt, … or "" for the broker's own
    target             what it was about: `topic orders`, `user alice`
    text               in words, where there is more to say
    count              how many such events the record stands for, if not one

Nobody waits for a record: `add` puts it aside, and all that one pass of the event loop brings is one append. A change is
synced to disk, the other kinds are left to the operating system, so they survive a killed process.

Whoever reaches a port can fail to log in, over and over. So each kind has an allowance: `_BURST` records at once, and
`_PER_SECOND` in the long run. What exceeds it is counted by address (`_MAX_HOSTS` of them, the others as one) and becomes
one record per address every `_SUM_S` seconds. What waits to be written is bounded by `_MAX_PENDING`; the topic by its
settings, `AUDIT_CONFIG` and what the broker is configured with.

Only administrators read the topic.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline.clock import Clock
from trunkline.log.errors import LogError
from trunkline.log.names import AUDIT_TOPIC
from trunkline.log.portions import read_portion
from trunkline.log.records import NO_HEADERS, LightNewRecord, encode_records
from trunkline.log.state_topic import StateTopic
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.security.principal import Principal

logger = logging.getLogger(__name__)

LOGIN: Final = "login"
LOGIN_REFUSED: Final = "login refused"
ACCESS_REFUSED: Final = "access refused"
CHANGE: Final = "change"
KINDS: Final = (LOGIN, LOGIN_REFUSED, ACCESS_REFUSED, CHANGE)

AUDIT_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": str(90 * 86_400_000),
    "retention.bytes": str(256 << 20),
    "segment.bytes": str(16 << 20),
}
ELSEWHERE: Final = "other addresses"
MAX_READ: Final = 1_000
_TP: Final = TopicPartition(AUDIT_TOPIC, 0)
_READ_BYTES: Final = 256 * 1024
_BURST: Final = {CHANGE: 1_000}
_BURST_IF_NOT_SAID: Final = 100
_PER_SECOND: Final = 20.0
_MAX_HOSTS: Final = 20
_SUM_S: Final = 10.0
_MAX_PENDING: Final = 10_000
_MAX_TEXT_CHARS: Final = 500

Json = dict[str, object]


class AuditedPage(NamedTuple):
    events: list[Json]
    following: int  # where to read on


class Audit:
    def __init__(self, store: LogStore, clock: Clock, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are the topic's, where they differ from AUDIT_CONFIG."""
        self._store = store
        self._clock = clock
        self._settings = {**AUDIT_CONFIG, **(settings or {})}
        self._topic = StateTopic(store, clock, AUDIT_TOPIC, self._settings)
        self._allowances = {kind: _Allowance(_BURST.get(kind, _BURST_IF_NOT_SAID), clock) for kind in KINDS}
        self._sums: dict[tuple[str, str], _Sum] = {}
        self._pending: list[LightNewRecord] = []
        self._dropped = 0
        self._durability = Durability.OS
        self._writing: asyncio.Task[None] | None = None
        self._summing: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Make the topic, or give it the settings that the broker is configured with now."""
        await self._topic.open()
        info = self._store.topic(AUDIT_TOPIC)
        if info is not None and dict(info.config.overrides) != self._settings:
            await self._store.configure_topic(AUDIT_TOPIC, self._settings)

    async def close(self) -> None:
        """Write what is left."""
        if self._summing is not None:
            self._summing.cancel()
            self._summing = None
        self._sum_up()
        while self._writing is not None:
            await self._writing

    # -- writing -------------------------------------------------------------------------------------------------------

    def add(
        self, kind: str, principal: Principal, *, protocol: str = "", target: str = "", text: str = "", count: int = 1
    ) -> None:
        """Note that this happened; `kind` is one of KINDS. Never raises, never waits."""
        if self._allowances[kind].take():
            self._put(kind, principal.name, principal.host, protocol, target, text, count)
            return
        where = (kind, principal.host)
        if where not in self._sums and sum(known == kind for known, _ in self._sums) >= _MAX_HOSTS:
            where = (kind, ELSEWHERE)
        self._sums[where] = _Sum(
            self._sums[where].events + count if where in self._sums else count, principal.name, protocol, target, text
        )
        if self._summing is None:
            self._summing = asyncio.get_running_loop().call_later(_SUM_S, self._sum_up)

    def _sum_up(self) -> None:
        self._summing = None
        sums, self._sums = self._sums, {}
        for (kind, host), (count, name, protocol, target, text) in sums.items():
            self._put(kind, name, host, protocol, target, text, count)

    def _put(self, kind: str, name: str, host: str, protocol: str, target: str, text: str, count: int) -> None:
        if len(self._pending) >= _MAX_PENDING:
            self._dropped += count
            return
        event: Json = {"time_ms": self._clock.wall_ms(), "kind": kind, "user": name[:_MAX_TEXT_CHARS], "host": host}
        for field, words in (("protocol", protocol), ("target", target), ("text", text)):
            if words:
                event[field] = words[:_MAX_TEXT_CHARS]
        if count != 1:
            event["count"] = count
        value = json.dumps(event, separators=(",", ":"), ensure_ascii=True).encode()
        self._pending.append((None, value, NO_HEADERS, -1))
        if kind == CHANGE:
            self._durability = Durability.DISK
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="audit trail")

    async def _write(self) -> None:
        try:
            while self._pending:
                pending, self._pending = self._pending, []
                durability, self._durability = self._durability, Durability.OS
                await self._store.append(_TP, encode_records(pending, timestamp_ms=self._clock.wall_ms()), durability)
        except LogError as error:
            self._dropped += len(self._pending)
            self._pending = []
            logger.error("events are missing in the audit trail: %s", error)
        finally:
            self._writing = None
            if self._dropped:
                logger.error("%d events are missing in the audit trail", self._dropped)
                self._dropped = 0

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, offset: int | None, count: int) -> AuditedPage:
        """Events from an offset on, at most `count` and MAX_READ; without an offset the last ones."""
        count = min(count, MAX_READ)
        bounds = self._store.bounds(_TP)
        start = bounds.high_watermark - count if offset is None else offset
        following = max(start, bounds.log_start_offset)
        events: list[Json] = []
        while len(events) < count:
            portion = await read_portion(self._store, _TP, following, _READ_BYTES)
            if portion.following == following:
                break
            following = portion.following
            for at, _, _, value, _ in portion.records:
                if len(events) == count:
                    return AuditedPage(events, at)
                events.append({"offset": at, **json.loads(value or b"{}")})
        return AuditedPage(events, following)


class _Sum(NamedTuple):
    """Events that were only counted, with the last of them."""

    events: int
    name: str
    protocol: str
    target: str
    text: str


class _Allowance:
    """A bucket of `burst` events that fills again by `_PER_SECOND`."""

    __slots__ = ("_at_ms", "_burst", "_clock", "_left")

    def __init__(self, burst: int, clock: Clock) -> None:
        self._burst = float(burst)
        self._left = float(burst)
        self._clock = clock
        self._at_ms = clock.monotonic_ms()

    def take(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        self._left = min(self._burst, self._left + (now_ms - self._at_ms) / 1000 * _PER_SECOND)
        self._at_ms = now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True
