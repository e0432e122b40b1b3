"""Publishers and subscribers that cost next to nothing, so that what is measured is the broker.

Every PUBLISH is encoded before the clock starts, all of one length: sending is one `sendall` of a slice, receiving a
count of bytes, and the acknowledgements of a whole read are put together with strided slices, which copy in C. Only
QoS 2 at the receiving side has to look at each packet, because PUBLISH and PUBREL come mixed.

The payload begins and ends with a sequence number (publisher in the upper half). `verify` reads them all when the clock
has stopped: what is lost, doubled, torn or out of a publisher's order fails the measurement.

Limits: at QoS 1 and 2 a publisher has at most `WINDOW` messages unacknowledged. QoS 0 has no answer, and brokers drop
what a subscriber does not take in time, so there a publisher stays at most `LEAD` messages ahead of the slowest
subscriber, whose count it reads from memory shared between the processes.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence

from trunkline.bench.probe import ProbeError

TOPIC = "bench/load"
WINDOW = 100
LEAD = 2_000
BLOCK = 100
READ_BYTES = 1 << 20
TIMEOUT_S = 60.0
MAX_PACKET_ID = 65_535
SEQUENCE = struct.Struct(">Q")
PUBLISHER_SHIFT = 32

_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70
_CONNACK, _SUBACK, _PINGRESP = 0x20, 0x90, 0xD0


class StreamError(ProbeError):
    """The broker broke a promise of MQTT while it was measured."""


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def connect(address: str, client_id: str) -> socket.socket:
    """A blocking connection whose CONNECT (3.1.1, clean session, no keep-alive) was accepted."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = text("MQTT") + b"\x04\x02\x00\x00" + text(client_id)
    connection.sendall(b"\x10" + varint(len(body)) + body)
    if receive_exactly(connection, 4) != bytes((_CONNACK, 2, 0, 0)):
        raise StreamError("CONNECT was refused")
    return connection


def subscribe(connection: socket.socket, topic_filter: str, qos: int) -> None:
    body = b"\x00\x01" + text(topic_filter) + bytes((qos,))
    connection.sendall(b"\x82" + varint(len(body)) + body)
    if receive_exactly(connection, 5) != bytes((_SUBACK, 3, 0, 1, qos)):
        raise StreamError("SUBSCRIBE was refused")


def ping(connection: socket.socket) -> None:
    """Return when the broker has read everything sent before."""
    connection.sendall(b"\xc0\x00")
    if receive_exactly(connection, 2) != bytes((_PINGRESP, 0)):
        raise StreamError("no PINGRESP")


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise StreamError("the broker closed the connection")
        received += piece
    return bytes(received)


class Layout:
    """Where things are in a PUBLISH of `TOPIC` with a payload of this size."""

    def __init__(self, qos: int, size_bytes: int) -> None:
        if size_bytes < 2 * SEQUENCE.size:
            raise ValueError(f"a payload of {size_bytes} bytes has no room for two sequence numbers")
        body = len(text(TOPIC)) + (2 if qos else 0) + size_bytes
        self.qos = qos
        self.size_bytes = size_bytes
        self.head = bytes((0x30 | qos << 1,)) + varint(body) + text(TOPIC)
        self.payload_at = len(self.head) + (2 if qos else 0)
        self.packet_bytes = self.payload_at + size_bytes

    def encode(self, publisher: int, count: int) -> bytes:
        """All messages of a publisher, one after the other."""
        middle = b"x" * (self.size_bytes - 2 * SEQUENCE.size)
        packets: list[bytes] = []
        for number in range(count):
            sequence = SEQUENCE.pack(publisher << PUBLISHER_SHIFT | number)
            packet_id = (number % MAX_PACKET_ID + 1).to_bytes(2, "big") if self.qos else b""
            packets.append(self.head + packet_id + sequence + middle + sequence)
        return b"".join(packets)


class Publisher:
    """One publishing connection."""

    def __init__(self, connection: socket.socket, layout: Layout, number: int, count: int) -> None:
        self.connection = connection
        self.count = count
        self.sent = 0
        self.done = 0
        self._qos = layout.qos
        self._packet_bytes = layout.packet_bytes
        self._messages = memoryview(layout.encode(number, count))
        self._carry = b""

    def room(self) -> int:
        """How many messages the window takes now."""
        return min(WINDOW - (self.sent - self.done), self.count - self.sent)

    def send(self, count: int) -> None:
        start = self.sent * self._packet_bytes
        self.connection.sendall(self._messages[start : start + count * self._packet_bytes])
        self.sent += count

    def take_answers(self) -> None:
        """One read of acknowledgements, all four bytes long; PUBRECs are answered."""
        data = self.connection.recv(1 << 18)
        if not data:
            raise StreamError("the broker closed the connection")
        data = self._carry + data
        count = len(data) >> 2
        whole = count << 2
        self._carry = data[whole:]
        kinds = data[0:whole:4]
        if self._qos == 1:
            if kinds.count(_PUBACK) != count:
                raise StreamError("something else than a PUBACK")
            self.done += count
            return
        received = kinds.count(_PUBREC)
        completed = kinds.count(_PUBCOMP)
        if received + completed != count:
            raise StreamError("neither a PUBREC nor a PUBCOMP")
        self.done += completed
        if received == count:
            release = bytearray(data[:whole])
            release[0::4] = bytes((_PUBREL,)) * count
            self.connection.sendall(release)
        elif received:
            head = bytes((_PUBREL, 2))
            self.connection.sendall(
                b"".join([head + data[at + 2 : at + 4] for at in range(0, whole, 4) if data[at] == _PUBREC])
            )


class Subscriber:
    """One subscribed connection. `counts[index]` tells publishers how many messages it has."""

    def __init__(self, connection: socket.socket, layout: Layout, count: int) -> None:
        self.connection = connection
        self.count = count
        self.received = 0
        self._layout = layout
        self._total_bytes = count * layout.packet_bytes
        self._buffer = bytearray(self._total_bytes + (4 * count if layout.qos == 2 else 0) + READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._parsed = 0
        self._released = 0
        self._places: list[int] = []  # of messages in the buffer; QoS 2 only

    def read(self) -> bool:
        """One read, acknowledged. True when everything has come."""
        size = self.connection.recv_into(self._view[self._filled : self._filled + READ_BYTES])
        if not size:
            raise StreamError("the broker closed the connection")
        self._filled += size
        if self._layout.qos == 2:
            return self._walk()
        before, self.received = self.received, self._filled // self._layout.packet_bytes
        if self._layout.qos == 1 and self.received > before:
            self._acknowledge(before, self.received)
        return self._filled >= self._total_bytes

    def _acknowledge(self, first: int, end: int) -> None:
        step = self._layout.packet_bytes
        at, stop = first * step + self._layout.payload_at - 2, end * step
        count = end - first
        answer = bytearray(4 * count)
        answer[0::4] = bytes((_PUBACK,)) * count
        answer[1::4] = b"\x02" * count
        answer[2::4] = self._buffer[at:stop:step]
        answer[3::4] = self._buffer[at + 1 : stop : step]
        self.connection.sendall(answer)

    def _walk(self) -> bool:
        at, end, data = self._parsed, self._filled, self._view
        step, payload_at = self._layout.packet_bytes, self._layout.payload_at
        answers: list[bytes] = []
        while end - at >= 4:
            kind = data[at]
            if kind == 0x34:
                if end - at < step:
                    break
                answers.append(b"\x50\x02" + data[at + payload_at - 2 : at + payload_at])
                self._places.append(at)
                at += step
            elif kind == _PUBREL:
                answers.append(b"\x70\x02" + data[at + 2 : at + 4])
                self._released += 1
                at += 4
            else:
                raise StreamError(f"a packet of type 0x{kind:02x} among the messages")
        self._parsed = at
        self.received = len(self._places)
        if answers:
            self.connection.sendall(b"".join(answers))
        return self._released >= self.count

    def verify(self, publishers: int) -> None:
        """Every message once, whole, and in its publisher's order."""
        layout = self._layout
        places: Sequence[int] = self._places
        if layout.qos < 2:
            if self._filled != self._total_bytes:
                raise StreamError(f"{self._filled - self._total_bytes} bytes too many")
            places = range(0, self._total_bytes, layout.packet_bytes)
        if len(places) != self.count:
            raise StreamError(f"{len(places):,} messages instead of {self.count:,}")
        kind = 0x30 | layout.qos << 1
        last_at = layout.payload_at + layout.size_bytes - SEQUENCE.size
        following = [0] * publishers
        for place in places:
            (sequence,) = SEQUENCE.unpack_from(self._buffer, place + layout.payload_at)
            (repeated,) = SEQUENCE.unpack_from(self._buffer, place + last_at)
            publisher, number = sequence >> PUBLISHER_SHIFT, sequence & 0xFFFF_FFFF
            if self._buffer[place] != kind or sequence != repeated or publisher >= publishers:
                raise StreamError("a message is torn")
            if number != following[publisher]:
                raise StreamError(
                    f"message {number} of publisher {publisher} came where {following[publisher]} was due"
                )
            following[publisher] += 1


def publish_all(publishers: Sequence[Publisher], qos: int, counts: Sequence[int]) -> None:
    """Until everything is sent and, from QoS 1, acknowledged. `counts` are what the subscribers have received."""
    if qos == 0:
        _publish_unacknowledged(publishers, counts)
        for publisher in publishers:
            ping(publisher.connection)
        return
    poller = select.epoll()
    by_descriptor = {publisher.connection.fileno(): publisher for publisher in publishers}
    for descriptor, publisher in by_descriptor.items():
        poller.register(descriptor, select.EPOLLIN)
        publisher.send(publisher.room())
    while by_descriptor:
        events = poller.poll(TIMEOUT_S)
        if not events:
            raise StreamError(f"no acknowledgement for {TIMEOUT_S:g} s")
        for descriptor, _ in events:
            publisher = by_descriptor[descriptor]
            publisher.take_answers()
            room = publisher.room()
            if room > 0:
                publisher.send(room)
            elif publisher.done >= publisher.count:
                poller.unregister(descriptor)
                del by_descriptor[descriptor]
    poller.close()


def _publish_unacknowledged(publishers: Sequence[Publisher], counts: Sequence[int]) -> None:
    waiting = list(publishers)
    sent = seen = turn = 0
    last_progress = time.monotonic()
    while waiting:
        publisher = waiting[turn % len(waiting)]
        block = min(BLOCK, publisher.count - publisher.sent)
        if LEAD - (sent - seen) < block:
            slowest = min(counts)
            if slowest > seen:
                seen, last_progress = slowest, time.monotonic()
            elif time.monotonic() - last_progress > TIMEOUT_S:
                raise StreamError(f"a subscriber has {slowest:,} messages and gets no more")
            else:
                time.sleep(0.000_03)
            continue
        publisher.send(block)
        sent += block
        if publisher.sent >= publisher.count:
            waiting.remove(publisher)
        else:
            turn += 1


class Counts:
    """What `receive_all` tells the publishers: one number per subscriber, in memory that both processes see."""

    def __init__(self, shared: memoryview) -> None:
        self._shared = shared

    def __len__(self) -> int:
        return len(self._shared)

    def tell(self, index: int, count: int) -> None:
        self._shared[index] = count


def receive_all(subscribers: Sequence[Subscriber], counts: Counts) -> None:
    """Until every subscriber has everything."""
    poller = select.epoll()
    by_descriptor = {
        subscriber.connection.fileno(): (index, subscriber) for index, subscriber in enumerate(subscribers)
    }
    for descriptor in by_descriptor:
        poller.register(descriptor, select.EPOLLIN)
    while by_descriptor:
        events = poller.poll(TIMEOUT_S)
        if not events:
            had = [subscriber.received for subscriber in subscribers]
            raise StreamError(f"nothing for {TIMEOUT_S:g} s; received {had} of {subscribers[0].count:,}")
        for descriptor, _ in events:
            index, subscriber = by_descriptor[descriptor]
            finished = subscriber.read()
            counts.tell(index, subscriber.received)
            if finished:
                poller.unregister(descriptor)
                del by_descriptor[descriptor]
    poller.close()
