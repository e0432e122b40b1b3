"""Random producers, zombies, failing disks, timeouts and kills, interleaved: what readers see equals a simple model.

The model keeps, per transaction of a client, the values that were acknowledged and how it must have ended:
`committed` if the client was told so, `aborted` if it never asked for a commit or was told of an abort, and `either` if a
commit was asked for and the answer never came. A transaction that is `either` must still be visible whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trunkline.broker.transactions.coordinator import ProducerIdentity, TransactionLimits
from trunkline.broker.transactions.errors import TransactionError
from trunkline.log.errors import LogError
from trunkline.log.store import TopicPartition

from .transaction_bench import P0, P1, TIMEOUT_MS, Bench, bench

IDS = ("a", "b")
SLOTS = (0, 1)  # two processes per transactional id: whichever calls init later fences the other
MAX_TURNS = 500


class Killed(Exception):
    """The process died before the answer."""


@dataclass
class Attempt:
    """One transaction of one client."""

    values: list[tuple[TopicPartition, bytes]] = field(default_factory=list)
    unsure: list[bytes] = field(default_factory=list)
    commit_asked: bool = False
    outcome: str = "open"


@dataclass
class Client:
    transactional_id: str
    identity: ProducerIdentity | None = None
    attempt: Attempt = field(default_factory=Attempt)


class World:
    def __init__(self, b: Bench) -> None:
        self.bench = b
        self.clients = {(name, slot): Client(name) for name in IDS for slot in SLOTS}
        self.attempts: list[Attempt] = []
        self.counter = 0

    async def answer(self, work: Awaitable[object]) -> object:
        """What the client receives; Killed if the process dies first."""
        task = asyncio.ensure_future(work)
        for _ in range(MAX_TURNS):
            if task.done():
                return task.result()
            if self.bench.memory.killed:
                break
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        if task.done():
            return task.result()
        assert self.bench.memory.killed, "a request hangs though the process lives"
        raise Killed

    def begin(self, client: Client) -> None:
        if client.attempt.values or client.attempt.unsure:
            self.attempts.append(client.attempt)
        client.attempt = Attempt()

    async def init(self, client: Client) -> None:
        # A new process: whatever the old one had open, it will never be told how it ended.
        if client.attempt.outcome == "open":
            client.attempt.outcome = "either" if client.attempt.commit_asked else "aborted"
        self.begin(client)
        client.identity = None
        try:
            got = await self.answer(self.bench.init(client.transactional_id))
        except (TransactionError, Killed):
            return
        assert isinstance(got, ProducerIdentity)
        client.identity = got

    async def send(self, client: Client, tp: TopicPartition) -> None:
        who = client.identity
        if who is None or client.attempt.commit_asked:
            return
        self.counter += 1
        value = str(self.counter).encode()
        attempt = client.attempt
        try:
            await self.answer(
                self.bench.coordinator.ensure_partition(
                    client.transactional_id, who.producer_id, who.producer_epoch, tp
                )
            )
        except (TransactionError, Killed):
            return
        try:
            await self.answer(self.bench.produce(who, value, tp))
            attempt.values.append((tp, value))
        except (TransactionError, LogError):
            return
        except Killed:
            attempt.unsure.append(value)

    async def end(self, client: Client, commit: bool, bump: bool) -> None:
        who, attempt = client.identity, client.attempt
        if who is None:
            return
        if attempt.commit_asked:
            commit = True  # a client retries the request that was not answered; it does not change its mind
        elif attempt.unsure:
            commit = False  # a client commits only what was acknowledged
        attempt.commit_asked |= commit
        try:
            got = await self.answer(self.bench.end(who, commit, bump=bump, transactional_id=client.transactional_id))
        except Killed:
            return
        except TransactionError as error:
            if error.name in ("PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE"):
                client.identity = None
            return
        assert isinstance(got, ProducerIdentity)
        client.identity = got
        attempt.outcome = "committed" if commit else "aborted"
        self.begin(client)

    async def restart(self) -> None:
        """The next process finds the log; its clients reconnect and keep their identities."""
        self.bench = await self.bench.restarted()

    async def finish(self) -> None:
        memory = self.bench.memory
        memory.failing.clear()
        if memory.killed:
            await self.restart()
        self.bench.memory.kill_after(10**9)
        for _ in range(4):  # a back-off, then the timeout, then another back-off
            await self.bench.pass_time(TIMEOUT_MS)
        for client in self.clients.values():
            if client.attempt.outcome == "open":
                client.attempt.outcome = "either" if client.attempt.commit_asked else "aborted"
            self.begin(client)

    def check(self) -> None:
        memory = self.bench.memory
        for tp in (P0, P1):
            bounds = memory.bounds(tp)
            assert bounds.last_stable_offset == bounds.high_watermark, f"{tp} has a transaction that never ended"
        seen = memory.committed(P0) + memory.committed(P1)
        assert len(seen) == len(set(seen))
        explained: set[bytes] = set()
        for attempt in self.attempts:
            sure = {value for _, value in attempt.values}
            visible = sure & set(seen)
            if attempt.outcome == "committed":
                assert visible == sure, "a committed record is missing"
            elif attempt.outcome == "aborted":
                assert not visible, "an aborted record is visible"
                assert not set(attempt.unsure) & set(seen)
            else:
                assert visible in (set(), sure), "half of a transaction is visible"
            explained |= visible
        assert explained == set(seen)


clients = st.tuples(st.sampled_from(IDS), st.sampled_from(SLOTS))
actions = st.one_of(
    st.tuples(st.just("init"), clients),
    st.tuples(st.just("send"), clients, st.sampled_from((P0, P1))),
    st.tuples(st.just("send"), clients, st.sampled_from((P0, P1))),
    st.tuples(st.just("end"), clients, st.booleans(), st.booleans()),
)
steps = st.one_of(
    # Up to three clients act at the same time; one client does one thing at a time.
    st.lists(actions, min_size=1, max_size=3, unique_by=lambda action: action[1]),
    st.lists(actions, min_size=1, max_size=3, unique_by=lambda action: action[1]),
    st.lists(actions, min_size=1, max_size=3, unique_by=lambda action: action[1]),
    st.tuples(st.just("kill"), st.integers(0, 6)),
    st.tuples(st.just("fail"), st.sampled_from((P0, P1))),
    st.tuples(st.just("heal")),
    st.tuples(st.just("time"), st.sampled_from((50, 1_000, TIMEOUT_MS))),
)


async def play(script: list[list[tuple[object, ...]] | tuple[object, ...]]) -> None:
    world = World(await bench(TransactionLimits(producer_id_block_size=2)))
    for key in world.clients:
        if key[1] == 0:
            await world.init(world.clients[key])
    for step in script:
        if world.bench.memory.killed:
            await world.restart()
        if isinstance(step, list):
            await asyncio.gather(*(_act(world, action) for action in step))
            continue
        match step:
            case ("kill", int(appends)):
                world.bench.memory.kill_after(appends)
            case ("fail", TopicPartition() as tp):
                world.bench.memory.failing.add(tp)
            case ("heal",):
                world.bench.memory.failing.clear()
            case ("time", int(ms)):
                world.bench.clock.advance(ms)
                world.bench.coordinator.expire()
                for _ in range(20):
                    await asyncio.sleep(0)
    await world.finish()
    world.check()


async def _act(world: World, action: tuple[object, ...]) -> None:
    match action:
        case ("init", key):
            await world.init(world.clients[key])  # type: ignore[index]
        case ("send", key, TopicPartition() as tp):
            await world.send(world.clients[key], tp)  # type: ignore[index]
        case ("end", key, bool(commit), bool(bump)):
            await world.end(world.clients[key], commit, bump)  # type: ignore[index]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=40))
def test_readers_see_whole_committed_transactions_and_nothing_else(
    script: list[list[tuple[object, ...]] | tuple[object, ...]],
) -> None:
    asyncio.run(asyncio.wait_for(play(script), 30))
