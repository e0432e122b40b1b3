"""Random lives of a classic group: a partition is owned by one member per generation, only the newest generation commits,
and no member is dropped that kept its session.

Clients are modelled as tasks that join, sync (the leader divides the partitions), heartbeat, die and leave in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.cursors.harness import REBALANCE_MS, SESSION_MS, Harness, turns
from trunkline.cursors.stream import GroupError, JoinResult, LeavingMember, SyncResult

T = TypeVar("T")
NAMES = ["a", "b", "c", "d"]
PARTITIONS = 5


class Client:
    def __init__(self, name: str) -> None:
        self.name = name
        self.member_id = ""
        self.instance_id = f"instance-{name}" if name == "a" else None
        self.joining: asyncio.Task[JoinResult] | None = None
        self.joined: JoinResult | None = None
        self.syncing: asyncio.Task[SyncResult] | None = None
        self.share: frozenset[int] | None = None
        self.session_ms = 3 * REBALANCE_MS if self.instance_id else SESSION_MS
        self.heard_ms: float | None = None  # when the coordinator last let it in; None when it owes it nothing

    @property
    def busy(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def forget(self) -> None:
        self.member_id, self.joined, self.share, self.heard_ms = "", None, None, None

    def drop_connection(self) -> None:
        for task in (self.joining, self.syncing):
            if task is not None:
                task.cancel()
        self.joining = self.syncing = None
        self.forget()


def divide(members: list[str]) -> Mapping[str, bytes]:
    return {name: bytes(range(index, PARTITIONS, len(members))) for index, name in enumerate(sorted(members))}


class ClassicGroupLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.h = Harness()
        self.do(self.h.start(t=PARTITIONS))
        self.clients = {name: Client(name) for name in NAMES}
        self.newest = 0
        self.refusals: set[str] = set()

    def teardown(self) -> None:
        for client in self.clients.values():
            client.drop_connection()
        self.do(turns())
        self.loop.close()

    def do(self, work: Coroutine[object, object, T]) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(work, 10)

        return self.loop.run_until_complete(bounded())

    async def settle(self) -> None:
        """Take the replies that have come, and do what a client does next."""
        for _ in range(3):
            await turns(10)
            for client in self.clients.values():
                self.take_join(client)
                self.take_sync(client)

    def take_join(self, client: Client) -> None:
        if client.joining is None or not client.joining.done():
            return
        task, client.joining = client.joining, None
        try:
            client.joined = task.result()
        except GroupError as error:
            self.refusals.add(error.code_name)
            self.check_that_it_was_late(client)
            client.forget()
            return
        client.member_id = client.joined.member_id
        client.heard_ms = self.h.clock.monotonic_ms()
        assert client.joined.generation >= self.newest, "a generation came back"
        self.newest = client.joined.generation
        plan = None
        if client.joined.leader == client.member_id and not client.joined.skip_assignment:
            plan = divide([member.member_id for member in client.joined.members])
        client.syncing = self.h.sync(client.joined, plan, instance_id=client.instance_id)

    def take_sync(self, client: Client) -> None:
        if client.syncing is None or not client.syncing.done():
            return
        task, client.syncing = client.syncing, None
        try:
            client.share = frozenset(task.result().assignment)
            client.heard_ms = self.h.clock.monotonic_ms()
        except GroupError as error:
            client.share = None
            if error.code_name != "REBALANCE_IN_PROGRESS":
                client.forget()

    async def start_join(self, client: Client) -> None:
        client.share = None  # eager: it lets go of everything before it joins
        client.joining = self.h.join(
            client.member_id, instance_id=client.instance_id, session_timeout_ms=client.session_ms
        )
        await self.settle()

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        if not self.clients[name].busy:
            self.do(self.start_join(self.clients[name]))

    @rule(name=st.sampled_from(NAMES))
    def beat(self, name: str) -> None:
        client = self.clients[name]
        if client.joined is not None and not client.busy:
            self.answer(client, self.do(self.heartbeat(client.joined, client)))

    async def heartbeat(self, joined: JoinResult, client: Client) -> str:
        return self.h.beat(joined, instance_id=client.instance_id)

    def answer(self, client: Client, name: str) -> None:
        if name in {"", "REBALANCE_IN_PROGRESS"}:
            client.heard_ms = self.h.clock.monotonic_ms()
        if name == "REBALANCE_IN_PROGRESS":
            self.do(self.start_join(client))
        elif name:
            assert name in {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID"}
            self.check_that_it_was_late(client)
            client.forget()

    def check_that_it_was_late(self, client: Client) -> None:
        limit_ms = min(client.session_ms, REBALANCE_MS)
        assert client.heard_ms is None or self.h.clock.monotonic_ms() - client.heard_ms >= limit_ms, client.name

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        self.clients[name].drop_connection()
        self.do(self.settle())

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients[name]
        if client.member_id and not client.busy:
            leaving = [LeavingMember(client.member_id, client.instance_id)]
            client.forget()

            async def going() -> None:
                self.h.groups.leave("g", leaving)
                await self.settle()

            self.do(going())

    @rule(ms=st.sampled_from([1_000, SESSION_MS - 1, REBALANCE_MS]), beating=st.booleans())
    def pass_time(self, ms: float, beating: bool = True) -> None:
        async def passing() -> None:
            await self.h.advance(ms)
            await self.settle()

        self.do(passing())
        # A session may have run out, which the client learns by its next heartbeat.
        for client in self.clients.values():
            if beating and client.joined is not None and not client.busy:
                self.answer(client, self.do(self.heartbeat(client.joined, client)))

    @rule()
    def restart(self) -> None:
        for client in self.clients.values():
            client.heard_ms = None  # a generation that was not on disk yet is forgotten with its members
            if client.busy:
                client.drop_connection()
        self.do(turns())
        self.h = self.do(self.h.restarted())
        self.newest = 0

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def joins_are_refused_only_to_members_that_are_gone(self) -> None:
        assert self.refusals <= {"UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"}

    @invariant()
    def shares_of_a_generation_do_not_overlap(self) -> None:
        shares: dict[int, list[int]] = {}
        for client in self.clients.values():
            if client.share is not None and client.joined is not None:
                shares.setdefault(client.joined.generation, []).extend(client.share)
        for owned in shares.values():
            assert len(owned) == len(set(owned))

    @invariant()
    def only_the_newest_generation_may_commit(self) -> None:
        committers = set()
        for client in self.clients.values():
            if client.share is not None and client.joined is not None and not client.busy:
                try:
                    answer = self.do(self.h.commit(1, member=client.joined))
                except GroupError:
                    continue
                if answer == "":
                    committers.add(client.joined.generation)
        assert len(committers) <= 1

    @rule()
    def calm_down_and_check_that_everything_is_owned(self) -> None:
        for _ in range(24):
            self.pass_time(5_000)
            for client in self.clients.values():
                if client.member_id and client.share is None and not client.busy:
                    self.do(self.start_join(client))
        living = [client for client in self.clients.values() if client.share is not None]
        assert not any(client.busy for client in self.clients.values())
        if living:
            owned = [number for client in living for number in client.share or ()]
            assert sorted(owned) == list(range(PARTITIONS))
            assert self.h.state() == "Stable"


TestClassicGroupLives = ClassicGroupLives.TestCase
TestClassicGroupLives.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
