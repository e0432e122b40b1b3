"""The states of connections and channels: the tables are complete, and the session does what they say."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pika.spec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.amqp.harness import CAPABLE, FRAME_MAX, Broker, Peer, broker, run, with_broker
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import NO_PROPERTIES, PROTOCOL_HEADER, encode_method, encode_publish
from trunkline.protocols.amqp.errors import FrameError
from trunkline.protocols.amqp.frames import BODY_FRAME, HEADER_FRAME, METHOD_FRAME, MethodFrame, Publish
from trunkline.protocols.amqp.parser import (
    AWAITS_BODY,
    AWAITS_HEADER,
    AWAITS_METHOD,
    SKIPS_BODY,
    TAKEN_FRAMES,
    Parser,
    ParserEvent,
)
from trunkline.protocols.amqp.states import (
    CHANNELS,
    CONNECTIONS,
    CONTENT_ON_CHANNEL_0,
    ChannelState,
    ConnectionState,
    Fault,
    Step,
    row_of_channel,
)

# What only a server sends. connection.secure-ok is the answer to a question that this server does not ask.
_SERVERS = {
    "connection.start", "connection.secure", "connection.secure-ok", "connection.tune", "connection.open-ok",
    "connection.blocked", "connection.unblocked", "connection.update-secret-ok", "channel.open-ok",
    "access.request-ok", "exchange.declare-ok", "exchange.delete-ok", "exchange.bind-ok", "exchange.unbind-ok",
    "queue.declare-ok", "queue.bind-ok", "queue.unbind-ok", "queue.purge-ok", "queue.delete-ok", "basic.qos-ok",
    "basic.consume-ok", "basic.return", "basic.deliver", "basic.get-ok", "basic.get-empty", "basic.recover-ok",
    "confirm.select-ok", "tx.select-ok", "tx.commit-ok", "tx.rollback-ok",
}  # fmt: skip


# -- the tables --------------------------------------------------------------------------------------------------------


def test_the_declared_methods_are_those_of_the_protocol() -> None:
    declared = {class_id << 16 | method_id for class_id, method_id in m.BY_ID}
    assert set(pika.spec.methods) - declared == set()
    assert {m.BY_ID[number >> 16, number & 0xFFFF].NAME for number in declared - set(pika.spec.methods)} <= {
        "access.request",
        "access.request-ok",
        "connection.update-secret",
        "connection.update-secret-ok",
        "basic.recover-async",
    }


def test_every_state_says_what_every_method_does() -> None:
    every = set(m.all_methods())
    assert set(CONNECTIONS) == set(ConnectionState)
    assert set(CHANNELS) == set(ChannelState)
    for row in CONNECTIONS.values():
        assert set(row) == every
    for connection in ConnectionState:
        for channel in ChannelState:
            assert set(row_of_channel(connection, channel)) == every


def test_clients_are_served_with_their_methods_and_refused_the_servers() -> None:
    running = CONNECTIONS[ConnectionState.RUNNING]
    handshake = [CONNECTIONS[state] for state in (ConnectionState.START, ConnectionState.TUNE, ConnectionState.OPEN)]
    closing = CONNECTIONS[ConnectionState.CLOSING]
    for method in m.all_methods():
        if method.CLASS_ID == m.ConnectionStart.CLASS_ID:
            cells: list[object] = [row[method] for row in (*handshake, running)]
            if method is m.ConnectionCloseOk:
                cells = [closing[method]]
        else:
            cells = [CHANNELS[ChannelState.UNOPENED][method], CHANNELS[ChannelState.OPEN][method]]
        assert any(isinstance(cell, Step) for cell in cells) == (method.NAME not in _SERVERS), method.NAME


def test_every_fault_ends_the_connection() -> None:
    rows = [*CONNECTIONS.values(), *(row_of_channel(a, b) for a in ConnectionState for b in ChannelState)]
    faults = {cell for row in rows for cell in row.values() if isinstance(cell, Fault)}
    assert faults
    assert not any(fault.error(m.BasicPublish).soft for fault in faults)


# -- the session -------------------------------------------------------------------------------------------------------

_PLAIN: dict[str, object] = {
    "bit": False, "octet": 0, "short": 0, "long": 0, "longlong": 0, "short string": "", "long string": b"", "table": {},
}  # fmt: skip
_HANDSHAKE = (
    m.ConnectionStartOk(CAPABLE, "PLAIN", b"\0guest\0guest", "en_US"),
    m.ConnectionTuneOk(2047, FRAME_MAX, 0),
    m.ConnectionOpen("/"),
)
_CHOSEN: dict[type[m.Method], m.Method] = {
    **{type(method): method for method in _HANDSHAKE},
    m.QueueDeclare: m.QueueDeclare(0, "q", False, False, False, False, False, {}),
    m.ExchangeDeclare: m.ExchangeDeclare(0, "x", "fanout", False, False, False, False, False, {}),
    m.BasicRecover: m.BasicRecover(True),
    m.BasicRecoverAsync: m.BasicRecoverAsync(True),
}


def _bytes_of(number: int, kind: type[m.Method]) -> bytes:
    method = _CHOSEN.get(kind) or kind(*(_PLAIN[wire] for _, wire in kind.WIRE))
    if number and kind is m.BasicPublish:
        return encode_publish(number, "", "nowhere", NO_PROPERTIES, b"body", FRAME_MAX)
    header = _frame(HEADER_FRAME, number, struct.pack(">HHQH", 60, 0, 0, 0)) if kind.HAS_CONTENT and number else b""
    return encode_method(number, method) + header


def _frame(kind: int, number: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, number, len(payload)) + payload + b"\xce"


class _Model:
    """Where a connection and its channels are, by the tables alone."""

    def __init__(self) -> None:
        self.connection = ConnectionState.START
        self.channels: dict[int, ChannelState] = {}

    def state_of(self, number: int) -> ChannelState:
        return self.channels.get(number, ChannelState.UNOPENED)

    def cell(self, number: int, kind: type[m.Method]) -> Step[ConnectionState] | Step[ChannelState] | Fault:
        if number == 0:
            return CONNECTIONS[self.connection][kind]
        return row_of_channel(self.connection, self.state_of(number))[kind]

    def take(self, number: int, kind: type[m.Method], told: list[MethodFrame]) -> None:
        """What came, and what the server said to it."""
        cell = self.cell(number, kind)
        closes = [frame for frame in told if isinstance(frame.method, m.ConnectionClose | m.ChannelClose)]
        if isinstance(cell, Fault):
            (close,) = closes
            assert isinstance(close.method, m.ConnectionClose)
            error = cell.error(kind)
            assert (close.method.reply_code, close.method.reply_text) == (error.reply_code, error.reply_text)
            assert (close.method.class_id, close.method.method_id) == (error.class_id, error.method_id)
            # After what the parser tells of, it cannot find the next frame.
            at_once = cell == CONTENT_ON_CHANNEL_0
            self.connection = ConnectionState.CLOSED if at_once else ConnectionState.CLOSING
        elif closes:
            assert cell.act is not None, "only an act may refuse"
            (close,) = closes
            if isinstance(close.method, m.ChannelClose):
                assert close.channel == number
                assert close.method.reply_code in codes.CHANNEL_ERRORS
                self.channels[number] = ChannelState.CLOSING
            else:
                assert isinstance(close.method, m.ConnectionClose)
                assert close.method.reply_code not in codes.CHANNEL_ERRORS
                self.connection = ConnectionState.CLOSING
        else:
            if isinstance(cell.then, ConnectionState):
                self.connection = cell.then
            elif cell.then is not None:
                self.channels[number] = cell.then
            if self.connection is ConnectionState.LOGIN:  # which ends by itself
                assert [type(frame.method) for frame in told] == [m.ConnectionTune]
                self.connection = ConnectionState.TUNE
            if cell.answer is not None:
                assert [frame.channel for frame in told if isinstance(frame.method, cell.answer)] == [number]
        if self.connection in {ConnectionState.CLOSING, ConnectionState.CLOSED}:
            self.channels = {number: state for number, state in self.channels.items() if state is not ChannelState.OPEN}


def _call(draw: st.DrawFn, model: _Model) -> tuple[int, type[m.Method]]:
    """A channel and a method; mostly one that is allowed, or every connection would end at once, often one that leads on."""
    opening = model.connection in {ConnectionState.START, ConnectionState.TUNE, ConnectionState.OPEN}
    number = draw(st.sampled_from([0] * 12 + [1] if opening else [0, 1, 1, 1, 1, 2, 2]))
    if draw(st.integers(0, 19)) == 0:
        return number, draw(st.sampled_from(m.all_methods()))
    cells = {kind: model.cell(number, kind) for kind in m.all_methods()}
    steps = [kind for kind, cell in cells.items() if isinstance(cell, Step)]
    leading = [kind for kind, cell in cells.items() if isinstance(cell, Step) and cell.then is not None]
    leads_on = draw(st.booleans())
    if leading and leads_on:
        # Not the end, which is allowed everywhere, when there is another way on.
        steps = [kind for kind in leading if kind is not m.ConnectionClose] or leading
    return number, draw(st.sampled_from(steps or m.all_methods()))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), count=st.integers(0, 40))
def test_a_session_goes_through_its_states_as_the_tables_say(data: st.DataObject, count: int) -> None:
    async def test() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with broker(Path(directory)) as started:
                peer = Peer(started.service)
                peer.send(PROTOCOL_HEADER)
                model = _Model()
                for _ in range(count):
                    await peer.settle()
                    peer.events.clear()
                    number, kind = data.draw(st.composite(_call)(model))
                    peer.send(_bytes_of(number, kind))
                    await peer.settle()
                    if model.connection is ConnectionState.CLOSED:
                        assert peer.events == []
                        break
                    model.take(number, kind, [event for event in peer.events if isinstance(event, MethodFrame)])
                    assert peer.session.state is model.connection
                    for each in (1, 2):
                        assert peer.session.channel_state(each) is model.state_of(each)
                    assert peer.closed == peer.session.closed

    run(test())


@pytest.mark.parametrize("kind", [m.BasicPublish, m.BasicAck])
def test_what_takes_the_short_cut_has_a_step_that_only_acts(kind: type[m.Method]) -> None:
    """The session does not look these up on an open channel."""
    cell = CHANNELS[ChannelState.OPEN][kind]
    assert isinstance(cell, Step)
    assert cell == Step(act=cell.act, gathered=True)


def test_nothing_is_written_to_a_connection_that_is_closed(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        again = [m.ConnectionClose(200, "bye"), m.ConnectionClose(200, "bye"), m.ConnectionUpdateSecret(b"", "")]
        peer.send(b"".join(encode_method(0, method) for method in again))
        assert peer.closed
        written = len(peer.raw)
        await peer.settle()
        assert len(peer.raw) == written
        assert [e.method for e in peer.events if isinstance(e, MethodFrame)] == [m.ConnectionCloseOk()]

    with_broker(tmp_path, test)


# -- the frames of a message -------------------------------------------------------------------------------------------

_MAX_BODY = 8
_PUBLISH = encode_method(1, m.BasicPublish(0, "", "q", False, False))[7:-1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2]),
            st.sampled_from([METHOD_FRAME, HEADER_FRAME, BODY_FRAME]),
            st.sampled_from([0, 3, 6, 12]),
        ),
        max_size=24,
    )
)
def test_frames_of_a_message_come_in_the_order_of_the_table(frames: list[tuple[int, int, int]]) -> None:
    parser, whole = Parser(expect_header=False, max_body_bytes=_MAX_BODY), b""
    awaits = {1: AWAITS_METHOD, 2: AWAITS_METHOD}
    left = {1: 0, 2: 0}
    seen: list[ParserEvent] = []
    for number, kind, size in frames:
        taken = kind in TAKEN_FRAMES[awaits[number]]
        finished = False
        if kind == METHOD_FRAME:
            data = _frame(kind, number, _PUBLISH)
            following = AWAITS_HEADER
        elif kind == HEADER_FRAME:
            data = _frame(kind, number, struct.pack(">HHQH", 60, 0, size, 0))
            left[number], finished = size, size == 0
            following = SKIPS_BODY if size > _MAX_BODY else AWAITS_BODY
        else:
            data = _frame(kind, number, bytes(min(3, left[number])))
            left[number] -= min(3, left[number])
            following, finished = awaits[number], left[number] == 0
        events = parser.feed(data)
        whole += data
        seen += events
        if not taken:
            assert isinstance(events[-1], FrameError)
            assert events[-1].reply_code == codes.UNEXPECTED_FRAME
            assert parser.stopped
            break
        assert not parser.stopped
        assert [type(event) for event in events if isinstance(event, Publish)] == (
            [Publish] if finished and following == AWAITS_BODY else []
        )
        awaits[number] = AWAITS_METHOD if finished else following
    at_once = Parser(expect_header=False, max_body_bytes=_MAX_BODY).feed(whole)
    assert [str(event) for event in at_once] == [str(event) for event in seen]
