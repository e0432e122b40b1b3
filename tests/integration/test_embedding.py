"""A broker inside an application or a test: `trunkline.Broker`, `trunkline.run` and the pytest fixture."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

import trunkline
from tests.integration.kafka import settings
from tests.integration.kafka.deliveries import deliver, take_values
from tests.integration.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.ours_only("Apache Kafka does not run inside a Python process")

START_SECONDS = 5.0  # well under a second on an idle machine; the tests run several at a time


def test_what_the_package_offers_can_be_looked_up_and_is_imported_on_first_use() -> None:
    script = "import sys, trunkline; print({'Broker', 'run'} <= set(dir(trunkline)), 'trunkline.app' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_broker_runs_in_the_loop_of_its_clients() -> None:
    async def main() -> list[bytes]:
        async with trunkline.Broker() as broker:
            assert broker.address("kafka") == broker.bootstrap
            async with AIOKafkaProducer(**settings.aiokafka(broker.bootstrap)) as producer:
                for number in range(10):
                    await producer.send_and_wait("inside", b"%d" % number)
            async with AIOKafkaConsumer("inside", **settings.aiokafka_consumer(broker.bootstrap, "g")) as consumer:
                return [(await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)).value for _ in range(10)]

    assert asyncio.run(main()) == [b"%d" % number for number in range(10)]


def test_a_broker_runs_beside_synchronous_code_and_keeps_a_given_directory(tmp_path: Path) -> None:
    started = time.monotonic()
    with trunkline.run(tmp_path / "log") as broker:
        assert time.monotonic() - started < START_SECONDS
        deliver(Producer(settings.confluent_producer(broker.bootstrap)), "kept", [b"a", b"b"])
    with trunkline.run(tmp_path / "log") as broker:
        reader = Consumer(settings.confluent_consumer(broker.bootstrap, "g"))
        reader.assign([TopicPartition("kept", 0, 0)])
        assert take_values(reader, 2) == [b"a", b"b"]
        reader.close()


def test_a_temporary_log_goes_away_with_its_broker() -> None:
    with trunkline.run() as broker:
        data = broker.data
        deliver(Producer(settings.confluent_producer(broker.bootstrap)), "brief", [b"x"])
        assert data.is_dir()
    assert not data.exists()


def test_brokers_side_by_side_share_nothing() -> None:
    with trunkline.run() as first, trunkline.run() as second:
        assert first.bootstrap != second.bootstrap
        deliver(Producer(settings.confluent_producer(first.bootstrap)), "mine", [b"x"])
        topics = Producer(settings.confluent_producer(second.bootstrap)).list_topics(timeout=DEADLINE_SECONDS).topics
        assert "mine" not in topics


def test_the_pytest_fixture_gives_each_test_an_empty_broker(tmp_path: Path) -> None:
    """A project of its own, with nothing but the installed plugin."""
    (tmp_path / "test_project.py").write_text(
        textwrap.dedent(
            """
            import pytest
            from confluent_kafka import Producer

            @pytest.mark.parametrize("turn", [1, 2])
            def test_it(trunkline_broker, turn):
                producer = Producer({"bootstrap.servers": trunkline_broker.bootstrap})
                assert "orders" not in producer.list_topics(timeout=30).topics
                producer.produce("orders", b"first")
                assert producer.flush(30) == 0
                assert "orders" in producer.list_topics(timeout=30).topics
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_project.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
