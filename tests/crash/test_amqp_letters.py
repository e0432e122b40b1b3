"""Dead letters and delayed messages under kill -9: at every moment a message is in a queue, on its way to one, or both.

Rejected messages go from `work` to `dead`, delayed ones from the exchange `later` to `due`, while the broker is killed
again and again. What was confirmed must arrive: at least once, since a crash between the entry into the new queue and
the end in the old place may leave it in both.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.crash.amqp_clients import LOST, PERSISTENT
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until

KILLS = 6
MESSAGES = 1_500
LIFE_SECONDS = (0.02, 0.25)
MAX_DELAY_MS = 2_500
QUIET_SECONDS = 1.0
REPEATED_MAX = 0.2

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    server.start()
    try:
        yield server
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        server.close()


@pytest.fixture
def chance() -> random.Random:
    return random.Random(int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000))))


def connect(server: ServerProcess) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", server.port_of("amqp"), socket_timeout=5.0, stack_timeout=5.0)
    return pika.BlockingConnection(parameters)


def kill_and_restart(server: ServerProcess) -> None:
    server.kill()
    server.start()


def numbers_in(server: ServerProcess, queue: str, expected: set[int]) -> list[int]:
    """Every number in the queue, taken off it, once all that is expected has come."""
    channel = connect(server).channel()
    found: list[int] = []

    def taken() -> bool:
        for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=QUIET_SECONDS):
            if body is None:
                break
            found.append(int(body))
        return expected <= set(found)

    wait_until(taken, what=f"{len(expected)} messages of {queue}, of which {len(expected - set(found))} are missing")
    return found


def test_dead_letters_survive_kill_9(server: ServerProcess, chance: random.Random) -> None:
    channel = connect(server).channel()
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("work", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(MESSAGES):
        channel.basic_publish("", "work", b"%d" % number, PERSISTENT)
    for _ in range(KILLS):
        reject_until_killed(server, chance)
    reject_the_rest(server)
    found = numbers_in(server, "dead", set(range(MESSAGES)))
    assert set(found) == set(range(MESSAGES))
    assert len(found) < MESSAGES * (1 + REPEATED_MAX), "hardly any is there twice"
    assert connect(server).channel().queue_declare("work", passive=True).method.message_count == 0


def reject_until_killed(server: ServerProcess, chance: random.Random) -> None:
    """Reject what comes, one by one or many at once, until the broker is killed in the middle of it."""
    connection = connect(server)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=50)
    unsettled: list[int] = []

    def reject(_channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        unsettled.append(method.delivery_tag)
        if chance.random() < 0.2:
            channel.basic_nack(unsettled[-1], multiple=True, requeue=False)
            unsettled.clear()

    channel.basic_consume("work", reject)
    until = time.monotonic() + chance.uniform(*LIFE_SECONDS)
    while time.monotonic() < until:
        connection.process_data_events(0.005)
    kill_and_restart(server)
    with contextlib.suppress(*LOST):
        connection.close()


def reject_the_rest(server: ServerProcess) -> None:
    connection = connect(server)
    channel = connection.channel()
    for method, _, _ in channel.consume("work", inactivity_timeout=QUIET_SECONDS):
        if method is None:
            break
        channel.basic_reject(method.delivery_tag, requeue=False)
    connection.close()


def test_delayed_messages_survive_kill_9_and_are_not_early(server: ServerProcess, chance: random.Random) -> None:
    channel = connect(server).channel()
    channel.queue_declare("due", durable=True)
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_bind("due", "later")
    channel.confirm_delivery()
    last_ms = 0.0
    for number in range(MESSAGES):
        delay_ms = chance.randrange(1, MAX_DELAY_MS)
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay_ms})
        channel.basic_publish("later", "", b"%d" % number, properties)
        last_ms = max(last_ms, time.time() * 1000 + delay_ms)
        if number % (MESSAGES // KILLS) == MESSAGES // KILLS - 1:
            kill_and_restart(server)
            channel = connect(server).channel()
            channel.confirm_delivery()
    far = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
    channel.basic_publish("later", "", b"-1", far)
    kill_and_restart(server)
    found = numbers_in(server, "due", set(range(MESSAGES)))
    assert set(found) == set(range(MESSAGES)), "and nothing before its time"
    assert len(found) < MESSAGES * (1 + REPEATED_MAX), "hardly any is there twice"
    assert time.time() * 1000 >= last_ms - 1
