"""The window: publications that were sent to a client with QoS 1 or 2 and are not yet complete.

    QoS 1   PUBLISH sent, AWAIT_PUBACK    -> PUBACK: done
    QoS 2   PUBLISH sent, AWAIT_PUBREC    -> PUBREC: PUBREL sent, AWAIT_PUBCOMP -> PUBCOMP: done

A session that outlives its connection keeps for each entry where its record is, not the record: on reconnection it is read
again from the log. Entries keep the order in which they were sent, which is the order in which they are sent again
[MQTT-4.6.0-1]. A message that is in no log (see `mapping`) is kept itself, in memory.

What comes and goes in runs is entered and taken out in one call.

An acknowledgement of another kind than the publication waits for is a violation (`WrongAcknowledgement`), since one side
has lost count. Two are not: PUBREC again, of a client that has not seen our PUBREL yet; and any acknowledgement of an
identifier that is in no use, since its publication may have expired or have been acknowledged twice.

Bounded by `limit`: the broker's own, or the client's Receive Maximum if that is smaller.
"""

from __future__ import annotations

from typing import NamedTuple

from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.message import NOT_STORED, Message

AWAIT_PUBACK = 1  # these two are the QoS
AWAIT_PUBREC = 2
AWAIT_PUBCOMP = 3
MAX_PACKET_ID = 0xFFFF


_AWAITED = ("nothing", "PUBACK", "PUBREC", "PUBCOMP")


class WrongAcknowledgement(Exception):
    """An acknowledgement that is not the one that its publication waits for."""

    def __init__(self, kind: str, packet_id: int, awaited: int) -> None:
        super().__init__(f"{kind} for packet identifier {packet_id}, which waits for {_AWAITED[awaited]}")


class Inflight(NamedTuple):
    state: int
    partition: TopicPartition | None = None
    offset: int = NOT_STORED
    message: Message | None = None


UNKEPT = (Inflight(0), Inflight(AWAIT_PUBACK), Inflight(AWAIT_PUBREC), Inflight(AWAIT_PUBCOMP))


class Window:
    __slots__ = ("_last_id", "entries", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.entries: dict[int, Inflight] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self.entries)

    def full(self) -> bool:
        return len(self.entries) >= self.limit

    def room(self) -> int:
        return self.limit - len(self.entries)

    def add(self, entry: Inflight) -> int:
        """Give the entry a packet identifier. There must be room."""
        (packet_id,) = self.free_ids(1)
        self.entries[packet_id] = entry
        return packet_id

    def free_ids(self, count: int) -> list[int]:
        """The next packet identifiers that are free, for so many entries. There must be room."""
        entries = self.entries
        first = self._last_id + 1
        following = range(first, first + count)
        if first + count - 1 <= MAX_PACKET_ID and entries.keys().isdisjoint(following):
            packet_ids = list(following)
        else:
            packet_ids = []
            packet_id = self._last_id
            while len(packet_ids) < count:
                packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
                if packet_id not in entries:
                    packet_ids.append(packet_id)
        self._last_id = packet_ids[-1]
        return packet_ids

    def acknowledged(self, packet_ids: list[int]) -> bool:
        """PUBACKs; whether any of these publications waited for one."""
        entries = self.entries
        before = len(entries)
        for packet_id in packet_ids:
            entry = entries.get(packet_id)
            if entry is not None:
                if entry[0] != AWAIT_PUBACK:
                    raise WrongAcknowledgement("PUBACK", packet_id, entry[0])
                del entries[packet_id]
        return len(entries) < before

    def received(self, packet_ids: list[int]) -> list[int]:
        """PUBRECs; returns those of publications that wait for one, or have waited."""
        entries = self.entries
        released = UNKEPT[AWAIT_PUBCOMP]
        known: list[int] = []
        for packet_id in packet_ids:
            entry = entries.get(packet_id)
            if entry is not None:
                if entry[0] == AWAIT_PUBACK:
                    raise WrongAcknowledgement("PUBREC", packet_id, AWAIT_PUBACK)
                entries[packet_id] = released
                known.append(packet_id)
        return known

    def completed(self, packet_ids: list[int]) -> bool:
        """PUBCOMPs; whether any of these publications waited for one."""
        entries = self.entries
        before = len(entries)
        for packet_id in packet_ids:
            entry = entries.get(packet_id)
            if entry is not None:
                if entry[0] != AWAIT_PUBCOMP:
                    raise WrongAcknowledgement("PUBCOMP", packet_id, entry[0])
                del entries[packet_id]
        return len(entries) < before

    def refused(self, packet_id: int) -> bool:
        """A PUBREC that says that the client does not want the publication; whether it waited for one."""
        entry = self.entries.get(packet_id)
        if entry is None:
            return False
        if entry[0] != AWAIT_PUBREC:
            raise WrongAcknowledgement("PUBREC with an error", packet_id, entry[0])
        del self.entries[packet_id]
        return True

    def drop(self, packet_id: int) -> None:
        self.entries.pop(packet_id, None)
