"""MQTT clients that keep to the protocol through everything: killed brokers, and connections that they cut themselves.

A client's own state (what it sent and was not acknowledged, which QoS 2 identifiers it has taken) is kept in the object, as
a device keeps it on its flash; a cut at any moment is therefore what `kill -9` of the client is to the broker.
"""

from __future__ import annotations

import random
import threading
import time

from tests.integration.mqtt.wire import Closed, Wire, properties
from trunkline.protocols.mqtt.packets import V5, PubAck, PubComp, Publish, PubRec, PubRel

WINDOW = 8
RETRY_SECONDS = 0.05
POLL_SECONDS = 0.5
KEPT = properties(session_expiry_interval=3_600)


class Device(threading.Thread):
    """Connects to its kept session again and again until it is `done` or told to stop."""

    def __init__(self, port: int, name: str, seed: int, cut_probability: float) -> None:
        super().__init__(name=name, daemon=True)
        self.port = port
        self.random = random.Random(seed)
        self.complaints: list[str] = []
        self.connections = 0
        self.cuts = 0
        self.stopping = threading.Event()
        self._cut_probability = cut_probability
        self._known = False

    def run(self) -> None:
        try:
            while not self.stopping.is_set() and not self.done():
                try:
                    self._one_connection()
                except (OSError, Closed):
                    time.sleep(RETRY_SECONDS)
        except Exception as error:
            self.complaints.append(f"{self.name}: {error!r}")

    def done(self) -> bool:
        return False

    def first_time(self, wire: Wire) -> None:
        """What to do on a connection whose session is new."""

    def resume(self, wire: Wire) -> None:
        """What to send when the session goes on."""

    def step(self, wire: Wire) -> None:
        raise Closed

    def _one_connection(self) -> None:
        with Wire(self.port, V5) as wire:
            connack = wire.connect(self.name, clean_start=False, properties=KEPT)
            self.connections += 1
            if self._known and not connack.session_present:
                self.complaints.append(f"{self.name}: the session was lost")
            if not self._known:
                self.first_time(wire)
                self._known = True
            self.resume(wire)
            while not self.stopping.is_set() and not self.done():
                self.step(wire)
                if self.random.random() < self._cut_probability:
                    self.cuts += 1
                    return


class PublishingDevice(Device):
    """Publishes numbers in order at one QoS, a few at a time."""

    def __init__(
        self, port: int, name: str, topic: str, qos: int, count: int, seed: int, cut_probability: float
    ) -> None:
        super().__init__(port, name, seed, cut_probability)
        self.topic = topic
        self.qos = qos
        self.count = count
        self.sent = 0
        self._under_way: dict[int, tuple[int, bool]] = {}  # packet id -> number, whether it is released

    def done(self) -> bool:
        return self.sent >= self.count and not self._under_way

    def finish(self) -> None:
        """Begin nothing more."""
        self.count = self.sent

    def resume(self, wire: Wire) -> None:
        for packet_id, (number, released) in self._under_way.items():
            wire.send(PubRel(packet_id) if released else self._packet(packet_id, number, dup=True))

    def step(self, wire: Wire) -> None:
        while len(self._under_way) < WINDOW and self.sent < self.count:
            # A whole turn through the identifiers, so that they are used again long after their end only.
            packet_id = self.sent % 1_000 + 1
            number, self.sent = self.sent, self.sent + 1
            self._under_way[packet_id] = (number, False)
            wire.send(self._packet(packet_id, number, dup=False))
        packet = wire.receive_any()
        if isinstance(packet, PubAck):
            self._under_way.pop(packet.packet_id, None)
        elif isinstance(packet, PubRec):
            entry = self._under_way.get(packet.packet_id)
            if entry is not None:
                self._under_way[packet.packet_id] = (entry[0], True)
            wire.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubComp):
            self._under_way.pop(packet.packet_id, None)

    def _packet(self, packet_id: int, number: int, *, dup: bool) -> Publish:
        return Publish(self.topic, b"%d" % number, self.qos, False, dup, packet_id)


class ReceivingDevice(Device):
    """Keeps what it receives, by topic, with each QoS 2 message counted once per handshake."""

    def __init__(self, port: int, name: str, topics: list[str], seed: int, cut_probability: float) -> None:
        super().__init__(port, name, seed, cut_probability)
        self.received: dict[str, list[int]] = {topic: [] for topic in topics}
        self._unreleased: set[int] = set()

    @property
    def subscribed(self) -> bool:
        return self._known

    def first_time(self, wire: Wire) -> None:
        for topic in self.received:
            wire.subscribe(topic, 2)

    def step(self, wire: Wire) -> None:
        try:
            packet = wire.receive_any(POLL_SECONDS)
        except AssertionError:
            return  # nothing came; look whether to stop
        if isinstance(packet, Publish):
            if packet.qos == 1:
                self.received[packet.topic].append(int(packet.payload))
                wire.send(PubAck(packet.packet_id))
            elif packet.qos == 2:
                if packet.packet_id not in self._unreleased:
                    self._unreleased.add(packet.packet_id)
                    self.received[packet.topic].append(int(packet.payload))
                wire.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            self._unreleased.discard(packet.packet_id)
            wire.send(PubComp(packet.packet_id))
