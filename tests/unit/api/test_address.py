"""Where a broker is, and how often a message is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.api.address import Address, parse_url
from trunkline.api.filters import Channel, Topic, routing_key, topic_of
from trunkline.api.retry import Retry
from trunkline.client.link import LinkAddress
from trunkline.cursors.queue import QueueSettings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("trunkline://127.0.0.1", Address((LinkAddress("127.0.0.1", 5672),))),
        ("trunkline://h:1/v", Address((LinkAddress("h", 1, vhost="v"),))),
        ("trunkline://a%40b:p%2Fw@h/%2Fx", Address((LinkAddress("h", 5672, "a@b", "p/w", "/x"),))),
        ("trunkline://one,two:2/", Address((LinkAddress("one", 5672), LinkAddress("two", 2)))),
        ("trunkline://[::1]:9/?kafka=9092", Address((LinkAddress("::1", 9),), "::1:9092")),
        ("amqp://h?kafka=k:1", Address((LinkAddress("h", 5672),), "k:1")),
        ("memory:", Address()),
        ("data/broker", Address(directory=Path("data/broker"))),
        ("file:/var/x", Address(directory=Path("/var/x"))),
    ],
)
def test_an_address_is_read(url: str, expected: Address) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize("url", ["", "http://h", "trunkline://", "trunkline://h:0x", "trunkline://h?x=1", "host:5672"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_url(url)


def test_the_wait_doubles_up_to_the_longest() -> None:
    settings = QueueSettings(backoff_ms=100, max_backoff_ms=1000)
    assert [settings.backoff_after(count) for count in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]
    assert settings.backoff_after(10_000) == 1000
    assert QueueSettings().backoff_after(3) == 0


@pytest.mark.parametrize("wrong", [(-1,), (1, -1.0), (1, 5.0, 2.0)])
def test_a_retry_that_cannot_be_is_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="negative"):
        Retry(*wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a+", "#a"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no pattern"):
        Topic(pattern)
    with pytest.raises(ValueError, match="no name"):
        Channel(pattern if set(pattern) & {"+", "#"} else "")


@pytest.mark.parametrize("topic", ["a", "a/b", "a.b/c", "a//b", ""])
def test_a_topic_comes_back_from_its_routing_key(topic: str) -> None:
    assert topic_of(routing_key(topic)) == topic
