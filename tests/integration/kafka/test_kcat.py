"""kcat, the command-line client that people reach for first."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.integration.kafka.clients import run_kcat
from tests.integration.kafka.conftest import ClientFactory, TopicFactory
from tests.integration.kafka.deliveries import deliver
from tests.integration.kafka.settings import HOUR_AGO_MS
from tests.integration.server import RunningBroker


def test_listing_shows_the_broker_the_topics_and_their_partitions(broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic(3)
    listing = json.loads(run_kcat(broker.bootstrap, "-L", "-J"))
    assert [each["name"] for each in listing["brokers"]] == [broker.bootstrap]
    assert listing["controllerid"] == listing["brokers"][0]["id"]
    [found] = [each for each in listing["topics"] if each["topic"] == name]
    assert [each["partition"] for each in found["partitions"]] == [0, 1, 2]
    assert all(each["leader"] == listing["brokers"][0]["id"] for each in found["partitions"])
    assert all(each["isrs"] == each["replicas"] for each in found["partitions"])
    assert f'topic "{name}" with 3 partitions' in run_kcat(broker.bootstrap, "-L", "-t", name).decode()


def test_what_is_produced_from_stdin_is_consumed_to_stdout(broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic()
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    run_kcat(broker.bootstrap, "-P", "-t", name, stdin=lines)
    assert run_kcat(broker.bootstrap, "-C", "-t", name, "-o", "beginning", "-e", "-q") == lines


def test_json_output_has_every_field(broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic()
    run_kcat(broker.bootstrap, "-P", "-t", name, "-K", ":", "-H", "trace=42", stdin=b"key:value\n")
    [line] = run_kcat(broker.bootstrap, "-C", "-t", name, "-o", "beginning", "-e", "-q", "-J").splitlines()
    message = json.loads(line)
    assert (message["topic"], message["partition"], message["offset"]) == (name, 0, 0)
    assert (message["key"], message["payload"], message["headers"]) == ("key", "value", ["trace", "42"])
    assert message["tstype"] == "create"


def test_the_last_messages_and_an_offset_range_are_read(broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic()
    run_kcat(broker.bootstrap, "-P", "-t", name, stdin=b"".join(b"%d\n" % number for number in range(10)))
    read = ("-C", "-t", name, "-p", "0", "-e", "-q")
    assert run_kcat(broker.bootstrap, *read, "-o", "-3") == b"7\n8\n9\n"
    assert run_kcat(broker.bootstrap, *read, "-o", "5", "-c", "2") == b"5\n6\n"


def test_offsets_are_found_by_time(broker: RunningBroker, topic: TopicFactory, producer: ClientFactory) -> None:
    name = topic()
    client = producer()
    for number in range(5):
        deliver(client, name, [b"x"], timestamp=HOUR_AGO_MS + number * 1000)

    def offset_at(timestamp_ms: int) -> str:
        answer = run_kcat(broker.bootstrap, "-Q", "-t", f"{name}:0:{timestamp_ms}").decode()
        return answer.split("offset ")[1].split()[0]

    assert offset_at(HOUR_AGO_MS + 2500) == "3"
    assert offset_at(-2) == "0"
    assert offset_at(-1) == "5"
    read = run_kcat(broker.bootstrap, "-C", "-t", name, "-o", f"s@{HOUR_AGO_MS + 3000}", "-e", "-q", "-f", "%o\n")
    assert read.split() == [b"3", b"4"]


def test_a_group_consumes_each_message_once(
    broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(3), unique("group")
    first = [b"%d" % number for number in range(30)]
    run_kcat(broker.bootstrap, "-P", "-t", name, stdin=b"\n".join(first))
    read = ("-G", group, "-X", "auto.offset.reset=earliest", "-e", "-q", name)
    assert sorted(run_kcat(broker.bootstrap, *read).split()) == sorted(first)
    run_kcat(broker.bootstrap, "-P", "-t", name, stdin=b"new\n")
    assert run_kcat(broker.bootstrap, *read).split() == [b"new"]


def test_a_transaction_from_kcat_is_read_committed(
    broker: RunningBroker, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name = topic()
    run_kcat(broker.bootstrap, "-P", "-t", name, "-X", f"transactional.id={unique('tx')}", stdin=b"a\nb\n")
    read = ("-C", "-t", name, "-o", "beginning", "-c", "2", "-q", "-X", "isolation.level=read_committed")
    assert run_kcat(broker.bootstrap, *read) == b"a\nb\n"


def test_an_unknown_topic_is_an_error(broker: RunningBroker, unique: Callable[[str], str]) -> None:
    said = run_kcat(broker.bootstrap, "-C", "-t", unique("absent"), "-p", "0", "-e", check=False)
    assert b"Unknown topic" in said
