"""An AMQP session without a socket: opening, errors, heartbeats, blocked connections, hostile input."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.amqp.harness import CAPABLE, FRAME_MAX, Broker, Peer, broker, run, until, with_broker
from trunkline.broker.messaging.typed_values import FieldValue, encode_fields
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import HEARTBEAT_FRAME, PROTOCOL_HEADER, encode_method, encode_publish
from trunkline.protocols.amqp.frames import Heartbeat, MethodFrame
from trunkline.protocols.amqp.limits import AmqpLimits

# -- opening -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [b"GET / HT", b"AMQP\x00\x01\x00\x00", b"AMQP\x00\x00\x09\x02"])
def test_another_protocol_is_answered_with_our_header_and_closed(tmp_path: Path, header: bytes) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        peer.send(header)
        await peer.settle()
        assert bytes(peer.raw) == PROTOCOL_HEADER
        assert peer.closed

    with_broker(tmp_path, test)


def test_the_server_says_what_it_can_do_before_it_is_asked(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        peer.send(PROTOCOL_HEADER)
        start = await peer.expect(m.ConnectionStart)
        assert start.mechanisms.split() == [b"PLAIN", b"AMQPLAIN"]
        capabilities = start.server_properties["capabilities"]
        assert isinstance(capabilities, dict)
        assert {
            "publisher_confirms",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
        } <= capabilities.keys()
        assert all(value is True for value in capabilities.values())

    with_broker(tmp_path, test)


async def _start_ok(peer: Peer, mechanism: str, response: bytes, properties: dict[str, FieldValue]) -> None:
    peer.send(PROTOCOL_HEADER)
    await peer.expect(m.ConnectionStart)
    peer.method(m.ConnectionStartOk(properties, mechanism, response, "en_US"), 0)
    await peer.settle()


def test_a_wrong_password_is_told_to_clients_that_understand_it(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        await _start_ok(peer, "PLAIN", b"\0guest\0wrong", CAPABLE)
        close = await peer.expect(m.ConnectionClose)
        assert close.reply_code == codes.ACCESS_REFUSED
        old = Peer(started.service)
        await _start_ok(old, "PLAIN", b"\0guest\0wrong", {})
        assert old.closed
        assert not any(isinstance(event, MethodFrame) for event in old.events)

    with_broker(tmp_path, test)


def test_guest_is_refused_from_another_machine(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service, loopback=False)
        await _start_ok(peer, "PLAIN", b"\0guest\0guest", CAPABLE)
        assert (await peer.expect(m.ConnectionClose)).reply_code == codes.ACCESS_REFUSED

    with_broker(tmp_path, test)


def test_amqplain_logs_in(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        await _start_ok(peer, "AMQPLAIN", encode_fields({"LOGIN": "guest", "PASSWORD": "guest"}), CAPABLE)
        await peer.expect(m.ConnectionTune)

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    "asked",
    [m.ConnectionTuneOk(2048, FRAME_MAX, 0), m.ConnectionTuneOk(0, FRAME_MAX + 1, 0), m.ConnectionTuneOk(0, 100, 0)],
)
def test_asking_for_more_than_was_offered_is_not_allowed(tmp_path: Path, asked: m.ConnectionTuneOk) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        await _start_ok(peer, "PLAIN", b"\0guest\0guest", CAPABLE)
        peer.method(asked, 0)
        await peer.settle()
        assert (await peer.expect(m.ConnectionClose)).reply_code == codes.NOT_ALLOWED

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    "method", [m.ConnectionOpen("/"), m.ConnectionTuneOk(0, 0, 0), m.ConnectionUpdateSecret(b"", "")]
)
def test_methods_out_of_turn_end_the_connection(tmp_path: Path, method: m.Method) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        peer.send(PROTOCOL_HEADER)
        peer.method(method, 0)
        await peer.settle()
        assert (await peer.expect(m.ConnectionClose)).reply_code == codes.COMMAND_INVALID

    with_broker(tmp_path, test)


def test_a_client_that_does_not_finish_opening_is_dropped(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        peer.send(PROTOCOL_HEADER)
        started.clock.advance(started.service.limits.handshake_timeout_ms - 1)
        peer.session.tick(started.clock.monotonic_ms())
        assert not peer.closed
        started.clock.advance(2)
        peer.session.tick(started.clock.monotonic_ms())
        assert peer.closed

    with_broker(tmp_path, test)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_ends_its_channel_and_no_other(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.open_channel(2)
        peer.method(m.QueueDelete(0, "", False, False, False), 1)
        close = await peer.expect(m.ChannelClose)
        assert (close.reply_code, close.class_id, close.method_id) == (codes.NOT_FOUND, 50, 40)
        # Ignored until the client has confirmed the end of the channel.
        peer.publish("nowhere", channel=1, mandatory=True)
        peer.ack(7, channel=1)
        await peer.call(m.BasicQos(0, 1, False), m.BasicQosOk, 2)
        assert not peer.deliveries()
        peer.method(m.ChannelCloseOk(), 1)
        await peer.open_channel(1)

    with_broker(tmp_path, test)


def test_a_connection_error_is_told_once_and_what_follows_is_ignored(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        peer.method(m.BasicQos(0, 1, False), 5)
        close = await peer.expect(m.ConnectionClose)
        assert close.reply_code == codes.CHANNEL_ERROR
        peer.method(m.BasicQos(0, 1, False), 5)
        peer.method(m.QueueDeclare(0, "q", False, False, False, False, False, {}), 1)
        await peer.settle()
        assert peer.events == []
        assert "q" not in started.service.vhosts["/"].queues
        peer.method(m.ConnectionCloseOk(), 0)
        assert peer.closed

    with_broker(tmp_path, test)


def test_a_client_that_does_not_confirm_the_close_is_dropped(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        peer.method(m.BasicQos(0, 1, False), 5)
        started.clock.advance(started.service.limits.close_timeout_ms + 1)
        peer.session.tick(started.clock.monotonic_ms())
        assert peer.closed

    with_broker(tmp_path, test)


def test_frames_that_cannot_be_told_apart_end_the_connection_at_once(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        peer.send(b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x14\x00")
        await peer.settle()
        assert (await peer.expect(m.ConnectionClose)).reply_code == codes.FRAME_ERROR
        assert peer.closed

    with_broker(tmp_path, test)


def test_methods_that_must_wait_hold_up_what_follows_and_keep_the_order(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        declare = m.QueueDeclare(0, "q", False, True, False, False, False, {})
        resumed = peer.resumed
        peer.send(
            encode_method(1, declare)
            + encode_publish(1, "", "q", b"\0\0", b"first", FRAME_MAX)
            + encode_method(1, m.BasicQos(0, 5, False))
            + encode_method(1, m.QueueDeclare(0, "q", True, False, False, False, False, {}))
        )
        assert not peer.session.readable
        await until(lambda: len(peer.events) == 3)
        first, second, third = [event.method for event in peer.events if isinstance(event, MethodFrame)]
        assert isinstance(first, m.QueueDeclareOk)
        assert isinstance(second, m.BasicQosOk)
        assert isinstance(third, m.QueueDeclareOk)
        assert third.message_count == 1
        assert peer.session.readable
        assert peer.resumed == resumed + 1

    with_broker(tmp_path, test)


def test_a_channel_number_above_the_agreed_maximum_is_not_allowed(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        peer.method(m.ChannelOpen(), 2048)
        assert (await peer.expect(m.ConnectionClose)).reply_code == codes.NOT_ALLOWED

    with_broker(tmp_path, test)


# -- heartbeats and space ----------------------------------------------------------------------------------------------


def test_heartbeats_are_sent_when_there_is_nothing_else_and_missed_ones_end_the_connection(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer(heartbeat_s=10)
        await peer.settle()
        peer.events.clear()
        started.clock.advance(5_000)
        peer.session.tick(started.clock.monotonic_ms())
        await peer.settle()
        assert peer.events == [Heartbeat()]
        started.clock.advance(14_000)
        peer.send(HEARTBEAT_FRAME)
        started.clock.advance(19_000)
        peer.session.tick(started.clock.monotonic_ms())
        assert not peer.closed
        started.clock.advance(2_000)
        peer.session.tick(started.clock.monotonic_ms())
        assert peer.closed

    with_broker(tmp_path, test)


def test_publishers_wait_while_the_disk_is_full_and_are_told_why(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q")
        peer.publish("q")
        space = started.core.space
        space.subscribe(peer.session.tell_blocked)
        space.set_blocked("low on disk")
        assert (await peer.expect(m.ConnectionBlocked)).reason == "low on disk"
        assert not peer.session.readable
        consumer = await started.peer()
        assert consumer.session.readable  # it does not publish
        space.set_blocked(None)
        await peer.expect(m.ConnectionUnblocked)
        assert peer.session.readable
        assert peer.resumed

    with_broker(tmp_path, test)


def test_a_publisher_is_not_read_while_too_much_of_it_waits_for_the_disk(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q", durable=True)
        await peer.call(m.ConfirmSelect(False), m.ConfirmSelectOk)
        peer.publish("q", b"x" * 5_000, properties=b"\x10\x00\x02")
        started.service.turn.run()
        assert not peer.session.readable
        await until(lambda: peer.session.readable)
        assert peer.resumed

    with_broker(tmp_path, test, AmqpLimits(max_unconfirmed_bytes=1_000))


def test_a_lost_connection_gives_back_what_it_held_and_takes_its_exclusive_queues_with_it(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer, other = await started.peer(), await started.peer()
        await other.declare("q")
        await peer.call(m.QueueDeclare(0, "mine", False, False, True, False, False, {}), m.QueueDeclareOk)
        other.method(m.QueueDeclare(0, "mine", True, False, False, False, False, {}))
        assert (await other.expect(m.ChannelClose)).reply_code == codes.RESOURCE_LOCKED
        for number in range(3):
            peer.publish("q", b"%d" % number)
        await peer.consume("q")
        assert await peer.bodies(3) == [b"0", b"1", b"2"]
        peer.session.lost()
        await until(lambda: "mine" not in started.service.vhosts["/"].queues)
        await other.open_channel(2)
        await other.consume("q", channel=2)
        assert await other.bodies(3) == [b"0", b"1", b"2"]
        assert all(isinstance(e.method, m.BasicDeliver) and e.method.redelivered for e in other.deliveries())

    with_broker(tmp_path, test)


# -- hostile input -----------------------------------------------------------------------------------------------------

_texts = st.sampled_from(["", "q", "x", "amq.direct", "amq.rabbitmq.reply-to", "a.b", "é" * 5])
_values: dict[str, st.SearchStrategy[object]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, 65535),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "short string": _texts,
    "long string": st.binary(max_size=20),
    "table": st.sampled_from(
        [
            {},
            {"x-message-ttl": -1},
            {"x-max-priority": 5},
            {"x-queue-type": "quorum"},
            {"alternate-exchange": "x"},
            {"x-expires": 0},
            {"x-dead-letter-exchange": 7},
        ]
    ),
}


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([*m.all_methods(), None]))
    channel = draw(st.sampled_from([0, 1, 1, 1, 2, 3]))
    if kind is None:
        return draw(st.binary(max_size=30))
    values = [draw(_values[wire]) for _, wire in kind.WIRE]
    if kind is m.BasicPublish:
        return encode_publish(
            channel or 1, draw(_texts), draw(_texts), draw(st.sampled_from([b"\0\0", b"\x10\x00\x02", b"\x01\x00\x02xy"])),
            draw(st.binary(max_size=9)), FRAME_MAX, mandatory=draw(st.booleans()),
        )  # fmt: skip
    return encode_method(channel, kind(*values))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(frames=st.lists(_frames(), max_size=25), cut=st.integers(1, 200))
def test_no_sequence_of_frames_breaks_the_broker(frames: list[bytes], cut: int) -> None:
    async def test() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with broker(Path(directory)) as started:
                peer = await started.peer()
                data = b"".join(frames)
                for start in range(0, len(data), cut):
                    if peer.closed:
                        break
                    peer.send(data[start : start + cut])
                await peer.settle()
                peer.session.lost()
                await asyncio.sleep(0)
                assert peer.session.channels == {}
                # Somebody else is served as if nothing had been.
                other = await started.peer()
                await other.declare("afterwards")
                other.publish("afterwards", b"still here")
                await other.consume("afterwards")
                assert await other.bodies(1) == [b"still here"]

    run(test())


def test_unfinished_messages_of_all_channels_hold_no_more_than_two_of_the_largest(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        for channel in (2, 3):
            await peer.open_channel(channel)
        for channel in (1, 2, 3):
            peer.send(_unfinished(channel))
        assert (await peer.expect(m.ConnectionClose)).reply_code == codes.RESOURCE_ERROR

    with_broker(tmp_path, test, AmqpLimits(max_message_bytes=1_000))


def _unfinished(channel: int) -> bytes:
    """A publication of 1,000 bytes that lacks the last of them."""
    whole = encode_publish(channel, "", "q", b"\0\0", bytes(1_000), 4_096)
    body = struct.pack(">BHI", 3, channel, 999) + bytes(999) + b"\xce"
    return whole[: -len(body) - 1] + body


# -- logins take time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["guest", "wrong"])
def test_nothing_that_was_sent_behind_a_login_takes_effect_before_it(tmp_path: Path, password: str) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        declare = m.QueueDeclare(0, "behind", False, False, False, False, False, {})
        peer.send(
            PROTOCOL_HEADER
            + encode_method(0, m.ConnectionStartOk(CAPABLE, "PLAIN", f"\0guest\0{password}".encode(), "en_US"))
            + encode_method(0, m.ConnectionTuneOk(2047, FRAME_MAX, 0))
            + encode_method(0, m.ConnectionOpen("/"))
            + encode_method(1, m.ChannelOpen())
            + encode_method(1, declare)
        )
        assert not peer.session.readable
        assert not peer.session.principal.administrator
        if password == "guest":
            await peer.expect(m.QueueDeclareOk)
            assert peer.session.user == "guest"
        else:
            assert (await peer.expect(m.ConnectionClose)).reply_code == codes.ACCESS_REFUSED
            await peer.settle()
            assert "behind" not in started.service.vhosts["/"].queues

    with_broker(tmp_path, test)


def test_a_client_that_goes_away_during_its_login_is_gone(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = Peer(started.service)
        response = b"\0guest\0guest"
        peer.send(PROTOCOL_HEADER + encode_method(0, m.ConnectionStartOk(CAPABLE, "PLAIN", response, "en_US")))
        peer.session.lost()
        await peer.settle()
        assert peer.session.closed
        assert peer.session.user != "guest"

    with_broker(tmp_path, test)
