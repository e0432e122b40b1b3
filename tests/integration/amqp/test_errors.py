"""Violations get AMQP's own errors, as far as they go and no further; dead peers are noticed; strangers are kept out."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.amqp.brokers import HOST, AmqpBroker
from tests.integration.amqp.conftest import ConnectionFactory, QueueFactory
from tests.integration.amqp.definitions import LIMITED, NEIGHBOUR, OTHER_VHOST
from tests.integration.amqp.failing import channel_error
from tests.integration.amqp.reading import Inbox, get
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

HEADER = b"AMQP\x00\x00\x09\x01"
ANSWER_SECONDS = 20.0


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


class RawPeer:
    """A client that may break every rule."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), ANSWER_SECONDS)
        self._received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next_frame(self) -> tuple[int, int, bytes]:
        """The next frame that is no heartbeat; EOFError when the broker closed."""
        while True:
            while len(self._received) < 7:
                self._more()
            kind, channel, size = struct.unpack_from(">BHI", self._received)
            while len(self._received) < 8 + size:
                self._more()
            payload, self._received = self._received[7 : 7 + size], self._received[8 + size :]
            if kind != 8:
                return kind, channel, payload

    def expect(self, class_id: int, method_id: int) -> bytes:
        """The arguments of the next method, which must be this one."""
        kind, _, payload = self.next_frame()
        assert (kind, *struct.unpack_from(">HH", payload)) == (1, class_id, method_id), payload
        return payload[4:]

    def expect_connection_close(self) -> tuple[int, str]:
        arguments = self.expect(10, 50)
        (code,) = struct.unpack_from(">H", arguments)
        return code, arguments[3 : 3 + arguments[2]].decode()

    def expect_end(self) -> None:
        """The broker hangs up."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self.next_frame()

    def rest(self) -> bytes:
        """Everything until the broker hangs up, politely or not."""
        rest = b""
        with contextlib.suppress(ConnectionError):
            while piece := self.socket.recv(65_536):
                rest += piece
        return rest

    def log_in(self, heartbeat_s: int = 0, vhost: bytes = b"/", frame_max: int = 131_072) -> None:
        self.send(HEADER)
        self.expect(10, 10)
        response = b"\x00guest\x00guest"
        self.send(
            method(
                0, 10, 11, bytes(4) + short(b"PLAIN") + struct.pack(">I", len(response)) + response + short(b"en_US")
            )
        )
        self.expect(10, 30)
        self.send(method(0, 10, 31, struct.pack(">HIH", 2047, frame_max, heartbeat_s)))
        self.send(method(0, 10, 40, short(vhost) + b"\x00\x00"))
        self.expect(10, 41)

    def open_channel(self, number: int = 1) -> None:
        self.send(method(number, 20, 10, b"\x00"))
        self.expect(20, 11)

    def _more(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise EOFError
        self._received += data


@pytest.fixture
def peer(amqp: AmqpBroker) -> Iterator[RawPeer]:
    raw = RawPeer(amqp.port)
    yield raw
    raw.socket.close()


# -- errors of one channel ----------------------------------------------------------------------------------------------


def test_an_error_on_one_channel_leaves_the_others_alone(connection: Any, queue: QueueFactory) -> None:
    name = queue()
    good, consuming = connection.channel(), connection.channel()
    inbox = Inbox(consuming, name)
    for _ in range(5):
        code, _ = channel_error(lambda: connection.channel().queue_declare("no such queue", passive=True))
        assert code == 404
    good.basic_publish("", name, b"still works")
    inbox.wait(1)


def test_a_channel_number_can_be_used_again_after_an_error(connection: Any) -> None:
    for _ in range(3):
        channel = connection.channel(7)
        channel_error(lambda channel=channel: channel.queue_declare("no such queue", passive=True))  # type: ignore[misc]
    connection.channel(7).queue_declare("", exclusive=True)


def test_what_follows_an_error_on_its_channel_is_ignored(peer: RawPeer, unique: Callable[[str], str]) -> None:
    """Until the client acknowledges the close, the broker must drop what it had already sent."""
    name = unique("queue").encode()
    peer.log_in()
    peer.open_channel()
    missing = method(1, 50, 10, b"\x00\x00" + short(b"no such queue") + b"\x01" + bytes(4))
    declare = method(1, 50, 10, b"\x00\x00" + short(name) + b"\x10" + bytes(4))
    peer.send(missing + declare + declare)
    peer.expect(20, 40)
    peer.send(declare + method(1, 20, 41))
    peer.open_channel()
    peer.send(method(1, 50, 10, b"\x00\x00" + short(name) + b"\x01" + bytes(4)))
    arguments = peer.expect(20, 40)
    assert struct.unpack_from(">H", arguments) == (404,)


def test_a_refused_consumer_gets_no_consume_ok(peer: RawPeer, connect: ConnectionFactory, queue: QueueFactory) -> None:
    name = queue()
    Inbox(connect().channel(), name, exclusive=True)
    peer.log_in()
    peer.open_channel()
    peer.send(method(1, 60, 20, b"\x00\x00" + short(name.encode()) + short(b"tag") + b"\x00" + bytes(4)))
    arguments = peer.expect(20, 40)
    assert struct.unpack_from(">H", arguments) == (403,)


# -- errors of a connection ---------------------------------------------------------------------------------------------


def test_another_protocol_is_answered_with_ours(peer: RawPeer) -> None:
    peer.send(b"GET / HTTP/1.1\r\n\r\n")
    assert peer.rest() == HEADER


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x0a\x00", b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x01\x00\x00"])
def test_another_version_is_answered_with_ours(peer: RawPeer, header: bytes) -> None:
    peer.send(header)
    assert peer.rest() == HEADER


HANGS_UP = pytest.mark.ours_only("RabbitMQ hangs up without a word")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frame(1, 1, b"\x00\x3c\x00\x14", b"\x00"), 501, id="no frame end"),
        pytest.param(frame(1, 1, bytes(4) * 100_000), 501, id="frame too large"),
        pytest.param(frame(9, 1, b""), 501, id="unknown frame type"),
        pytest.param(frame(8, 1, b""), 505, id="heartbeat on a channel"),
        pytest.param(frame(8, 7, b""), 505, id="heartbeat on a channel that is not open"),
        pytest.param(frame(8, 0, b"x"), 501, id="heartbeat with a payload"),
        pytest.param(method(1, 99, 1), 540, id="unknown class", marks=HANGS_UP),
        pytest.param(frame(3, 1, b"body"), 505, id="body without a method"),
        pytest.param(frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)), 505, id="header without a method"),
        pytest.param(method(5, 50, 10, b"\x00\x00" + short(b"q") + b"\x00" + bytes(4)), 504, id="channel not open"),
        pytest.param(method(1, 20, 10, b"\x00"), 504, id="channel opened twice"),
        pytest.param(
            method(1, 60, 40, b"\x00\x00\x00\x00\x00") + method(1, 60, 40, b"\x00\x00\x00\x00\x00"),
            505,
            id="no content",
        ),
        pytest.param(method(1, 50, 10, b"\x00\x00\xff"), 502, id="arguments cut short"),
        pytest.param(method(0, 60, 40, b"\x00\x00\x00\x00\x00"), 503, id="content on channel 0"),
    ],
)
def test_a_violation_closes_the_connection_with_its_code(peer: RawPeer, sent: bytes, code: int) -> None:
    peer.log_in()
    peer.open_channel()
    peer.send(sent)
    answered, text = peer.expect_connection_close()
    acceptable = {code} if code not in {502, 503, 540} else {501, 502, 503, 504, 505, 540}
    assert answered in acceptable, text
    peer.send(method(0, 10, 51))
    peer.expect_end()


def test_a_frame_a_little_over_the_maximum_is_taken(peer: RawPeer, queue: QueueFactory, channel: Any) -> None:
    """As RabbitMQ does, because clients forget the frame's own eight bytes."""
    name, size = queue(), 4_096
    peer.log_in(frame_max=size)
    peer.open_channel()
    publish = method(1, 60, 40, b"\x00\x00\x00" + short(name.encode()) + b"\x00")
    peer.send(publish + frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0)) + frame(3, 1, bytes(size)))
    assert get(channel, name).body == bytes(size)
    peer.send(publish + frame(2, 1, struct.pack(">HHQH", 60, 0, size + 1, 0)) + frame(3, 1, bytes(size + 1)))
    code, _ = peer.expect_connection_close()
    assert code == 501


def test_before_tuning_frames_are_small(amqp: AmqpBroker) -> None:
    """A stranger can make the broker wait for no more than the smallest frame size that it may agree to."""
    response = b"\x00guest\x00guest"

    def start_ok(filler: int) -> bytes:
        name, value = b"product", bytes(filler)
        table = short(name) + b"S" + struct.pack(">I", len(value)) + value
        arguments = struct.pack(">I", len(table)) + table + short(b"PLAIN")
        return method(0, 10, 11, arguments + struct.pack(">I", len(response)) + response + short(b"en_US"))

    accepted = RawPeer(amqp.port)
    accepted.send(HEADER)
    accepted.expect(10, 10)
    accepted.send(start_ok(3_900))
    accepted.expect(10, 30)
    accepted.socket.close()
    refused = RawPeer(amqp.port)
    refused.send(HEADER)
    refused.expect(10, 10)
    begin = time.monotonic()
    refused.send(start_ok(4_200)[:8])  # its first bytes suffice
    refused.expect_end()
    assert time.monotonic() - begin < 8.0  # less than the time for opening a connection
    refused.socket.close()


def test_a_client_may_send_large_frames_right_after_its_tune_ok(
    peer: RawPeer, queue: QueueFactory, channel: Any
) -> None:
    name, size = queue(), 100_000
    peer.send(HEADER)
    peer.expect(10, 10)
    response = b"\x00guest\x00guest"
    start = bytes(4) + short(b"PLAIN") + struct.pack(">I", len(response)) + response + short(b"en_US")
    peer.send(method(0, 10, 11, start))
    peer.expect(10, 30)
    publish = method(1, 60, 40, b"\x00\x00\x00" + short(name.encode()) + b"\x00")
    peer.send(
        method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 0))
        + method(0, 10, 40, short(b"/") + b"\x00\x00")
        + method(1, 20, 10, b"\x00")
        + publish
        + frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0))
        + frame(3, 1, bytes(size))
    )
    assert get(channel, name).body == bytes(size)


def test_a_violation_is_nobody_elses(amqp: AmqpBroker, connection: Any, queue: QueueFactory) -> None:
    name, channel = queue(), connection.channel()
    for garbage in (b"\x00" * 64, b"\xff" * 64, HEADER + b"\x01" * 64):
        raw = RawPeer(amqp.port)
        raw.send(garbage)
        raw.socket.close()
    channel.basic_publish("", name, b"fine")
    assert get(channel, name).body == b"fine"


@pytest.mark.ours_only("RabbitMQ looks at the size when all of the message has come")
def test_a_message_declared_larger_than_allowed_is_refused(peer: RawPeer) -> None:
    peer.log_in()
    peer.open_channel()
    header = struct.pack(">HHQH", 60, 0, 200 * 1024 * 1024, 0)
    peer.send(method(1, 60, 40, b"\x00\x00\x00" + short(b"somewhere") + b"\x00") + frame(2, 1, header))
    arguments = peer.expect(20, 40)
    assert struct.unpack_from(">H", arguments) == (406,)


# -- heartbeats ---------------------------------------------------------------------------------------------------------


def test_a_silent_client_is_disconnected_and_its_messages_come_back(
    peer: RawPeer, connect: ConnectionFactory, queue: QueueFactory
) -> None:
    name, channel = queue(), connect().channel()
    channel.confirm_delivery()
    channel.basic_publish("", name, b"x")
    peer.log_in(heartbeat_s=1)
    peer.open_channel()
    peer.send(method(1, 60, 70, b"\x00\x00" + short(name.encode()) + b"\x00"))
    peer.expect(60, 71)
    started = time.monotonic()
    peer.expect_end()
    assert 1.0 < time.monotonic() - started < 15.0
    message = get(channel, name)
    assert (message.body, message.method.redelivered) == (b"x", True)


def test_the_broker_sends_heartbeats(peer: RawPeer) -> None:
    peer.log_in(heartbeat_s=1)
    peer.socket.settimeout(5.0)
    assert peer.socket.recv(8) == b"\x08\x00\x00\x00\x00\x00\x00\xce"


def test_a_client_that_only_sends_heartbeats_stays_connected(connect: ConnectionFactory) -> None:
    connection = connect(heartbeat=1)
    connection.sleep(3.5)
    connection.channel().queue_declare("", exclusive=True)


# -- who may do what ----------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_with_a_close(connect: ConnectionFactory) -> None:
    for user, password in (("guest", "wrong"), ("nobody", "guest")):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
            connect(user=user, password=password)
        assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN." in repr(caught.value)


def test_an_unknown_vhost_is_refused(connect: ConnectionFactory) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        connect(vhost="nowhere")
    assert "NOT_ALLOWED - vhost nowhere not found" in repr(caught.value)


def test_a_user_without_permissions_in_a_vhost_is_refused(connect: ConnectionFactory) -> None:
    user, password = NEIGHBOUR
    connect(user, password, OTHER_VHOST).channel()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        connect(user, password)
    assert "NOT_ALLOWED - access to vhost '/' refused for user 'neighbour'" in caught.value.args[0]


def test_permissions_are_patterns_for_configure_write_and_read(
    connect: ConnectionFactory, queue: QueueFactory, unique: Callable[[str], str], scrapped: tuple[list[str], list[str]]
) -> None:
    foreign, mine, connection = queue(), unique("own-queue"), connect(*LIMITED)
    channel = connection.channel()
    channel.queue_declare(mine, durable=True)
    scrapped[0].append(mine)
    channel.exchange_declare(f"own-{mine}", "fanout", auto_delete=True)
    channel.queue_bind(mine, f"own-{mine}")
    channel.basic_publish(f"own-{mine}", "", b"x")
    assert get(channel, mine).body == b"x"
    assert channel.basic_get(foreign) == (None, None, None)
    for attempt, permission, resource, name in (
        (lambda c: c.queue_declare("other-queue"), "configure", "queue", "other-queue"),
        (lambda c: c.queue_delete(foreign), "configure", "queue", foreign),
        (lambda c: c.exchange_declare("other-exchange"), "configure", "exchange", "other-exchange"),
        (lambda c: c.queue_bind(foreign, "amq.fanout"), "write", "queue", foreign),
        (lambda c: c.exchange_bind("amq.fanout", f"own-{mine}"), "write", "exchange", "amq.fanout"),
    ):
        code, text = channel_error(lambda attempt=attempt: attempt(connection.channel()))  # type: ignore[misc]
        assert code == 403
        refusal = rf"({permission} )?access to {resource} '{name}' in vhost '/' refused for user 'limited'"
        assert re.fullmatch(f"ACCESS_REFUSED - {refusal}", text), text
    channel = connection.channel()
    channel.confirm_delivery()
    code, text = channel_error(lambda: channel.basic_publish("amq.direct", "k", b"x"))
    refusal = "(write )?access to exchange 'amq.direct' in vhost '/' refused for user 'limited'"
    assert (code, re.fullmatch(f"ACCESS_REFUSED - {refusal}", text) is not None) == (403, True), text


def test_amqplain_logs_in_too(peer: RawPeer) -> None:
    peer.send(HEADER)
    peer.expect(10, 10)
    response = b"".join(
        short(name) + b"S" + struct.pack(">I", len(value)) + value
        for name, value in ((b"LOGIN", b"guest"), (b"PASSWORD", b"guest"))
    )
    peer.send(
        method(0, 10, 11, bytes(4) + short(b"AMQPLAIN") + struct.pack(">I", len(response)) + response + short(b"en_US"))
    )
    peer.expect(10, 30)


def test_the_greeting_names_mechanisms_and_capabilities(connect: ConnectionFactory) -> None:
    connection = connect()
    properties = connection._impl.server_properties
    assert properties["capabilities"] == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }
    assert {"product", "version", "platform"} <= properties.keys()
    assert (connection._impl.params.frame_max, connection._impl.params.channel_max) == (131_072, 2047)


def test_a_secret_can_be_updated(connect: ConnectionFactory) -> None:
    connection = connect()
    connection.update_secret("another", "rotation")
    connection.channel().queue_declare("", exclusive=True)


# -- many ---------------------------------------------------------------------------------------------------------------


def test_a_connection_has_as_many_channels_as_negotiated(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, connection = queue(), connect()
    channels = [connection.channel() for _ in range(300)]
    for number, channel in enumerate(channels):
        channel.basic_publish("", name, b"%d" % number)
    inbox = Inbox(channels[-1], name, auto_ack=True)
    inbox.wait(300)
    assert sorted(map(int, inbox.bodies)) == list(range(300))


@pytest.mark.ours_only("RabbitMQ counts open channels and does not mind their numbers")
def test_a_channel_beyond_the_maximum_is_refused(peer: RawPeer) -> None:
    peer.log_in()
    peer.send(method(3000, 20, 10, b"\x00"))
    code, _ = peer.expect_connection_close()
    assert code in {504, 530}


def test_closing_a_connection_gives_everything_back(connect: ConnectionFactory, queue: QueueFactory) -> None:
    name, channel = queue(), connect().channel()
    connections = [connect() for _ in range(20)]
    for number, connection in enumerate(connections):
        channel.basic_publish("", name, b"%d" % number)
        get(connection.channel(), name, auto_ack=False)
    for connection in connections:
        connection.close()

    def all_back() -> bool:
        return bool(channel.queue_declare(name, passive=True).method.message_count == 20)

    wait_until(all_back, DEADLINE_SECONDS, "20 messages back")
    assert [get(channel, name).body for _ in range(20)] == [b"%d" % number for number in range(20)]
