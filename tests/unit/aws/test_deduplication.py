"""The deduplication window: five minutes, by id and group, bounded, and what keeps the log from being trimmed."""

from __future__ import annotations

import asyncio

from trunkline.broker.messaging.deduplication import DEDUPLICATION_HEADER, WINDOW_MS, Deduplication, deduplication_id
from trunkline.clock import ManualClock
from trunkline.log.records import encode_headers
from trunkline.log.ticket import Appended, Ticket


def test_an_id_is_known_for_five_minutes() -> None:
    clock = ManualClock(1_000_000)
    window = Deduplication(clock)
    sent = window.note(b"id", None, b"first", clock.wall_ms())
    assert window.find(b"id", None) is sent
    assert window.find(b"id", b"group") is None
    clock.advance(WINDOW_MS - 1)
    assert window.find(b"id", None) is sent
    clock.advance(1)
    assert window.find(b"id", None) is None


def test_what_was_not_stored_may_be_sent_again() -> None:
    clock = ManualClock(1_000_000)
    window = Deduplication(clock)
    window.take_back(window.note(b"id", None, b"", clock.wall_ms()))
    assert window.find(b"id", None) is None


def test_the_log_is_kept_from_the_oldest_message_of_the_window() -> None:
    async def check() -> None:
        clock = ManualClock(1_000_000)
        window = Deduplication(clock)
        nothing = window.floor()
        for offset in (5, 6):
            ticket = Ticket()
            sent = window.note(str(offset).encode(), None, b"", clock.wall_ms())
            window.placed(sent, ticket)
            ticket.placed(Appended(offset, offset, -1, 0))
            clock.advance(1000)
        assert window.floor() == 5
        clock.advance(WINDOW_MS - 2000)
        assert window.floor() == 6
        clock.advance(1000)
        assert window.floor() == nothing

    asyncio.run(check())


def test_the_id_is_a_header_of_the_record() -> None:
    assert deduplication_id(encode_headers([("a", b"b"), (DEDUPLICATION_HEADER, b"x")])) == b"x"
    assert deduplication_id(encode_headers([("a", b"b")])) is None
