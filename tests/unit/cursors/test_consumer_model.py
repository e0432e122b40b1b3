"""Random lives of a consumer-protocol group: no partition ever has two owners, and in the end all have one.

The model is of the clients, not of the coordinator: each owns what it was last told (minus what it gave up), loses replies,
dies, comes back, is slow to revoke. What they own together is checked after every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.cursors.harness import REBALANCE_MS, Harness
from trunkline.cursors.stream import GroupError, GroupLimits, HeartbeatResult, TopicIdPartition

T = TypeVar("T")
NAMES = ["a", "b", "c", "d"]
TOPICS = ["t", "u"]
SESSION_MS = GroupLimits().consumer_session_timeout_ms


class Client:
    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.joined = False
        self.owned: frozenset[TopicIdPartition] = frozenset()
        self.told: frozenset[TopicIdPartition] = frozenset()
        self.topics: list[str] = []
        self.static = name in {"a", "b"}

    @property
    def instance_id(self) -> str | None:
        return f"instance-{self.name}" if self.static else None

    def reset(self) -> None:
        self.epoch, self.joined = 0, False
        self.owned = self.told = frozenset()


class ConsumerGroupLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.h = Harness()
        self.do(self.h.start(t=3, u=2))
        self.clients = {name: Client(name) for name in NAMES}

    def teardown(self) -> None:
        self.loop.close()

    def do(self, work: Coroutine[object, object, T]) -> T:
        return self.loop.run_until_complete(work)

    def heartbeat(self, client: Client, *, lose_reply: bool = False, report: bool = True) -> None:
        joining = not client.joined
        try:
            result = self.do(
                self.h.beat848(
                    client.name,
                    0 if joining else client.epoch,
                    topics=client.topics,
                    owned=client.owned if report or joining else None,
                    instance_id=client.instance_id,
                    rebalance_timeout_ms=REBALANCE_MS,
                )
            )
        except GroupError as error:
            refusal = error.code_name
            client.reset()  # a fenced client lets go of everything
        else:
            refusal = ""
            if not lose_reply:
                self.take(client, result)
        assert refusal in {"", "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND"}

    @staticmethod
    def take(client: Client, result: HeartbeatResult) -> None:
        client.joined, client.epoch = True, result.member_epoch
        if result.assignment is not None:
            client.told = result.assignment
            client.owned |= result.assignment  # gets at once, gives up when it comes to it (see `revoke`)

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    def join_or_resubscribe(self, name: str, topics: list[str]) -> None:
        client = self.clients[name]
        client.topics = sorted(topics)
        self.heartbeat(client)

    @rule(name=st.sampled_from(NAMES), lose_reply=st.booleans(), report=st.booleans())
    def beat(self, name: str, lose_reply: bool, report: bool) -> None:
        client = self.clients[name]
        if client.joined:
            self.heartbeat(client, lose_reply=lose_reply, report=report)

    @rule(name=st.sampled_from(NAMES))
    def revoke(self, name: str) -> None:
        client = self.clients[name]
        client.owned = client.told

    @rule(name=st.sampled_from(NAMES), back_soon=st.booleans())
    def leave(self, name: str, back_soon: bool) -> None:
        client = self.clients[name]
        if client.joined:
            client.owned = frozenset()
            epoch = -2 if back_soon and client.static else -1
            with suppress(GroupError):  # it may have been fenced and not know it
                self.do(self.h.beat848(name, epoch, instance_id=client.instance_id))
            client.reset()

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        """The process is gone; the broker learns of it by the session."""
        self.clients[name].reset()

    @rule(ms=st.sampled_from([1_000, 20_000]))
    def pass_time(self, ms: int) -> None:
        """Living clients heartbeat in time, but a session or a revocation may run out for one that cannot revoke."""
        self.do(self.h.advance(ms))
        for client in self.clients.values():
            if client.joined:
                self.heartbeat(client)

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 2))
    def grow(self, topic: str, more: int) -> None:
        info = self.h.store.topics()[topic]
        if info.partitions < 6:
            self.do(self.h.store.grow_topic(topic, info.partitions + more))
            self.h.groups.topics_changed()

    @rule()
    def restart(self) -> None:
        self.h = self.do(self.h.restarted())

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        seen: dict[TopicIdPartition, str] = {}
        for client in self.clients.values():
            for tp in client.owned:
                other = seen.setdefault(tp, client.name)
                # A client that was fenced by time alone does not know it yet; its heartbeat is what tells.
                assert other == client.name or self.is_gone(other) or self.is_gone(client.name), (
                    tp,
                    other,
                    client.name,
                )

    def is_gone(self, name: str) -> bool:
        if not self.h.groups.list_groups():
            return True
        return all(member.member_id != name for member in self.h.groups.describe("g").members)

    @rule()
    def calm_down_and_check_that_everything_is_owned(self) -> None:
        """Time enough for the dead to be missed; the living heartbeat and do as they are told."""
        living = [client for client in self.clients.values() if client.joined]
        pauses_ms = [SESSION_MS / 3] * 4 + [10.0] * 6
        for pause_ms in pauses_ms:
            self.do(self.h.advance(pause_ms))
            for client in living:
                self.heartbeat(client)
                client.owned = client.told
        wanted = {topic for client in living for topic in client.topics}
        everything = {
            TopicIdPartition(info.id, number)
            for topic in wanted
            for info in [self.h.store.topics()[topic]]
            for number in range(info.partitions)
        }
        owned = [tp for client in living for tp in client.owned]
        assert len(owned) == len(set(owned))
        assert set(owned) == everything
        if living:
            assert self.h.state() == "Stable"
            assert len({client.epoch for client in living}) == 1


TestConsumerGroupLives = ConsumerGroupLives.TestCase
TestConsumerGroupLives.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
