"""The late store does what it is for: it answers late, loses no order, fails for a while and comes back."""

from __future__ import annotations

import asyncio
from random import Random

from tests.late_log import LateLog
from tests.unit.log.stores import TP, run
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import StorageFailure
from trunkline.log.memory.store import MemoryStore
from trunkline.log.ticket import Ticket


def _batch(value: bytes) -> bytes:
    return build_batch([NewRecord(b"k", value)], timestamp_ms=0)


async def _late(*, faults: float = 0.0) -> LateLog:
    late = LateLog(MemoryStore(), Random(1), faults=faults)
    await late.start()
    await late.create_topic("t", 2)
    return late


def test_a_place_is_not_known_at_once_and_what_others_append_stands_in_between() -> None:
    async def main() -> None:
        late = await _late()
        assert late.bounds(TP).high_watermark == 0
        ours = late.append(TP, _batch(b"ours"))
        assert ours.place is None
        theirs = await late.below.append(TP, _batch(b"theirs"))
        assert late.bounds(TP).high_watermark == 0
        assert (theirs.base_offset, (await ours).base_offset) == (0, 1)
        assert late.bounds(TP).high_watermark == 2
        await late.close()

    run(main())


def test_partitions_overtake_one_another_but_keep_their_own_order() -> None:
    async def main() -> None:
        late = await _late()
        done: list[int] = []
        tickets = []

        async def noted(ticket: Ticket, number: int) -> None:
            await ticket
            done.append(number)

        for number in range(100):
            tp = TP._replace(partition=number % 2)
            ticket = late.append(tp, _batch(b"v"))
            tickets.append(asyncio.ensure_future(noted(ticket, number)))
        await asyncio.gather(*tickets)
        for partition in (0, 1):
            own = [number for number in done if number % 2 == partition]
            assert own == sorted(own)
        assert done != sorted(done)
        await late.close()

    run(main())


def test_an_outage_fails_appends_and_reads_and_passes() -> None:
    async def main() -> None:
        late = await _late(faults=0.2)
        outcomes: list[bool] = []
        while len(outcomes) < 100 or not outcomes[-1]:
            try:
                await late.append(TP, _batch(b"v"))
                await late.read(TP, 0, 1000)
            except StorageFailure:
                outcomes.append(False)
            else:
                outcomes.append(True)
        assert set(outcomes) == {True, False}
        await late.close()

    run(main())
