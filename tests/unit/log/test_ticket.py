"""The ticket of an append: the place may be known at once, later, or never."""

from __future__ import annotations

import asyncio

from trunkline.log.errors import StorageFailure
from trunkline.log.ticket import Appended, Ticket

PLACE = Appended(5, 7, -1, 0)


def test_who_asks_before_the_place_is_known_is_told_when_it_is() -> None:
    async def scenario() -> None:
        ticket = Ticket()
        told: list[Appended | None] = []
        ticket.when_placed(lambda each: told.append(each.place))
        ticket.when_placed(lambda each: told.append(each.place))
        assert told == []
        ticket.placed(PLACE)
        assert told == [PLACE, PLACE]
        ticket.set_result(PLACE)
        await asyncio.sleep(0)
        assert told == [PLACE, PLACE], "once, not again when it is durable"

    asyncio.run(scenario())


def test_who_asks_afterwards_is_told_at_once() -> None:
    async def scenario() -> None:
        ticket = Ticket()
        ticket.placed(PLACE)
        told: list[Appended | None] = []
        ticket.when_placed(lambda each: told.append(each.place))
        assert told == [PLACE]

    asyncio.run(scenario())


def test_a_refused_batch_has_no_place_and_who_waits_is_told_so() -> None:
    async def scenario() -> None:
        ticket = Ticket()
        told: list[Appended | None] = []
        ticket.when_placed(lambda each: told.append(each.place))
        ticket.set_exception(StorageFailure("memory", "gone"))
        await asyncio.sleep(0)
        ticket.when_placed(lambda each: told.append(each.place))
        assert told == [None, None]
        assert isinstance(ticket.exception(), StorageFailure)

    asyncio.run(scenario())


def test_the_place_can_be_waited_for() -> None:
    async def scenario() -> None:
        known, coming, refused = Ticket(), Ticket(), Ticket()
        known.placed(PLACE)
        await known.until_placed()
        waiting = [asyncio.create_task(ticket.until_placed()) for ticket in (coming, coming, refused)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        waiting[0].cancel()  # who goes away leaves the ticket to the others
        await asyncio.wait({waiting[0]})
        coming.placed(PLACE)
        refused.set_exception(StorageFailure("memory", "gone"))
        await asyncio.gather(*waiting[1:])
        assert (coming.place, refused.place) == (PLACE, None)
        assert isinstance(refused.exception(), StorageFailure)

    asyncio.run(scenario())
