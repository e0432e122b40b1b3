"""A shared map: a compacted topic, of which the newest record of a key is its value.

The version of an entry is one more than its record's offset, so versions grow with every change and 0 means that there is
nothing. A change may name the version that it replaces; it is made only if that is still so. A change also carries an id of its
client's: a client that lost its connection asks again with the same id and is told what came of it, so that nothing is done twice.
`MAX_REMEMBERED` changes are remembered for that, across restarts, too.

To watch is to read the topic from the version behind the last that one knows: nothing is missed, however long one was away, but
what compaction has removed in favour of something newer.

The topic is `map.<name>`, with the virtual host before the name if it is not the default one. Kafka clients read it, and may write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from trunkline.broker.messaging import refusals
from trunkline.broker.shared.log import SharedLog
from trunkline.clock import Clock
from trunkline.log.records import LightNewRecord, LightRecord, decode_headers, encode_headers
from trunkline.log.store import LogStore

MAX_KEY_BYTES: Final = 1 << 10
MAX_VALUE_BYTES: Final = 1 << 20
MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 256 << 20
MAX_REMEMBERED: Final = 10_000
_TYPE_HEADER: Final = "content-type"
_CHANGE_HEADER: Final = "change"
_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.5"}


class Entry(NamedTuple):
    version: int
    value: bytes
    type: str


class Change(NamedTuple):
    key: str
    version: int
    value: bytes | None  # None: it was removed
    type: str


class Outcome(NamedTuple):
    done: bool
    version: int  # of the entry as it is now; 0: there is none


class SharedMap(SharedLog):
    def __init__(self, store: LogStore, clock: Clock, topic: str) -> None:
        super().__init__(store, clock, topic, _CONFIG)
        self._entries: dict[str, Entry] = {}
        self._size_bytes = 0
        self._remembered: dict[str, int] = {}  # changes by their ids, and the versions that they made

    def fold(self, record: LightRecord) -> None:
        offset, _, key, value, headers = record
        if key is None:
            return
        name = key.decode("utf-8", "replace")
        before = self._entries.pop(name, None)
        if before is not None:
            self._size_bytes -= len(before.value) + len(key)
        noted = dict(decode_headers(headers))
        if value is not None:
            kind = (noted.get(_TYPE_HEADER) or b"").decode("utf-8", "replace")
            self._entries[name] = Entry(offset + 1, value, kind)
            self._size_bytes += len(value) + len(key)
        change = noted.get(_CHANGE_HEADER)
        if change is not None:
            if len(self._remembered) >= MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[change.decode("utf-8", "replace")] = offset + 1

    async def get(self, key: str) -> Entry | None:
        await self.current()
        return self._entries.get(key)

    async def items(self) -> dict[str, Entry]:
        await self.current()
        return dict(self._entries)

    async def put(self, key: str, value: bytes, kind: str, change: str, expected: int | None = None) -> Outcome:
        """Set the key's value; with `expected`, if that is its version."""
        size = len(key.encode()) + len(value)
        if len(key.encode()) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
            raise refusals.precondition(f"a map takes keys of {MAX_KEY_BYTES} and values of {MAX_VALUE_BYTES} bytes")

        def room() -> None:
            if key not in self._entries and len(self._entries) >= MAX_ENTRIES:
                raise refusals.precondition(f"a map has at most {MAX_ENTRIES} entries")
            if self._size_bytes + size > MAX_BYTES:
                raise refusals.precondition(f"a map has at most {MAX_BYTES} bytes")

        return await self._change(key, value, kind, change, expected, room)

    async def remove(self, key: str, change: str, expected: int | None = None) -> Outcome:
        return await self._change(key, None, "", change, expected, None)

    async def _change(
        self,
        key: str,
        value: bytes | None,
        kind: str,
        change: str,
        expected: int | None,
        check: Callable[[], None] | None,
    ) -> Outcome:
        def decision() -> tuple[Outcome | None, list[LightNewRecord]]:
            made = self._remembered.get(change)
            if made is not None:
                return Outcome(True, made), []
            entry = self._entries.get(key)
            version = 0 if entry is None else entry.version
            if expected is not None and expected != version:
                return Outcome(False, version), []
            if value is None and entry is None:
                return Outcome(True, 0), []
            if check is not None:
                check()
            headers = encode_headers([(_CHANGE_HEADER, change.encode()), (_TYPE_HEADER, kind.encode())])
            return None, [(key.encode(), value, headers, -1)]

        outcome, offset = await self.decide(decision)
        if outcome is not None:
            return outcome
        return Outcome(True, offset + 1)

    async def changes(self, after: int, wait_s: float) -> tuple[list[Change], int]:
        """What was changed since a version, oldest first, and the version to go on from; waits for the first so long."""
        records, following = await self.read(after, wait_s)
        changes: list[Change] = []
        for offset, _, key, value, headers in records:
            if key is not None:
                kind = (dict(decode_headers(headers)).get(_TYPE_HEADER) or b"").decode("utf-8", "replace")
                changes.append(Change(key.decode("utf-8", "replace"), offset + 1, value, kind))
        return changes, following
