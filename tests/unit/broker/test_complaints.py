"""What strangers can make the broker say: the first at once, the rest as a number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from trunkline.broker.complaints import ELSEWHERE, Complaints


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "trunkline.broker.complaints")

    def take() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return take


async def quiet(complaints: Complaints) -> None:
    """Complaints whose own timer never comes: the test sums up."""
    complaints.close()


def test_the_first_is_said_at_once_and_the_others_as_a_number(said: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        complaints = Complaints()
        for number in range(46):
            complaints.add("garbage", "10.0.0.7", f"no request: {number}")
        assert said() == ["10.0.0.7: no request: 0"]
        complaints.sum_up()
        assert said() == ["10.0.0.7: no request: 45; and 44 more of this kind (garbage) in the last 60 s"]
        complaints.sum_up()
        assert said() == [], "nothing came since"
        complaints.add("garbage", "10.0.0.7", "again")
        assert said() == ["10.0.0.7: again"], "after a quiet interval it is news"
        await quiet(complaints)

    asyncio.run(scenario())


def test_kinds_and_addresses_are_told_apart(said: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        complaints = Complaints()
        for kind, address in (("garbage", "a"), ("login", "a"), ("garbage", "b")):
            complaints.add(kind, address, kind)
        assert len(said()) == 3
        await quiet(complaints)

    asyncio.run(scenario())


def test_however_many_addresses_there_are_the_log_and_the_memory_are_bounded(said: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        complaints = Complaints(max_addresses=3)
        for number in range(1_000):
            complaints.add("garbage", f"address {number}", "no request")
        assert len(said()) == 4
        complaints.sum_up()
        assert [line.partition(":")[0] for line in said()] == [ELSEWHERE]
        complaints.close()
        assert said() == []

    asyncio.run(scenario())


def test_the_sum_comes_by_itself(said: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        complaints = Complaints(interval_ms=10)
        complaints.add("garbage", "a", "first")
        complaints.add("garbage", "a", "second")
        lines = said()
        async with asyncio.timeout(20):
            while len(lines) < 2:
                await asyncio.sleep(0.005)
                lines += said()
        assert lines == ["a: first", "a: second; and 0 more of this kind (garbage) in the last 0.01 s"]
        complaints.close()

    asyncio.run(scenario())


def test_a_fault_of_ours_comes_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        complaints = Complaints()
        for _ in range(3):
            complaints.add("fault", "a", "it failed", error=ValueError("boom"))
        complaints.close()

    asyncio.run(scenario())
    assert [record.exc_info is not None for record in caplog.records] == [True, False]
