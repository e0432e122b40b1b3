"""Patterns that clients give never make the broker stand still: a pattern is matched in bounded time, or refused."""

from __future__ import annotations

import random
import time

import pytest

from tests.integration.hostile.conftest import Victim
from tests.integration.hostile.peer import Peer
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from trunkline.protocols.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trunkline.protocols.kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

pytestmark = [pytest.mark.ours_only("our own limits"), pytest.mark.xdist_group("hostile")]

PATIENCE_SECONDS = 5.0
PATTERNS = ["(a+)+$", "(a|a)*b", "(.*)(.*)(.*)(.*)b", "(a?){100}a{100}b", "[ab]*a[ab]{900}c", "(x+x+)+y"]


def named(peer: Peer, transactional_id: str) -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    assert peer.ask(request, 2, InitProducerIdResponse).error_code == 0


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_filter_of_transactions_takes_no_time(victim: Victim, pattern: str) -> None:
    with victim.connect() as peer, victim.connect() as other:
        for transactional_id in ("a" * 200 + "!", "ab" * 15_000, "x" * 200):
            named(peer, transactional_id)
        request = ListTransactionsRequest(transactional_id_pattern=pattern, duration_filter=-1)
        began = time.monotonic()
        peer.send(peer.encoded(request, 2))
        assert other.serves()
        assert time.monotonic() - began < PATIENCE_SECONDS
        peer.read_frame()
        assert time.monotonic() - began < PATIENCE_SECONDS


def test_a_filter_of_transactions_selects_whole_ids_and_refuses_nonsense(victim: Victim) -> None:
    with victim.connect() as peer:
        for transactional_id in ("orders-1", "orders-2", "old-orders-1"):
            named(peer, transactional_id)

        def listed(pattern: str) -> ListTransactionsResponse:
            request = ListTransactionsRequest(transactional_id_pattern=pattern, duration_filter=-1)
            return peer.ask(request, 2, ListTransactionsResponse)

        found = {each.transactional_id for each in listed("orders-[12]").transaction_states}
        assert found == {"orders-1", "orders-2"}
        for nonsense in ("(", "(?=x)", "a{3000}", "x" * 1001):
            assert listed(nonsense).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_subscription_that_takes_too_long_to_match_is_refused(victim: Victim) -> None:
    with victim.connect() as peer, victim.connect() as other:
        chance = random.Random(1)
        names = ["".join(chance.choices("ab", k=240)) for _ in range(200)]
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        created = peer.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 5, CreateTopicsResponse)
        assert {topic.error_code for topic in created.topics} == {0}
        request = ConsumerGroupHeartbeatRequest(
            group_id="hostile",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_regex=".*a.{900}",
            topic_partitions=[],
        )
        began = time.monotonic()
        answer = peer.ask(request, 1, ConsumerGroupHeartbeatResponse)
        assert time.monotonic() - began < PATIENCE_SECONDS
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert other.serves()
