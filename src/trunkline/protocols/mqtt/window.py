"""The window: publications that were sent to a client with QoS 1 or 2 and are not yet complete.

    QoS 1   PUBLISH sent, AWAIT_PUBACK    -> PUBACK: done
    QoS 2   PUBLISH sent, AWAIT_PUBREC    -> PUBREC: PUBREL sent, AWAIT_PUBCOMP -> PUBCOMP: done

A session that outlives its connection keeps for each entry where its record is, not the record: on reconnection it is read
again from the log. Entries keep the order in which they were sent, which is the order in which they are sent again
[MQTT-4.6.0-1]. A message that is in no log (see `mapping`) is kept itself, in memory.

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

    def add(self, entry: Inflight) -> int:
        """Give the entry a packet identifier. There must be room."""
        entries = self.entries
        packet_id = self._last_id
        while True:
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            if packet_id not in entries:
                break
        self._last_id = packet_id
        entries[packet_id] = entry
        return packet_id

    def acknowledged(self, packet_id: int) -> bool:
        """PUBACK; False if no such publication waits for one."""
        entry = self.entries.get(packet_id)
        if entry is None or entry[0] != AWAIT_PUBACK:
            return False
        del self.entries[packet_id]
        return True

    def received(self, packet_id: int) -> bool:
        """PUBREC; False if no such publication waits for one, or has waited."""
        entry = self.entries.get(packet_id)
        if entry is None or entry[0] == AWAIT_PUBACK:
            return False
        self.entries[packet_id] = UNKEPT[AWAIT_PUBCOMP]
        return True

    def completed(self, packet_id: int) -> bool:
        """PUBCOMP; False if no such publication waits for one."""
        entry = self.entries.get(packet_id)
        if entry is None or entry[0] != AWAIT_PUBCOMP:
            return False
        del self.entries[packet_id]
        return True

    def drop(self, packet_id: int) -> None:
        self.entries.pop(packet_id, None)
