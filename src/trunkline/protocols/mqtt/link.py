"""The outgoing half of a connection: what is to be sent, when it may leave, and whether the client takes it.

Nothing is written while packets are being handled. Output is collected (`send`) and written once, at the end of the turn,
after what it depends on (see `hub`). Acknowledgements of publications are collected apart: the hub takes them at the end
of the turn and gives them back when what the turn appended is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from trunkline.protocols.mqtt.codec import encode_acknowledgements
from trunkline.protocols.mqtt.packets import PUBREC, PUBREL

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.hub import Hub


class Outlet(Protocol):
    """What a session asks of its connection."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close once what was written is sent."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def unsent_bytes(self) -> int: ...

    def crowded(self) -> bool:
        """Whether too much is unsent on all connections together."""


class Phase(IntEnum):
    NEW = 0
    AUTHENTICATING = 1
    CONNECTING = 2
    CONNECTED = 3
    CLOSED = 4


# A kind with the packet identifiers of consecutive publications, or a packet that says more.
Acks = tuple[int, list[int]] | bytes


class Link(ABC):
    __slots__ = ("_acks", "_hub", "_out", "_outlet", "_releases", "_touched", "_unacknowledged", "client_id", "paused", "peer",
                 "phase", "sent_messages")  # fmt: skip

    def __init__(self, hub: Hub, outlet: Outlet, peer: str) -> None:
        self._hub = hub
        self._outlet = outlet
        self.peer = peer
        self.client_id = ""
        self.phase = Phase.NEW
        self.paused = False  # the socket does not take more
        self.sent_messages = 0
        self._out: list[bytes] = []
        self._touched = False
        self._acks: list[Acks] = []
        self._releases: list[int] = []
        self._unacknowledged = 0  # publications of the client, QoS 1 and 2, that are not complete

    @property
    def ready(self) -> bool:
        return self.phase is Phase.CONNECTED

    @abstractmethod
    def pump(self) -> None:
        """Send what has waited for room. Called by the hub at the end of a turn."""

    @abstractmethod
    def storage_failed(self) -> None:
        """What is to be acknowledged could not be stored."""

    @abstractmethod
    def abandon(self) -> None:
        """Something is wrong with this connection that is our fault: close it without another word."""

    # -- out -----------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write at the end of the turn."""
        self._out.append(data)
        if not self._touched:
            self._touched = True
            self._hub.touch(self)

    def _touch(self) -> None:
        if not self._touched:
            self._touched = True
            self._hub.touch(self)

    def flush(self) -> None:
        """Write what was collected. Called by the hub at the end of a turn."""
        self._touched = False
        if self.phase is Phase.CLOSED:
            self._releases = []
            self._out = []
            return
        if self._releases:
            self._out.append(encode_acknowledgements(PUBREL, self._releases))
            self._releases = []
        out = self._out
        if not out:
            return
        self._out = []
        data = out[0] if len(out) == 1 else b"".join(out)
        counters = self._hub.counters
        counters.bytes_sent += len(data)
        counters.messages_sent += self.sent_messages
        self.sent_messages = 0
        self._outlet.write(data)

    def congested(self) -> bool:
        """Whether QoS 0 messages are to be dropped: the client does not take what it has been sent."""
        if not self.paused:
            return False
        return self._outlet.unsent_bytes() > self._hub.limits.max_unsent_bytes or self._outlet.crowded()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._touch()

    def send_releases(self, packet_ids: list[int]) -> None:
        self._releases += packet_ids
        self._touch()

    # -- acknowledgements to the client --------------------------------------------------------------------------------

    def _acknowledge(self, kind: int, packet_ids: list[int]) -> None:
        """Send these when the turn is stored."""
        acks = self._acks
        if not acks:
            self._hub.acknowledge_later(self)
        acks.append((kind, packet_ids))

    def _answer(self, packet: bytes) -> None:
        """Send this when the turn is stored, in the order of the acknowledgements."""
        if not self._acks:
            self._hub.acknowledge_later(self)
        self._acks.append(packet)

    def take_acks(self) -> list[Acks]:
        acks, self._acks = self._acks, []
        return acks

    def send_acks(self, acks: list[Acks]) -> None:
        if self.phase is not Phase.CONNECTED:
            return
        for each in acks:
            if isinstance(each, bytes):
                self._out.append(each)
                continue
            kind, packet_ids = each
            self._out.append(encode_acknowledgements(kind, packet_ids))
            if kind != PUBREC:
                self._unacknowledged -= len(packet_ids)
        if not self._touched:
            self.flush()
