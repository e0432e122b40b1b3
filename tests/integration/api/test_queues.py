"""put, get, poll, notify and settling, of both faces against a server process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import trunkline
from tests.integration.api.scenario import FACES, eventually, now, play
from trunkline import BodyRefused, LeaseLost, Refused, Retry, Timeout

Unique = Callable[[str], str]
pytestmark = pytest.mark.parametrize("face", FACES)


@dataclass
class Job:
    number: int
    name: str = ""


def test_what_is_put_is_got_once_and_in_order(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"), Job)
        ids = [await now(queue.put(Job(number, "x"), headers={"color": "red"})) for number in range(20)]
        assert len(set(ids)) == 20
        for number in range(20):
            message = await now(queue.get())
            assert (message.value, message.id, message.attempt) == (Job(number, "x"), ids[number], 1)
            assert message.headers == {"color": "red"}
            await now(message.ack())
        assert await now(queue.poll()) is None

    play(face, url, scenario)


def test_many_are_put_at_once(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        assert len(set(await now(queue.put_all(range(500))))) == 500
        for number in range(500):
            message = await now(queue.get())
            assert message.value == number
            await now(message.ack())

    play(face, url, scenario)


def test_get_times_out_and_takes_nothing_with_it(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        started = time.monotonic()
        with pytest.raises(Timeout):
            await now(queue.get(timeout=0.2))
        assert 0.15 < time.monotonic() - started < 10
        await now(queue.put("late"))
        message = await now(queue.poll())
        assert message.value == "late"
        await now(message.ack())

    play(face, url, scenario)


def test_what_is_fetched_ahead_and_not_asked_for_goes_to_others(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        await now(queue.put_all(range(10)))
        for number in range(5):
            message = await now(queue.get())
            assert message.value == number
            await now(message.ack())
        seen: list[int] = []
        other = await now(t.queue(queue.name).notify(lambda message: seen.append(message.value)))
        await eventually(lambda: sorted(seen) == [5, 6, 7, 8, 9])
        await now(other.stop())

    play(face, url, scenario)


def test_a_released_message_comes_again_after_its_delay(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        await now(queue.put("again"))
        first = await now(queue.get())
        released = time.monotonic()
        await now(first.release(delay=0.4))
        assert await now(queue.poll()) is None
        second = await now(queue.get())
        assert time.monotonic() - released >= 0.4
        assert (second.value, second.attempt, second.redelivered) == ("again", 2, True)
        with pytest.raises(LeaseLost):
            await now(first.ack())
        await now(second.ack())

    play(face, url, scenario)


def test_a_lease_ends_unless_it_is_extended(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"), lease=0.5)
        await now(queue.put("leased"))
        first = await now(queue.get())
        await now(first.extend(1.0))
        with pytest.raises(Timeout):
            await now(queue.get(timeout=0.6))
        second = await now(queue.get())
        assert second.attempt == 2
        with pytest.raises(LeaseLost):
            await now(first.extend(1.0))
        await now(first.ack())  # has no effect: it is not this consumer's any more
        await now(second.ack())
        assert await now(queue.poll()) is None

    play(face, url, scenario)


def test_late_acknowledgements_do_not_settle_somebody_elses_lease(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"), lease=0.3)
        await now(queue.put("leased"))
        first = await now(queue.get())
        second = await now(queue.get())
        await now(first.ack())
        await now(second.release())
        third = await now(queue.get())
        assert third.attempt == 3
        await now(third.ack())

    play(face, url, scenario)


def test_a_function_that_raises_is_tried_again_and_then_dead_lettered(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        dead = t.queue(unique("dead"))
        queue = t.queue(unique("q"), retry=Retry(2, backoff=0.1), dead_letter=dead.name)
        seen: list[tuple[str, float]] = []

        def work(text: str) -> None:
            seen.append((text, time.monotonic()))
            if text == "bad":
                raise ValueError("no")

        handle = await now(queue.notify(work, concurrency=2))
        await now(queue.put("bad"))
        await now(queue.put("good"))
        letter = await now(dead.get())
        assert letter.value == "bad"
        await now(letter.ack())
        tries = [at for text, at in seen if text == "bad"]
        assert len(tries) == 3
        assert tries[1] - tries[0] >= 0.1
        assert tries[2] - tries[1] >= 0.2
        await eventually(lambda: handle.handled == 1)
        assert handle.failed == 3
        await now(handle.stop())

    play(face, url, scenario)


def test_a_body_of_another_type_goes_to_the_dead_letters_at_once(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        dead = t.queue(unique("dead"))
        queue = t.queue(unique("q"), retry=Retry(5), dead_letter=dead.name)
        seen: list[Job] = []

        def work(job: Job) -> None:
            seen.append(job)

        handle = await now(queue.notify(work))
        await now(queue.put({"number": "three"}))
        await now(queue.put(Job(4)))
        assert (await now(dead.get())).value == {"number": "three"}
        await eventually(lambda: seen == [Job(4)])
        await now(handle.stop())
        with pytest.raises(BodyRefused):
            await now(queue.put(object()))

    play(face, url, scenario)


def test_no_more_run_at_a_time_than_asked_for(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        lock = threading.Lock()
        running, most, done = 0, 0, 0

        def work(message: trunkline.Message[Any]) -> None:
            nonlocal running, most, done
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.02)
            with lock:
                running -= 1
                done += 1

        await now(queue.put_all(range(30)))
        handle = await now(queue.notify(work, concurrency=3))
        await eventually(lambda: done == 30)
        assert most == 3
        await now(handle.stop())

    play(face, url, scenario)


def test_a_delayed_message_comes_when_its_time_has_come(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        started = time.monotonic()
        await now(queue.put("later", delay=0.5))
        await now(queue.put("now"))
        for expected in ("now", "later"):
            message = await now(queue.get())
            assert message.value == expected
            await now(message.ack())
        assert time.monotonic() - started >= 0.5

    play(face, url, scenario)


def test_a_queue_that_is_declared_otherwise_is_refused_in_words(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        name = unique("q")
        await now(t.queue(name).put(1))
        with pytest.raises(Refused, match="PRECONDITION_FAILED"):
            await now(t.queue(name, retry=Retry(3)).put(2))
        await now(t.queue(name).put(3))

    play(face, url, scenario)


def test_a_filter_chooses_which_message_is_got(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        queue = t.queue(unique("q"))
        for price in (150, 99, 120, 7):
            await now(queue.put({"price": price}))
        first = await now(queue.get(where="price < 100"))
        second = await now(queue.poll(where="price < 100"))
        assert (first.value, second.value) == ({"price": 99}, {"price": 7})
        assert await now(queue.poll(where="price < 100")) is None
        for message in (first, second):
            await now(message.ack())
        for price in (150, 120):
            message = await now(queue.get())
            assert message.value == {"price": price}
            await now(message.ack())

    play(face, url, scenario)
