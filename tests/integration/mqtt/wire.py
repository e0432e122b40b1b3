"""A client that says exactly what a test tells it to: packets, or raw bytes, over a plain socket.

It answers nothing by itself. It reads with our own codec, so whatever the broker sends must also be well-formed: a
packet that the codec refuses fails the test.

To show that something does **not** arrive, send something that does after it, and see that arriving next; `quiet` does
so with a PINGREQ.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Self, TypeVar

from trunkline.protocols.mqtt.codec import MalformedPacket, Parser, Properties, encode
from trunkline.protocols.mqtt.packets import (
    V5,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)

TIMEOUT_SECONDS = 15.0
MAX_PACKET_BYTES = 64 << 20
SUBSCRIBE_ID = 60_000

P = TypeVar("P", bound=Packet)


class Closed(Exception):
    """The broker closed the connection."""


def properties(
    *, user_properties: list[tuple[str, str]] | None = None, **values: int | str | bytes | list[int] | None
) -> Properties:
    """Properties by name: `properties(receive_maximum=1)`."""
    made = Properties()
    made.user_properties = list(user_properties or [])
    for name, value in values.items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    return made


class Wire:
    def __init__(
        self,
        port: int,
        version: int = V311,
        *,
        topic_alias_maximum: int = 0,
        max_packet_bytes: int = MAX_PACKET_BYTES,
    ) -> None:
        self.version = version
        self.connack: ConnAck | None = None
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = Parser(
            server_side=False,
            version=version,
            max_packet_bytes=max_packet_bytes,
            topic_alias_maximum=topic_alias_maximum,
        )
        self._packets: deque[Packet] = deque()
        self._last_id = SUBSCRIBE_ID

    # -- sending

    def send(self, *packets: Packet) -> None:
        self.send_raw(b"".join(encode(packet, self.version) for packet in packets))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def try_send_raw(self, data: bytes) -> None:
        """Send what the broker may refuse to hear by closing first."""
        try:
            self._socket.sendall(data)
        except OSError:
            return

    # -- receiving

    def receive_raw(self, timeout_s: float = TIMEOUT_SECONDS) -> bytes:
        """Bytes as they come; none when the broker has closed."""
        self._socket.settimeout(timeout_s)
        try:
            return self._socket.recv(1 << 16)
        except ConnectionError:
            return b""

    def receive_any(self, timeout_s: float = TIMEOUT_SECONDS) -> Packet:
        self._socket.settimeout(timeout_s)
        while not self._packets:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            except TimeoutError:
                raise AssertionError(f"the broker sent nothing for {timeout_s:g} s") from None
            if not data:
                raise Closed
            for event in self._parser.feed(data):
                if isinstance(event, MalformedPacket):
                    raise AssertionError(f"the broker sent a malformed packet: {event}")
                self._packets.append(event)
        return self._packets.popleft()

    def receive(self, kind: type[P], timeout_s: float = TIMEOUT_SECONDS) -> P:
        """The next packet, which must be of this kind."""
        packet = self.receive_any(timeout_s)
        assert isinstance(packet, kind), f"wanted {kind.__name__}, got {packet!r}"
        return packet

    def receive_after(self, kind: type[P]) -> tuple[P, list[Packet]]:
        """The first packet of this kind, and those that came before it."""
        before: list[Packet] = []
        while True:
            packet = self.receive_any()
            if isinstance(packet, kind):
                return packet, before
            before.append(packet)

    def closed(self, *reason_codes: int, timeout_s: float = TIMEOUT_SECONDS) -> Disconnect | None:
        """The broker closes the connection; a DISCONNECT may come first, in 5.0 only, with one of these reason codes."""
        farewell: Disconnect | None = None
        while True:
            try:
                packet = self.receive_any(timeout_s)
            except Closed:
                return farewell
            assert isinstance(packet, Disconnect), f"wanted the connection closed, got {packet!r}"
            assert self.version == V5, "a server sends no DISCONNECT before 5.0"
            assert farewell is None, "two DISCONNECTs"
            assert not reason_codes or packet.reason_code in reason_codes, f"0x{packet.reason_code:02x}"
            farewell = packet

    def quiet(self) -> None:
        """Nothing has been sent to this client that it has not read: a ping is answered next."""
        self.send(PingReq())
        self.receive(PingResp)

    # -- conversations

    def connect(
        self,
        client_id: str = "",
        *,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
    ) -> ConnAck:
        self.send(Connect(self.version, client_id, clean_start, keep_alive_s, will, user_name, password, properties))
        self.connack = self.receive(ConnAck)
        return self.connack

    def subscribe(self, topic_filter: str, qos: int = 0, properties: Properties | None = None, **options: int) -> int:
        """Subscribe and return the reason code; retained messages are left for the test to read."""
        subscription = Subscription(
            topic_filter,
            qos,
            bool(options.get("no_local", 0)),
            bool(options.get("retain_as_published", 0)),
            options.get("retain_handling", 0),
        )
        packet_id = self._next_id()
        self.send(Subscribe(packet_id, [subscription], properties))
        suback = self.receive(SubAck)
        assert suback.packet_id == packet_id
        (code,) = suback.reason_codes
        return code

    def unsubscribe(self, topic_filter: str) -> None:
        packet_id = self._next_id()
        self.send(Unsubscribe(packet_id, [topic_filter]))
        assert self.receive(UnsubAck).packet_id == packet_id

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        qos: int = 1,
        *,
        retain: bool = False,
        packet_id: int = 1,
        properties: Properties | None = None,
    ) -> int:
        """Publish, carry the handshake through, and return the reason code of the first answer."""
        self.send(Publish(topic, payload, qos, retain, False, packet_id if qos else 0, properties))
        if qos == 0:
            return 0
        if qos == 1:
            acknowledged = self.receive(PubAck)
            assert acknowledged.packet_id == packet_id
            return acknowledged.reason_code
        received = self.receive(PubRec)
        assert received.packet_id == packet_id
        if received.reason_code < 0x80:
            self.send(PubRel(packet_id))
            assert self.receive(PubComp).packet_id == packet_id
        return received.reason_code

    def take(self) -> Publish:
        """The next packet, a PUBLISH, acknowledged in full."""
        message = self.receive(Publish)
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Publish) -> None:
        if message.qos == 1:
            self.send(PubAck(message.packet_id))
        elif message.qos == 2:
            self.send(PubRec(message.packet_id))
            release, before = self.receive_after(PubRel)
            assert release.packet_id == message.packet_id
            self._packets.extendleft(reversed(before))
            self.send(PubComp(message.packet_id))

    def disconnect(self) -> None:
        """Say goodbye and wait until the broker has closed, so that it has seen it."""
        self.send(Disconnect())
        self.closed()
        self.cut()

    def cut(self) -> None:
        """Close without a word."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _next_id(self) -> int:
        self._last_id = SUBSCRIBE_ID if self._last_id >= 65_535 else self._last_id + 1
        return self._last_id
