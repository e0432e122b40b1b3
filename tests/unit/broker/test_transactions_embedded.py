"""The coordinator on the embedded store with the real groups: sequences, last stable offset, offsets, restarts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from trunkline.broker.transactions.coordinator import ProducerIdentity, TransactionCoordinator
from trunkline.clock import ManualClock
from trunkline.cursors.stream import OFFSETS_PARTITION, GroupCoordinator, GroupErrorName, OffsetEntry
from trunkline.log.batch import NewRecord, build_batch, iter_batches, iter_records
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import ProducerFenced
from trunkline.log.store import Durability, TopicPartition

from .transaction_bench import P0, P1, TIMEOUT_MS, refused

SOURCE = TopicPartition("orders", 1)


class Node:
    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self.directory = directory
        self.clock = clock
        self.store = EmbeddedStore(directory, clock=clock)
        self.groups = GroupCoordinator(self.store, clock)
        self.transactions = TransactionCoordinator(self.store, self.groups, clock)

    async def start(self) -> Node:
        await self.store.start()
        if self.store.topic("orders") is None:
            await self.store.create_topic("orders", 2)
        await self.groups.start()
        await self.transactions.start()
        return self

    async def close(self) -> None:
        await self.transactions.close()
        await self.groups.close()
        await self.store.close()

    async def killed(self) -> Node:
        """The node that starts on what the files hold at this moment."""
        copy = self.directory.with_name(self.directory.name + "+")
        shutil.copytree(self.directory, copy)
        return await Node(copy, self.clock).start()

    async def restarted(self) -> Node:
        await self.close()
        return await Node(self.directory, self.clock).start()

    async def send(
        self, who: ProducerIdentity, sequence: int, *values: bytes, tp: TopicPartition = P0, implicit: bool = False
    ) -> int:
        if implicit:
            await self.transactions.ensure_partition("t", who.producer_id, who.producer_epoch, tp)
        self.transactions.check_append(who.producer_id, who.producer_epoch, tp)
        batch = build_batch(
            [NewRecord(None, value) for value in values],
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            transactional=True,
            timestamp_ms=self.clock.wall_ms(),
        )
        return (await self.store.append(tp, batch, Durability.DISK)).base_offset

    async def end(self, who: ProducerIdentity, commit: bool = True, *, bump: bool = False) -> ProducerIdentity:
        return await self.transactions.end("t", who.producer_id, who.producer_epoch, commit, bump_epoch=bump)

    async def committed(self, tp: TopicPartition = P0) -> list[bytes]:
        """What a read_committed consumer makes of the partition, as a client does it."""
        found = await self.store.read(tp, 0, 1 << 20, committed=True)
        aborted = sorted(found.aborted, key=lambda entry: entry.first_offset, reverse=True)
        skipping: set[int] = set()
        seen: list[bytes] = []
        for header, batch in iter_batches(found.records):
            while aborted and aborted[-1].first_offset <= header.last_offset:
                skipping.add(aborted.pop().producer_id)
            if header.control:
                skipping.discard(header.producer_id)
            elif not (header.transactional and header.producer_id in skipping):
                seen += [record.value for record in iter_records(batch) if record.value is not None]
        return seen


def on_a_node(tmp_path: Path, test: Callable[[Node], Awaitable[Node]]) -> None:
    async def run() -> None:
        node = await Node(tmp_path / "data", ManualClock()).start()
        last = await test(node)
        await last.close()
        await node.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("bump", [False, True])
def test_transactions_follow_each_other_with_the_sequences_of_a_client(tmp_path: Path, bump: bool) -> None:
    async def test(node: Node) -> Node:
        who = await node.transactions.init_producer_id("t", TIMEOUT_MS)
        sequence = 0
        expected: list[bytes] = []
        for number in range(6):
            commit = number % 3 != 1
            values = [b"%d.%d" % (number, item) for item in range(3)]
            if not bump:
                await node.transactions.add_partitions("t", who.producer_id, who.producer_epoch, [P0])
            await node.send(who, sequence, *values, implicit=bump)
            assert await node.committed() == expected  # the open transaction stays unseen
            sequence = 0 if bump else sequence + len(values)
            who = await node.end(who, commit, bump=bump)
            expected += values if commit else []
            assert await node.committed() == expected
            if number == 3:
                node = await node.restarted()
                assert await node.committed() == expected
        return node

    on_a_node(tmp_path, test)


def test_a_kill_in_the_middle_aborts_at_the_timeout_and_fences_in_the_partition_too(tmp_path: Path) -> None:
    async def test(node: Node) -> Node:
        who = await node.transactions.init_producer_id("t", TIMEOUT_MS)
        await node.transactions.add_partitions("t", who.producer_id, who.producer_epoch, [P0])
        await node.send(who, 0, b"lost")
        after = await node.killed()
        assert after.transactions.in_transaction(who.producer_id, P0)
        await after.send(who, 1, b"lost too")
        node.clock.advance(TIMEOUT_MS)
        after.transactions.expire()
        await after.transactions.settle()
        assert await after.committed() == []
        bounds = after.store.bounds(P0)
        assert bounds.last_stable_offset == bounds.high_watermark
        await refused("PRODUCER_FENCED", after.end(who))
        stale = build_batch(
            [NewRecord(None, b"zombie")],
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=2,
            transactional=True,
            timestamp_ms=node.clock.wall_ms(),
        )
        with pytest.raises(ProducerFenced):
            await after.store.append(P0, stale, Durability.DISK)
        return after

    on_a_node(tmp_path, test)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_move_with_the_transaction_also_across_a_kill(tmp_path: Path, commit: bool) -> None:
    def fetched(node: Node, require_stable: bool = False) -> tuple[int, GroupErrorName | None]:
        found = node.groups.fetch("workers", [SOURCE], require_stable=require_stable)[SOURCE]
        return found.offset, found.error

    async def consume_and_produce(node: Node, who: ProducerIdentity, offset: int) -> None:
        await node.transactions.add_partitions("t", who.producer_id, who.producer_epoch, [P0])
        await node.send(who, offset, b"out %d" % offset)
        await node.transactions.add_offsets("t", who.producer_id, who.producer_epoch, "workers")
        node.transactions.check_append(who.producer_id, who.producer_epoch, OFFSETS_PARTITION)
        results = await node.groups.txn_commit(
            "workers", who.producer_id, who.producer_epoch, [OffsetEntry(SOURCE.topic, SOURCE.partition, offset + 1)]
        )
        assert not any(results.values())

    async def test(node: Node) -> Node:
        who = await node.transactions.init_producer_id("t", TIMEOUT_MS)
        await consume_and_produce(node, who, 0)
        await node.end(who)
        assert fetched(node) == (1, None)
        await consume_and_produce(node, who, 1)
        assert fetched(node) == (1, None)
        assert fetched(node, require_stable=True)[1] == GroupErrorName.UNSTABLE_OFFSET_COMMIT
        after = await node.killed()
        assert fetched(after, require_stable=True)[1] == GroupErrorName.UNSTABLE_OFFSET_COMMIT
        await after.end(who, commit)
        assert fetched(after, require_stable=True) == (2 if commit else 1, None)
        assert await after.committed() == ([b"out 0", b"out 1"] if commit else [b"out 0"])
        last = await after.killed()
        assert fetched(last, require_stable=True) == (2 if commit else 1, None)
        await after.close()
        return last

    on_a_node(tmp_path, test)


def test_state_survives_a_restart_and_forgotten_ids_stay_forgotten(tmp_path: Path) -> None:
    async def test(node: Node) -> Node:
        who = await node.transactions.init_producer_id("t", TIMEOUT_MS)
        for _ in range(50):
            await node.transactions.add_partitions("t", who.producer_id, who.producer_epoch, [P0, P1])
            await node.end(who)
        await node.transactions.init_producer_id("brief", TIMEOUT_MS)
        node = await node.restarted()
        assert {item.transactional_id for item in node.transactions.list()} == {"t", "brief"}
        node.clock.advance(8 * 24 * 3_600_000)
        node.transactions.expire()
        await node.transactions.settle()
        node = await node.restarted()
        assert not node.transactions.list()
        fresh = await node.transactions.init_producer_id("t", TIMEOUT_MS)
        assert fresh.producer_id > who.producer_id
        return node

    on_a_node(tmp_path, test)
