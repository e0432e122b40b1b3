"""Addresses, threads, and brokers inside the process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import trunkline
from trunkline import ConnectionLost, Refused, aio
from trunkline.bench.api_cases import AIO_PIKA, KINDS
from trunkline.bench.api_load import OURS, RUN

Unique = Callable[[str], str]


def test_a_broker_in_a_directory_keeps_what_it_was_given(tmp_path: Path) -> None:
    with trunkline.connect(str(tmp_path / "log"), timeout=20) as t:
        t.queue("jobs").put("kept")
    with trunkline.connect(str(tmp_path / "log"), timeout=20) as t:
        message = t.queue("jobs").get()
        assert message.value == "kept"
        message.ack()


def test_brokers_in_memory_are_each_their_own_and_can_be_joined() -> None:
    with trunkline.connect("memory:", timeout=20) as one, trunkline.connect("memory:", timeout=20) as two:
        one.queue("jobs").put(1)
        assert two.queue("jobs").poll() is None
        with trunkline.connect(one.url, timeout=20) as other:
            message = other.queue("jobs").get()
            assert message.value == 1
            message.ack()


def test_the_first_gateway_that_answers_is_taken(url: str, unique: Unique) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dead:
        port = dead.getsockname()[1]
    host = url.removeprefix("trunkline://")
    with trunkline.connect(f"trunkline://127.0.0.1:{port},{host}", timeout=20) as t:
        t.queue(unique("q")).put(1)


def test_a_wrong_password_is_refused_in_words(url: str) -> None:
    with pytest.raises(Refused, match="ACCESS_REFUSED"):
        trunkline.connect(url.replace("://", "://guest:wrong@"), timeout=20)


def test_threads_share_a_connection(url: str, unique: Unique) -> None:
    with trunkline.connect(url, timeout=30) as t:
        queue = t.queue(unique("q"))
        found: list[int] = []

        def put(first: int) -> None:
            for number in range(first, first + 25):
                queue.put(number)

        def take() -> None:
            for _ in range(25):
                message = queue.get(timeout=30)
                found.append(message.value)
                message.ack()

        threads = [threading.Thread(target=put, args=(25 * n,)) for n in range(4)]
        threads += [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(found) == list(range(100))


def test_a_connection_that_is_closed_says_so(url: str) -> None:
    t = trunkline.connect(url, timeout=5)
    queue = t.queue("jobs")
    t.close()
    with pytest.raises(ConnectionLost, match="closed"):
        queue.put(1)
    t.close()  # twice is once


def test_a_call_that_is_cancelled_takes_no_message_with_it(url: str, unique: Unique) -> None:
    async def scenario() -> None:
        async with aio.connect(url, timeout=20) as t:
            queue = t.queue(unique("q"))
            for number in range(20):
                waiting = asyncio.create_task(queue.get())
                await asyncio.sleep(0.001 * (number % 5))
                await queue.put(number)
                waiting.cancel()
                try:
                    message = await waiting
                except asyncio.CancelledError:
                    message = await queue.get()
                assert message.value == number
                await message.ack()

    asyncio.run(scenario())


def test_the_plugins_fixture_is_a_connected_broker(trunkline_connection: trunkline.Connection) -> None:
    trunkline_connection.queue("orders").put("tea")
    assert trunkline_connection.queue("orders").get().value == "tea"


@pytest.mark.parametrize("kind", KINDS[AIO_PIKA])
def test_the_benchmark_measures_our_side(kind: str, url: str) -> None:
    assert asyncio.run(RUN[OURS](kind, url.removeprefix("trunkline://"), 60)) > 0
