"""The store in memory with switches: its disk can be slow or broken, its process killed, its machine without power."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import deepcopy

from trunkline.clock import Clock
from trunkline.log.batch import iter_records, parse_header, read_marker
from trunkline.log.errors import LogError, StorageFailure
from trunkline.log.memory.partition import MemoryPartition
from trunkline.log.memory.store import MemoryStore
from trunkline.log.producers import ProducerTable
from trunkline.log.store import Buffer, Durability, TopicInfo, TopicPartition
from trunkline.log.ticket import Appended, Ticket


class FaultyLog(MemoryStore):
    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.failure: LogError | None = None  # every append is refused with it
        self.failing: set[TopicPartition] = set()  # appends to these are refused
        self.unsynced: set[TopicPartition] = set()  # appends to these are stored, but the fsync fails
        self.held: set[TopicPartition] = set()  # appends to these are stored, but not acknowledged before `release`
        self.automatic_sync = True  # else nothing is acknowledged before `sync`
        self.appends = 0
        self.waiting: list[tuple[TopicPartition, Ticket, Appended]] = []
        self._synced: dict[TopicPartition, int] = {}
        self._appends_left: int | None = None

    # -- what a test does to it --------------------------------------------------------------------------------------

    def kill_after(self, appends: int) -> None:
        """Let so many more appends reach the log; then nothing is stored and no future completes."""
        self._appends_left = appends

    @property
    def killed(self) -> bool:
        return self._appends_left == -1

    def reborn(self) -> FaultyLog:
        """What the next process finds after a kill: everything that was appended."""
        return self._copy({tp: partition.end_offset for tp, partition in self._partitions.items()})

    def crash_copy(self) -> FaultyLog:
        """What a machine finds that lost power: only what was synced."""
        return self._copy({tp: self._synced.get(tp, 0) for tp in self._partitions})

    def _copy(self, ends: Mapping[TopicPartition, int]) -> FaultyLog:
        found = FaultyLog(clock=self._clock)
        found._topics.update(self._topics)
        for tp, partition in self._partitions.items():
            copy = MemoryPartition(tp, partition.config, self._clock, self.decoding, self.passed_over)
            copy.producers = ProducerTable.decode(partition.producers.encode())
            count = sum(last_offset < ends[tp] for last_offset in partition.last_offsets)
            copy.batches = partition.batches[:count]
            copy.last_offsets = partition.last_offsets[:count]
            copy.aborted = deepcopy(partition.aborted)
            copy.log_start_offset, copy.end_offset = partition.log_start_offset, ends[tp]
            found._partitions[tp] = copy
            found._synced[tp] = ends[tp]
        return found

    def sync(self) -> None:
        """Acknowledge whatever waits for the disk."""
        self._complete(lambda tp: tp not in self.held)

    def release(self, tp: TopicPartition) -> None:
        self.held.discard(tp)
        self._complete(lambda waiting: waiting == tp)

    def fail_unsynced(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, future, _ in waiting:
            future.set_exception(StorageFailure("memory", "fsync failed"))

    def markers(self, tp: TopicPartition) -> list[tuple[int, int, bool]]:
        """(producer id, epoch, commit) of every marker in the partition."""
        found = []
        for batch in self._partition(tp).batches:
            header = parse_header(batch)
            if header.control:
                marker = read_marker(batch)
                assert marker is not None
                found.append((header.producer_id, header.producer_epoch, marker.commit))
        return found

    def committed(self, tp: TopicPartition) -> list[bytes]:
        """The values that a read_committed consumer sees."""
        partition = self._partition(tp)
        stable = partition.bounds().last_stable_offset
        seen: list[bytes] = []
        for batch in partition.batches:
            header = parse_header(batch)
            if header.control or header.base_offset >= stable:
                continue
            if any(
                entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset < entry.last_offset
                for entry in partition.aborted
            ):
                continue
            seen += [record.value for record in iter_records(batch) if record.value is not None]
        return seen

    def add_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> TopicInfo:
        """As `create_topic`, for tests that have no loop yet."""
        creating = self.create_topic(name, partitions, config)
        try:
            creating.send(None)
        except StopIteration as done:
            info = done.value
            assert isinstance(info, TopicInfo)
            return info
        raise AssertionError("a topic in memory is made at once")

    # -- LogStore ----------------------------------------------------------------------------------------------------

    def append(
        self, tp: TopicPartition, batches: Buffer, durability: Durability = Durability.OS, *, foreign: bool = False
    ) -> Ticket:
        return self._unless_broken(tp) or super().append(tp, batches, durability, foreign=foreign)

    def append_marker(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        durability: Durability = Durability.DISK,
    ) -> Ticket:
        return self._unless_broken(tp) or super().append_marker(
            tp,
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            durability=durability,
        )

    def _unless_broken(self, tp: TopicPartition) -> Ticket | None:
        """A future that never completes when the process is dead; None when the append may go on."""
        if self._appends_left is not None:
            self._appends_left = max(-1, self._appends_left - 1)
            if self._appends_left < 0:
                return Ticket(loop=asyncio.get_running_loop())
        if self.failure is not None:
            raise self.failure
        if tp in self.failing:
            raise StorageFailure(str(tp), "no space left")
        return None

    def acknowledge(self, tp: TopicPartition, appended: Appended, durability: Durability) -> Ticket:
        self.appends += 1
        ticket = Ticket(loop=asyncio.get_running_loop())
        ticket.place = appended
        if durability is not Durability.DISK:
            ticket.set_result(appended)
        elif tp in self.unsynced:
            ticket.set_exception(StorageFailure(str(tp), "input/output error"))
        else:
            self.waiting.append((tp, ticket, appended))
            if self.automatic_sync:
                ticket.get_loop().call_soon(self._sync_automatically)
        return ticket

    def _sync_automatically(self) -> None:
        if self.automatic_sync:
            self.sync()

    def _complete(self, chosen: Callable[[TopicPartition], bool]) -> None:
        still: list[tuple[TopicPartition, Ticket, Appended]] = []
        for tp, future, appended in self.waiting:
            if not chosen(tp):
                still.append((tp, future, appended))
                continue
            self._synced[tp] = max(self._synced.get(tp, 0), appended.last_offset + 1)
            if not future.done():
                future.set_result(appended)
        self.waiting = still
