"""Drivers and brokers are killed at random points; the output topic and table equal the input, no loss, no duplicate.

A Spark driver takes seconds to start, so the kills here are few; `KILLS` in the environment asks for more:

    KILLS=20 python -m pytest tests/spark/test_exactly_once.py
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until
from tests.spark.driver import Streams
from tests.spark.feeding import make_topic, values_of
from trunkline.client.client import Client
from trunkline.client.producer import Producer
from trunkline.client.topics import LATEST, Topics
from trunkline.log.store import TopicPartition

KILLS = int(os.environ.get("KILLS", "2"))
START_SECONDS = 240.0
FIRST_SECONDS = 300
SECONDS_PER_KILL = 60
FEED_INTERVAL_S = 0.05
RECORDS_PER_FEED = 10
SEED = int(os.environ.get("SEED", "20261"))


class Feeder:
    """Produces numbered records until stopped; survives a broker that is away."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic), name="feeder")

    def _run(self, bootstrap: str, topic: str) -> None:
        try:
            with Client(bootstrap, timeout_ms=60_000) as client:
                producer = Producer(client, topic)
                while not self._stop.wait(FEED_INTERVAL_S):
                    for number in range(self.sent, self.sent + RECORDS_PER_FEED):
                        producer.send(b"%d" % (number % 50), b"%08d" % number)
                    producer.flush()
                    self.sent += RECORDS_PER_FEED
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._failure is None, f"the feeder failed: {self._failure!r}"


class Driver:
    """A Spark driver that can be killed; its JVM and Python workers go with it."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line == "ready", f"the driver said {line!r}: {log.read_text()[-3000:]}"

    def kill(self) -> None:
        if self._process.poll() is None:
            # The driver's JVM and its workers are in the session that was made for it.
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until the condition holds; a driver that fails meanwhile fails the test."""

        def met() -> bool:
            assert self._process.poll() is None, f"the driver failed: {self._log.read_text()[-3000:]}"
            return condition()

        wait_until(met, START_SECONDS, "rows in the output")


@contextmanager
def killed_at_the_end(driver: Driver) -> Iterator[Driver]:
    try:
        yield driver
    finally:
        driver.kill()


def end_of(client: Client, topic: str) -> int:
    """Grows with every committed batch."""
    partitions = [TopicPartition(topic, part.index) for part in client.topic(topic).partitions]
    return sum(Topics(client).offsets(partitions, LATEST, committed=True).values())


def check_output(streams: Streams, client: Client, sent: int) -> None:
    expected = [b"%08d" % number for number in range(sent)]
    found = Counter(values_of(client, streams.target))
    assert not [value for value, times in found.items() if times > 1], "records were written twice"
    assert sorted(found) == expected
    rows = [bytes(row.value) for row in streams.spark.read.parquet(str(streams.table)).select("value").collect()]
    assert sorted(rows) == expected


@pytest.mark.slow
@pytest.mark.timeout(FIRST_SECONDS + KILLS * SECONDS_PER_KILL)
def test_killed_drivers_lose_and_repeat_nothing(
    spark: SparkSession, broker: ServerProcess, client: Client, unique: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = make_topic(client, unique("killed"), 2), make_topic(client, unique("output"), 2)
    arguments = [broker.bootstrap, source, target, str(tmp_path)]
    chance = random.Random(SEED)
    with Feeder(broker.bootstrap, source) as feeder:
        for _ in range(KILLS):
            seen = end_of(client, target)
            driver = Driver(arguments, tmp_path / "driver.log")
            with killed_at_the_end(driver):
                driver.wait_for(lambda: end_of(client, target) > seen)  # noqa: B023
                time.sleep(chance.uniform(0.0, 0.5))  # where in a batch the kill falls is left to chance
    streams = Streams(spark, broker.bootstrap, source, target, tmp_path)
    streams.finish()
    assert feeder.sent > 0
    check_output(streams, client, feeder.sent)


@pytest.mark.slow
@pytest.mark.timeout(FIRST_SECONDS + KILLS * SECONDS_PER_KILL)
def test_killed_brokers_lose_and_repeat_nothing(
    spark: SparkSession, fresh_broker: ServerProcess, unique: Callable[[str], str], tmp_path: Path
) -> None:
    with Client(fresh_broker.bootstrap, timeout_ms=60_000) as client:
        source, target = make_topic(client, unique("killed"), 2), make_topic(client, unique("output"), 2)
        streams = Streams(spark, fresh_broker.bootstrap, source, target, tmp_path)
        chance = random.Random(SEED)
        streams.start()
        try:
            with Feeder(fresh_broker.bootstrap, source) as feeder:
                # A query that starts while there is no broker fails at once, as it should: a person is waiting.
                wait_until(streams.both_have_begun, START_SECONDS, "the first batch of both queries")
                for _ in range(KILLS):
                    seen = end_of(client, target)

                    def more() -> bool:
                        streams.check()
                        return end_of(client, target) > seen  # noqa: B023

                    wait_until(more, START_SECONDS, "rows in the output")
                    time.sleep(chance.uniform(0.0, 0.5))
                    fresh_broker.kill()
                    fresh_broker.start()
        finally:
            streams.stop()
        streams.finish()
        assert feeder.sent > 0
        check_output(streams, client, feeder.sent)
