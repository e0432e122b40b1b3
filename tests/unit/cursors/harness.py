"""A coordinator on a log in memory, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from weakref import WeakKeyDictionary

import pytest

from tests.faulty_log import FaultyLog
from tests.late_log import LateLog
from tests.stores import as_chosen
from trunkline.budget import Budget
from trunkline.clock import ManualClock
from trunkline.cursors.stream import (
    FetchedOffset,
    GroupCoordinator,
    GroupError,
    GroupErrorName,
    GroupLimits,
    HeartbeatRequest,
    HeartbeatResult,
    JoinResult,
    OffsetEntry,
    SyncResult,
    TopicIdPartition,
)
from trunkline.log.store import TopicPartition

_LATE: WeakKeyDictionary[LateLog, asyncio.AbstractEventLoop] = WeakKeyDictionary()  # and on which loop each is
_LATE_S = 0.1
Outcome = JoinResult | SyncResult | GroupErrorName
SCENARIO_LIMIT_S = 10  # a reply that never comes fails the test instead of hanging it
SESSION_MS = 10_000
REBALANCE_MS = 30_000


def run(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), SCENARIO_LIMIT_S))


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


async def turns(count: int = 30) -> None:
    """Let everything run that can: on the log in memory nothing takes longer than a few turns of the loop.

    A late store is waited for. What it is kept waiting for itself, by a disk that is held, is not.
    """
    for _ in range(count):
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    for log in [each for each, other in _LATE.items() if other is loop]:
        try:
            async with asyncio.timeout(_LATE_S):
                while await log.rest():
                    await asyncio.sleep(0)
        except TimeoutError:
            continue


class Harness:
    def __init__(
        self, store: FaultyLog | None = None, limits: GroupLimits | None = None, held: Budget | None = None
    ) -> None:
        self.store = store or FaultyLog()
        self.clock = ManualClock()
        self.limits = limits or GroupLimits()
        self._log = as_chosen(self.store)
        self.groups = GroupCoordinator(self._log, self.clock, limits=self.limits, held=held)

    async def start(self, **topics: int) -> Harness:
        if isinstance(self._log, LateLog):
            _LATE[self._log] = asyncio.get_running_loop()
        for name, partitions in topics.items():
            self.store.add_topic(name, partitions)
        await self.groups.start()
        return self

    async def restarted(self) -> Harness:
        """Another coordinator over what is on disk, as after a crash."""
        other = Harness(self.store.crash_copy(), self.limits)
        other.clock.advance(self.clock.monotonic_ms())
        return await other.start()

    async def advance(self, ms: float) -> None:
        """Move time as it would pass: every deadline on the way fires at its own moment."""
        await turns()  # what was just asked for is asked for before time passes
        end_ms = self.clock.monotonic_ms() + ms
        while True:
            deadline_ms = self.groups.next_deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.clock.advance(max(0.0, deadline_ms - self.clock.monotonic_ms()))
            self.groups.expire()
            await turns()
        self.clock.advance(end_ms - self.clock.monotonic_ms())
        await turns()

    # -- classic -------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"r"),),
        protocol_type: str = "consumer",
        require_known_member_id: bool = False,
        session_timeout_ms: int = SESSION_MS,
        rebalance_timeout_ms: int = REBALANCE_MS,
        supports_skipping_assignment: bool = True,
    ) -> asyncio.Task[JoinResult]:
        return asyncio.ensure_future(
            self.groups.join(
                group_id,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                member_id=member_id,
                group_instance_id=instance_id,
                client_id="client",
                client_host="/127.0.0.1",
                protocol_type=protocol_type,
                protocols=protocols,
                require_known_member_id=require_known_member_id,
                supports_skipping_assignment=supports_skipping_assignment,
            )
        )

    def sync(
        self,
        joined: JoinResult,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_id: str = "g",
        instance_id: str | None = None,
    ) -> asyncio.Task[SyncResult]:
        return asyncio.ensure_future(
            self.groups.sync(
                group_id,
                generation=joined.generation,
                member_id=joined.member_id,
                group_instance_id=instance_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments=assignments,
            )
        )

    def beat(self, joined: JoinResult, *, group_id: str = "g", instance_id: str | None = None) -> str:
        """A classic heartbeat's answer, by name; "" when all is well."""
        try:
            self.groups.heartbeat(
                group_id, generation=joined.generation, member_id=joined.member_id, group_instance_id=instance_id
            )
        except GroupError as error:
            return error.code_name
        return ""

    async def stable(
        self, count: int = 1, *, protocols: Sequence[tuple[str, bytes]] = (("range", b"r"),)
    ) -> list[JoinResult]:
        """A stable group of this many members, the leader first; each is assigned its own member id."""
        joined: list[JoinResult] = []
        for _ in range(count):
            tasks = [self.join(protocols=protocols)]  # the newcomer first: it is what makes the others rejoin
            tasks += [self.join(each.member_id, protocols=protocols) for each in joined]
            joined = list(await asyncio.gather(*tasks))
            assert len({each.generation for each in joined}) == 1
            plan = {each.member_id: each.member_id.encode() for each in joined}
            leader = joined[0].leader
            await asyncio.gather(*(self.sync(each, plan if each.member_id == leader else None) for each in joined))
        return sorted(joined, key=lambda each: each.member_id != each.leader)

    def state(self, group_id: str = "g") -> str:
        return self.groups.describe(group_id).state

    # -- consumer ------------------------------------------------------------------------------------------------

    async def beat848(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: Sequence[str] | None = None,
        regex: str | None = None,
        owned: frozenset[TopicIdPartition] | None = None,
        group_id: str = "g",
        instance_id: str | None = None,
        assignor: str | None = None,
        rebalance_timeout_ms: int = -1,
    ) -> HeartbeatResult:
        if epoch == 0:
            rebalance_timeout_ms = REBALANCE_MS if rebalance_timeout_ms == -1 else rebalance_timeout_ms
            owned = frozenset() if owned is None else owned
            topics = ("t",) if topics is None and regex is None else topics
        return await self.groups.consumer_heartbeat(
            HeartbeatRequest(
                group_id,
                member_id,
                epoch,
                instance_id=instance_id,
                rebalance_timeout_ms=rebalance_timeout_ms,
                subscribed_topic_names=None if topics is None else tuple(topics),
                subscribed_topic_regex=regex,
                server_assignor=assignor,
                topic_partitions=owned,
                client_id="client",
                client_host="/127.0.0.1",
            )
        )

    # -- offsets -------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offset: int,
        *,
        topic: str = "t",
        partition: int = 0,
        group_id: str = "g",
        member: JoinResult | None = None,
    ) -> str:
        """Commit one offset; the answer for it by name, "" when it was taken."""
        member_id, generation = (member.member_id, member.generation) if member else ("", -1)
        entries = [OffsetEntry(topic, partition, offset, metadata="m")]
        results = await self.groups.commit(group_id, member_id, generation, None, entries)
        return results[TopicPartition(topic, partition)] or ""

    def committed(self, topic: str = "t", partition: int = 0, group_id: str = "g") -> int:
        tp = TopicPartition(topic, partition)
        return self.groups.fetch(group_id, [tp])[tp].offset

    def fetched(self, *, require_stable: bool = False, group_id: str = "g") -> FetchedOffset:
        tp = TopicPartition("t", 0)
        return self.groups.fetch(group_id, [tp], require_stable=require_stable)[tp]


async def refused(work: Awaitable[object]) -> str:
    """The name of the error that awaiting this raises."""
    with pytest.raises(GroupError) as caught:
        await work
    return caught.value.code_name
