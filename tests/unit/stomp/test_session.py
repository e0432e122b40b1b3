"""A STOMP session without a socket: its states, its limits, its heart-beats, and what is left when it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.stores import as_chosen
from tests.unit.plain_wire import PlainWire
from trunkline.broker.core import BrokerCore
from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.protocols.listener.session import Buffer
from trunkline.protocols.stomp.codec import V1_2, Frame, Parser, headers_of
from trunkline.protocols.stomp.limits import StompLimits
from trunkline.protocols.stomp.service import Service
from trunkline.protocols.stomp.session import STATES, Session, State

PATIENCE_S = 10.0
CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\nheart-beat:%s\n\n\0"


class Peer(PlainWire):
    """A client and its session."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        self.beats = 0
        self._parser = Parser(1_000, 1 << 20, 1 << 28)
        self.session = Session(service, self)

    def write(self, data: Buffer) -> None:
        self.beats += bytes(data) == b"\n"
        for event in self._parser.feed(bytes(data)):
            assert isinstance(event, Frame)
            self.heard.append((event.command.decode(), headers_of(event.lines, V1_2), event.body))

    async def expect(self, command: str) -> tuple[dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE_S):
            while not self.heard:
                await asyncio.sleep(0.001)
        found, headers, body = self.heard.pop(0)
        assert found == command, (found, headers, body)
        return headers, body

    def say(self, data: bytes) -> None:
        self.session.read(memoryview(data))

    async def connect(self, heart_beat: bytes = b"0,0") -> None:
        self.say(CONNECT % heart_beat)
        await self.expect("CONNECTED")


def with_service(
    directory: Path, test: Callable[[Service, ManualClock], Awaitable[None]], limits: StompLimits | None = None
) -> None:
    async def work() -> None:
        clock = ManualClock()
        core = BrokerCore(as_chosen(EmbeddedStore(directory, clock=clock)), clock=clock)
        await core.start()
        try:
            await test(Service(core, limits), clock)
        finally:
            await core.close()

    asyncio.run(work())


def test_every_state_has_its_row() -> None:
    assert set(STATES) == set(State)
    assert set(STATES[State.UNCONNECTED]) == {"CONNECT", "STOMP"}
    assert "CONNECT" not in STATES[State.CONNECTED]


def test_frames_behind_one_that_waits_keep_their_order(tmp_path: Path) -> None:
    async def test(service: Service, clock: ManualClock) -> None:
        peer = Peer(service)
        # The login and the making of the queue are waited for; what is behind them waits, too, and is read no further.
        peer.say(
            CONNECT % b"0,0"
            + b"SEND\ndestination:/queue/q\nreceipt:1\n\na\0SEND\ndestination:/queue/q\nreceipt:2\n\nb\0"
        )
        assert not peer.reading
        await peer.expect("CONNECTED")
        assert [(await peer.expect("RECEIPT"))[0]["receipt-id"] for _ in range(2)] == ["1", "2"]
        assert peer.reading
        peer.say(b"SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0")
        assert [(await peer.expect("MESSAGE"))[1] for _ in range(2)] == [b"a", b"b"]

    with_service(tmp_path, test)


def test_nothing_after_an_error_takes_effect(tmp_path: Path) -> None:
    async def test(service: Service, clock: ManualClock) -> None:
        peer = Peer(service)
        await peer.connect()
        peer.say(b"SEND\n\n\0SEND\ndestination:/queue/never\n\nx\0")
        headers, _ = await peer.expect("ERROR")
        assert headers["message"] == "Missing destination"
        assert peer.closed
        assert peer.session.closed
        peer.say(b"SEND\ndestination:/queue/never\n\nx\0")
        assert "never" not in service.vhosts["/"].queues

    with_service(tmp_path, test)


def test_what_a_lost_client_holds_goes_back_and_its_queues_go(tmp_path: Path) -> None:
    async def test(service: Service, clock: ManualClock) -> None:
        first = Peer(service)
        await first.connect()
        first.say(b"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0SUBSCRIBE\nid:2\ndestination:/topic/t\n\n\0")
        first.say(b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/q\n\nx\0SEND\ndestination:/queue/q\n\ny\0")
        message, _ = await first.expect("MESSAGE")
        await first.expect("MESSAGE")
        first.say(f"ACK\nid:{message['ack']}\ntransaction:t\n\n\0".encode())
        assert len(service.vhosts["/"].queues) == 2
        first.session.lost()
        second = Peer(service)
        await second.connect()
        second.say(b"SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0")
        for body in (b"x", b"y"):
            again, found = await second.expect("MESSAGE")
            assert (again["redelivered"], found) == ("true", body)
        assert list(service.vhosts["/"].queues) == ["q"]

    with_service(tmp_path, test)


def test_heart_beats_are_sent_when_due_and_missed_ones_end_the_connection(tmp_path: Path) -> None:
    async def test(service: Service, clock: ManualClock) -> None:
        peer = Peer(service)
        await peer.connect(b"1000,2000")
        clock.advance(1_500)
        peer.session.tick(clock.monotonic_ms())
        await asyncio.sleep(0)
        assert peer.beats == 0
        peer.say(b"\n")
        clock.advance(400)
        peer.session.tick(clock.monotonic_ms())
        await asyncio.sleep(0)
        assert peer.beats == 1
        clock.advance(1_700)
        peer.session.tick(clock.monotonic_ms())
        assert peer.closed

    with_service(tmp_path, test)


def test_who_does_not_say_connect_is_cut_off(tmp_path: Path) -> None:
    async def test(service: Service, clock: ManualClock) -> None:
        peer = Peer(service)
        clock.advance(service.limits.connect_timeout_ms + 1)
        peer.session.tick(clock.monotonic_ms())
        assert peer.closed

    with_service(tmp_path, test)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0SUBSCRIBE\nid:2\ndestination:/queue/a\n\n\0", "Too many subscriptions"),
        (b"BEGIN\ntransaction:1\n\n\0BEGIN\ntransaction:2\n\n\0", "Bad transaction"),
        (b"BEGIN\ntransaction:1\n\n\0" + b"SEND\ntransaction:1\ndestination:/queue/a\n\nx\0" * 3, "precondition_failed"),
        (b"SEND\ndestination:/queue/a\n\n" + b"x" * 2_000 + b"\0", "Malformed frame"),
    ],
)  # fmt: skip
def test_limits_are_told(tmp_path: Path, frames: bytes, message: str) -> None:
    async def test(service: Service, clock: ManualClock) -> None:
        peer = Peer(service)
        await peer.connect()
        peer.say(frames)
        headers, _ = await peer.expect("ERROR")
        assert headers["message"] == message

    limits = StompLimits(
        max_subscriptions=1, max_transactions=1, max_transaction_messages=2, max_message_bytes=1_000
    )  # fmt: skip
    with_service(tmp_path, test, limits)


def test_a_client_that_does_not_read_gets_no_more(tmp_path: Path) -> None:
    async def test(service: Service, clock: ManualClock) -> None:
        peer = Peer(service)
        await peer.connect()
        peer.say(b"SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:s\n\n\0")
        await peer.expect("RECEIPT")
        peer.session.pause_writing()
        peer.say(b"SEND\ndestination:/queue/q\nreceipt:r\n\nx\0")
        await peer.expect("RECEIPT")
        assert peer.heard == []
        peer.session.resume_writing()
        assert (await peer.expect("MESSAGE"))[1] == b"x"

    with_service(tmp_path, test)
