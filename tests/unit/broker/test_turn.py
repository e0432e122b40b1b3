"""The order of a turn, and when it ends."""

from __future__ import annotations

import asyncio

from trunkline.broker.turn import Turn


def test_a_turn_collects_deals_writes_out_and_then_does_what_was_put_off() -> None:
    async def test() -> None:
        done: list[str] = []
        turn = Turn()

        def collected() -> None:
            done.append("collected")
            assert turn.put_off(lambda: done.append("put off"))
            turn.output(lambda: done.append("output"))

        turn.ask_to_deal(lambda: done.append("deal"))
        turn.collect(collected)
        await asyncio.sleep(0)
        assert done == ["collected", "deal", "output", "put off"]

    asyncio.run(test())


def test_outside_a_turn_nothing_is_put_off() -> None:
    async def test() -> None:
        assert not Turn().put_off(lambda: None)

    asyncio.run(test())


def test_a_deal_that_asks_for_another_gets_it_in_the_next_turn() -> None:
    async def test() -> None:
        deals: list[int] = []

        def deal() -> None:
            deals.append(len(deals))
            if len(deals) < 3:
                turn.ask_to_deal(deal)

        turn = Turn()
        turn.ask_to_deal(deal)
        for expected in (1, 2, 3, 3):
            await asyncio.sleep(0)
            assert len(deals) == expected

    asyncio.run(test())


def test_a_lone_read_ends_the_turn_at_once_and_others_wait_for_the_end_of_the_pass() -> None:
    async def test() -> None:
        deals: list[int] = []
        turn = Turn()
        loop = asyncio.get_running_loop()

        turn.hold()
        turn.ask_to_deal(lambda: deals.append(1))
        assert not deals
        turn.let_go()
        assert deals == [1]

        loop.call_soon(lambda: None)  # another read of this pass
        turn.hold()
        turn.ask_to_deal(lambda: deals.append(1))
        turn.let_go()
        assert deals == [1]
        await asyncio.sleep(0)
        assert deals == [1, 1]

    asyncio.run(test())


def test_what_fails_does_not_keep_the_rest_from_being_done() -> None:
    async def test() -> None:
        done: list[str] = []

        def fail() -> None:
            raise RuntimeError("on purpose")

        turn = Turn()
        turn.ask_to_deal(fail)
        turn.ask_to_deal(lambda: done.append("deal"))
        turn.collect(fail)
        turn.output(fail)
        turn.output(lambda: done.append("output"))
        await asyncio.sleep(0)
        assert done == ["deal", "output"]

    asyncio.run(test())
