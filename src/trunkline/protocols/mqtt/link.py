"""The outgoing half of a connection: what is to be sent, when it may leave, and whether the client takes it.

Nothing is written while packets are being handled. Output is collected (`send`) and written once, at the end of the turn,
after what it depends on (see `hub`). Acknowledgements of publications are collected apart: the hub takes them at the end
of the turn and gives them back when what the turn appended is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Protocol

from trunkline.broker.counters import MqttCounters
from trunkline.protocols.mqtt.agenda import Agenda
from trunkline.protocols.mqtt.codec import Properties, TopicAliases, encode, encode_acknowledgements
from trunkline.protocols.mqtt.errors import ADMINISTRATIVE_ACTION, SESSION_TAKEN_OVER
from trunkline.protocols.mqtt.packets import (
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Auth,
    ConnAck,
    Disconnect,
    PubAck,
    PubRec,
    SubAck,
    UnsubAck,
)
from trunkline.protocols.mqtt.promises import Acks
from trunkline.security.principal import Principal, anonymous

VERSION_NAMES = {V31: "3.1", V311: "3.1.1", V5: "5.0"}


class Outlet(Protocol):
    """What a connection asks of its socket."""

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


class Link(ABC):
    """A connection, as its session knows it."""

    __slots__ = ("_acks", "_agenda", "_counters", "_out", "_outlet", "_releases", "_touched", "aliases", "answers_due",
                 "client_id", "client_max_packet_bytes", "particular", "paused", "peer", "phase", "principal", "sent_messages",
                 "unacknowledged", "user_name", "version", "wants_reasons")  # fmt: skip

    def __init__(self, agenda: Agenda, counters: MqttCounters, outlet: Outlet, peer: str) -> None:
        self._agenda = agenda
        self._counters = counters
        self._outlet = outlet
        self.peer = peer
        self.principal: Principal = anonymous(peer)
        self.client_id = ""
        self.phase = Phase.NEW
        self.version = 0
        self.user_name: str | None = None
        self.aliases: TopicAliases | None = None
        self.client_max_packet_bytes = 0  # 0: no limit
        self.wants_reasons = True  # the client's Request Problem Information
        self.particular = False  # whether its PUBLISH packets differ from everyone else's
        self.answers_due = 0  # to SUBSCRIBE and UNSUBSCRIBE: retained messages come after them
        self.paused = False  # the socket does not take more
        self.sent_messages = 0
        self._out: list[bytes] = []
        self._touched = False
        self._acks: list[Acks] = []
        self._releases: list[int] = []
        self.unacknowledged = 0  # publications of the client, QoS 1 and 2, that are not complete

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

    @abstractmethod
    def congested(self) -> bool:
        """Whether QoS 0 messages are to be dropped: the client does not take what it has been sent."""

    @abstractmethod
    def refuse(self, reason_code: int, text: str) -> None:
        """End the connection because of something that the client, or the broker, did."""

    def taken_over(self) -> None:
        self.refuse(SESSION_TAKEN_OVER, "")

    def killed(self) -> None:
        self.refuse(ADMINISTRATIVE_ACTION, "")

    # -- out -----------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write at the end of the turn."""
        self._out.append(data)
        if not self._touched:
            self._touched = True
            self._agenda.touch(self)

    def _touch(self) -> None:
        if not self._touched:
            self._touched = True
            self._agenda.touch(self)

    def flush(self) -> None:
        """Write what was collected. Called by the hub at the end of a turn."""
        data = self.take_output()
        if data:
            self.write(data)

    def take_output(self) -> bytes:
        """What was collected, to be written in this order."""
        self._touched = False
        if self.phase is Phase.CLOSED:
            self._releases = []
            self._out = []
            return b""
        if self._releases:
            self._out.append(encode_acknowledgements(PUBREL, self._releases))
            self._releases = []
        out = self._out
        if not out:
            return b""
        self._out = []
        self._counters.messages_sent += self.sent_messages
        self.sent_messages = 0
        return out[0] if len(out) == 1 else b"".join(out)

    def write(self, data: bytes) -> None:
        if self.phase is not Phase.CLOSED:
            self._counters.bytes_sent += len(data)
            self._outlet.write(data)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._touch()

    def fitting(
        self, packet: ConnAck | Disconnect | Auth | SubAck | UnsubAck | PubAck | PubRec, text: str = ""
    ) -> bytes | None:
        """The packet, with this reason string where the client wants to know and it fits; None if not even that does."""
        if text and self.version == V5 and self.wants_reasons:
            plain = packet.properties
            packet.properties = Properties()
            packet.properties.reason_string = text
            told = encode(packet, V5)
            packet.properties = plain
            if self._fits(told):
                return told
        data = encode(packet, self.version)
        return data if self._fits(data) else None

    def _fits(self, data: bytes) -> bool:
        return not self.client_max_packet_bytes or len(data) <= self.client_max_packet_bytes

    def send_releases(self, packet_ids: list[int]) -> None:
        self._releases += packet_ids
        self._touch()

    # -- acknowledgements to the client --------------------------------------------------------------------------------

    def acknowledge(self, kind: int, packet_ids: list[int]) -> None:
        """Send these when the turn is stored."""
        acks = self._acks
        if not acks:
            self._agenda.acknowledge_later(self)
        acks.append((kind, packet_ids))

    def answer(self, packet: bytes) -> None:
        """Send this when the turn is stored, in the order of the acknowledgements."""
        if not self._acks:
            self._agenda.acknowledge_later(self)
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
                self.unacknowledged -= len(packet_ids)
        if not self._touched:
            self.flush()
