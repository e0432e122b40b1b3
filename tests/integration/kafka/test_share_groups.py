"""Share groups with confluent-kafka's ShareConsumer."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.integration.kafka import settings
from tests.integration.kafka.conftest import ClientFactory, TopicFactory, create_topic
from tests.integration.kafka.sharing import ACCEPT, REJECT, RELEASE, configure, joined, poll, take
from tests.integration.server import RestartableBroker, RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until
from trunkline.cli.main import cli

Unique = Callable[[str], str]
DELIVERIES = 5
SHORTEST_LOCK_MS = 15_000


class ShareFactory(Protocol):
    def __call__(self, group: str, *topics: str, **configs: Any) -> Any: ...


@pytest.fixture
def share(broker: RunningBroker) -> Iterator[ShareFactory]:
    """Make share consumers: `share("group", "topic", explicit=True)`; all are closed after the test."""
    made: list[Any] = []

    def make(group: str, *topics: str, **configs: Any) -> Any:
        made.append(joined(broker.bootstrap, group, topics, **configs))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def group(admin: Any, unique: Unique) -> str:
    """A share group that begins at the beginning."""
    name = unique("share")
    configure(admin, name, auto_offset_reset="earliest")
    return name


def produce(producer: Any, topic: str, count: int, partitions: int = 1) -> None:
    for number in range(count):
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(DEADLINE_SECONDS) == 0


def test_members_work_off_all_partitions_together(
    topic: TopicFactory, producer: ClientFactory, share: ShareFactory, group: str
) -> None:
    name = topic(3)
    produce(producer(), name, 3_000, 3)
    found: list[str] = []
    lock = threading.Lock()

    def work(consumer: Any) -> None:
        def nothing_left() -> bool:
            values = [message.value().decode() for message in poll(consumer)]
            with lock:
                found.extend(values)
                return len(found) >= 3_000

        wait_until(nothing_left, what="all records")
        consumer.commit_sync()

    threads = [threading.Thread(target=work, args=(share(group, name),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert Counter(found) == Counter(str(number) for number in range(3_000))


def test_more_members_than_partitions_share_them(
    topic: TopicFactory, producer: ClientFactory, share: ShareFactory, group: str
) -> None:
    name = topic(1)
    consumers = [share(group, name, explicit=True, max_poll_records=1) for _ in range(2)]
    for consumer in consumers:
        poll(consumer)
    making = producer()
    got: list[set[int]] = [set(), set()]

    def both_had_some() -> bool:
        produce(making, name, 4)
        for consumer, seen in zip(consumers, got, strict=True):
            for message in poll(consumer, 0.05):
                seen.add(message.offset())
                consumer.acknowledge(message, ACCEPT)
            consumer.commit_sync()
        return all(got)

    wait_until(both_had_some, what="records for both members")
    assert not got[0] & got[1]


def test_a_released_record_comes_again_and_a_rejected_one_does_not(
    topic: TopicFactory, producer: ClientFactory, share: ShareFactory, group: str
) -> None:
    name = topic(1)
    produce(producer(), name, 3)
    consumer = share(group, name, explicit=True)
    kinds = {0: ACCEPT, 1: RELEASE, 2: REJECT}
    first = take(consumer, 3, lambda message: consumer.acknowledge(message, kinds[message.offset()]))
    assert [message.delivery_count() for message in first] == [1, 1, 1]
    assert [error for error in consumer.commit_sync().values() if error] == []
    (again,) = take(consumer, 1, lambda message: consumer.acknowledge(message, ACCEPT))
    assert (again.offset(), again.delivery_count()) == (1, 2)
    consumer.commit_sync()
    assert poll(consumer) == []


def test_a_record_that_always_fails_is_archived_and_takes_no_others_along(
    topic: TopicFactory, producer: ClientFactory, share: ShareFactory, group: str
) -> None:
    name = topic(1)
    produce(producer(), name, 6)
    consumer = share(group, name, explicit=True)
    accepted: list[int] = []
    tried: Counter[int] = Counter()

    def all_done() -> bool:
        messages = poll(consumer, 0.2)
        poisoned = any(message.value() == b"3" for message in messages)
        for message in messages:
            tried[message.offset()] += 1
            assert message.delivery_count() == tried[message.offset()]
            consumer.acknowledge(message, RELEASE if poisoned else ACCEPT)
            if not poisoned:
                accepted.append(message.offset())
        consumer.commit_sync()
        return len(accepted) == 5 and tried[3] == DELIVERIES

    wait_until(all_done, what="the good records and the last try of the bad one")
    assert sorted(accepted) == [0, 1, 2, 4, 5]
    assert poll(consumer) == []


def test_what_a_closed_consumer_held_comes_to_another(
    broker: RunningBroker, topic: TopicFactory, producer: ClientFactory, share: ShareFactory, group: str
) -> None:
    name = topic(1)
    produce(producer(), name, 10)
    leaving = joined(broker.bootstrap, group, [name], explicit=True)
    take(leaving, 10)
    staying = share(group, name)
    leaving.close()
    found = take(staying, 10)
    assert {message.delivery_count() for message in found} == {2}


def test_a_waiting_fetch_is_woken_by_an_append(
    topic: TopicFactory, producer: ClientFactory, share: ShareFactory, group: str
) -> None:
    name = topic(1)
    consumer = share(group, name, fetch_wait_max_ms=30_000)
    making = producer()
    produce(making, name, 1)
    take(consumer, 1)
    for _ in range(3):
        poll(consumer, 0.1)
        produce(making, name, 1)
        assert take(consumer, 1)


def test_a_new_group_begins_at_the_end_unless_it_is_told_otherwise(
    topic: TopicFactory, producer: ClientFactory, share: ShareFactory, unique: Unique
) -> None:
    name, making = topic(1), producer()
    produce(making, name, 5)
    consumer = share(unique("share"), name)
    found: list[int] = []

    def some() -> bool:
        making.produce(name, b"new")
        making.flush(DEADLINE_SECONDS)
        found.extend(message.offset() for message in poll(consumer, 0.2))
        return bool(found)

    wait_until(some, what="a record that came later")
    assert min(found) >= 5


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_batches_come_as_they_were_compressed(
    codec: str, topic: TopicFactory, producer: ClientFactory, share: ShareFactory, group: str
) -> None:
    name = topic(1)
    produce(producer(compression_type=codec, linger_ms=20), name, 300)
    found = take(share(group, name), 300)
    assert [message.value() for message in found] == [str(number).encode() for number in range(300)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_transactions_are_left_out_where_the_group_says_so(
    isolation: str,
    broker: RunningBroker,
    admin: Any,
    topic: TopicFactory,
    share: ShareFactory,
    group: str,
    unique: Unique,
) -> None:
    configure(admin, group, isolation_level=isolation)
    name = topic(1)
    making = Producer(settings.confluent_producer(broker.bootstrap, transactional_id=unique("id")))
    making.init_transactions(DEADLINE_SECONDS)
    for number in range(6):
        making.begin_transaction()
        for _ in range(2):
            making.produce(name, str(number))
        making.flush(DEADLINE_SECONDS)
        if number % 2:
            making.abort_transaction(DEADLINE_SECONDS)
        else:
            making.commit_transaction(DEADLINE_SECONDS)
    expected = ["0", "0", "2", "2", "4", "4"] if isolation == "read_committed" else [str(n // 2) for n in range(12)]
    consumer = share(group, name)
    assert [message.value().decode() for message in take(consumer, len(expected))] == expected
    consumer.commit_sync()
    assert poll(consumer) == []


def test_other_groups_and_streams_are_not_disturbed(
    topic: TopicFactory,
    producer: ClientFactory,
    share: ShareFactory,
    consumer: Any,
    admin: Any,
    group: str,
    unique: Unique,
) -> None:
    name, other = topic(1), unique("share")
    configure(admin, other, auto_offset_reset="earliest")
    produce(producer(), name, 20)
    assert len(take(share(group, name), 20)) == len(take(share(other, name), 20)) == 20
    stream = consumer(unique("group"))
    stream.subscribe([name])
    read: list[Any] = []

    def all_read() -> bool:
        read.extend(stream.consume(20, 0.2))
        return len(read) >= 20

    wait_until(all_read, what="the stream")


# -- of our own --------------------------------------------------------------------------------------------------------


def test_accepted_records_stay_so_and_held_ones_come_again_after_kill_9(
    fresh_broker: RestartableBroker, unique: Unique
) -> None:
    admin = AdminClient(settings.confluent(fresh_broker.bootstrap))
    create_topic(admin, "t", 2)
    configure(admin, "g", auto_offset_reset="earliest")
    making = Producer(settings.confluent_producer(fresh_broker.bootstrap))
    produce(making, "t", 40, 2)
    consumer = joined(fresh_broker.bootstrap, "g", ["t"], explicit=True)

    def say(message: Any) -> None:
        if int(message.value()) < 20:
            consumer.acknowledge(message, ACCEPT)

    held = take(consumer, 40, say)
    assert len(held) == 40
    assert not any(consumer.commit_sync().values())
    fresh_broker.kill()
    fresh_broker.start()
    consumer.close()
    other = joined(fresh_broker.bootstrap, "g", ["t"])
    again = take(other, 20)
    assert sorted(int(message.value()) for message in again) == list(range(20, 40))
    assert {message.delivery_count() for message in again} == {2}
    other.close()


def test_the_command_line_shows_moves_and_deletes_share_groups(
    broker: RunningBroker, topic: TopicFactory, producer: ClientFactory, group: str
) -> None:
    name = topic(2)
    produce(producer(), name, 20, 2)
    consumer = joined(broker.bootstrap, group, [name])
    take(consumer, 20)
    consumer.commit_sync()

    def command(*arguments: str) -> Any:
        environment = {"TRUNKLINE_BOOTSTRAP": broker.bootstrap}
        done = CliRunner().invoke(cli, ["group", *arguments, "--json"], env=environment)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert {"group": group, "state": "Stable", "type": "share"} in command("list")
    described = command("describe", group)
    assert (described["type"], described["state"], described["assignor"]) == ("share", "Stable", "simple")
    assert len(described["members"]) == 1
    assert [part["lag"] for part in described["partitions"]] == [0, 0]
    consumer.close()
    wait_until(lambda: command("describe", group)["state"] == "Empty", what="an empty group")
    command("reset", group, "--to", "4", "--topic", f"{name}:1")
    moved = command("describe", group)["partitions"]
    assert (moved[1]["committed"], [part["lag"] for part in moved]) == (4, [0, 6])
    assert command("delete", group, "--yes") == {"deleted": [group]}
    assert group not in [item["group"] for item in command("list")]
