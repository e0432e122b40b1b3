"""Which batch of which query was written by which task: what makes the sink write exactly once.

A task writes its rows and, in the same transaction, commits an offset: of the group `spark-sink.<application>`, for the
partition of the topic `__spark_sinks` that has the task's number, the batch's number. Either both count or neither does.
The application is the query's id, which Spark keeps in the checkpoint.

    before a task writes   it opens a transaction under the id `spark-sink.<application>.<task>`, which ends what an
                           earlier attempt left and refuses whatever that attempt still sends
    then                   it reads its mark: if that is this batch or a later one, its rows are in the log already
    after its rows         mark and rows are committed together

So a task that is repeated, for whichever reason and however often, writes its rows once, provided that the same rows come
to the same task when Spark replays a batch. That holds for the same plan with the same number of tasks. The mark notes how
many rows and bytes the task wrote, and a task that comes back with others fails: the batch was divided in another way. By
then other tasks, which had not written this batch before, may have written rows that are there already. A task has no way
to know of that, because Spark does not tell it how many tasks there are.

Marks are committed offsets and expire like those of any group: a query that was stopped in the middle of a batch for longer
than the broker's `offsets_retention_ms` (7 days) may write what it wrote of that batch again.

The topic holds no records; it is there because brokers take offsets only for partitions that exist. Limit: MAX_SINK_TASKS.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from trunkline.client.client import Client
from trunkline.client.errors import ClientError, check
from trunkline.client.groups import Groups
from trunkline.client.topics import Topics
from trunkline.client.transaction import Transaction
from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.protocols.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

LEDGER_TOPIC = "__spark_sinks"
_PREFIX = "spark-sink."
_FIRST_PARTITIONS = 16
_BY_NAME_VERSION = 9  # later versions of OffsetFetch name topics by id


class DividedDifferently(Exception):
    """A batch that was written in part came back with other rows for a task."""


class Amount(NamedTuple):
    """How much a task wrote: the same for the same rows in any order."""

    rows: int
    size_bytes: int


class _Mark(NamedTuple):
    batch: int
    amount: Amount | None


class Ledger:
    """The marks of one application."""

    def __init__(self, client: Client, application: str) -> None:
        self._client = client
        self._application = application
        self._group = _PREFIX + application

    def transactional_id(self, task: int) -> str:
        return f"{_PREFIX}{self._application}.{task}"

    def prepare(self, task: int) -> None:
        """Make sure that the task has a partition to put its mark on."""
        if task >= limits.MAX_SINK_TASKS:
            raise ValueError(f"a batch has more than {limits.MAX_SINK_TASKS} tasks: use coalesce() before the sink")
        topics = Topics(self._client)
        known = self._client.metadata([LEDGER_TOPIC]).topics.get(LEDGER_TOPIC)
        if known is None:
            with _unless("TOPIC_ALREADY_EXISTS"):
                topics.create(LEDGER_TOPIC, max(_FIRST_PARTITIONS, task + 1))
            known = self._client.metadata([LEDGER_TOPIC]).topics.get(LEDGER_TOPIC)
        if known is not None and len(known.partitions) <= task:
            # Another task may grow it at the same time, and further than this one needs.
            with _unless("INVALID_PARTITIONS"):
                topics.grow(LEDGER_TOPIC, max(2 * len(known.partitions), task + 1))

    def written(self, task: int, batch: int) -> tuple[bool, Amount | None]:
        """Whether this task's part of the batch is in the log, and how much it was, where that is known.

        To be asked when the task's transaction is open: before that, another attempt may still be writing.
        """
        mark = self._client.retrying(lambda: self._read(task))
        if mark is None or mark.batch < batch:
            return False, None
        return True, mark.amount if mark.batch == batch else None

    def compare(self, task: int, batch: int, before: Amount, now: Amount) -> None:
        """A task that was done already must have come back with what it wrote."""
        if before != now:
            raise DividedDifferently(
                f"task {task} wrote {before.rows} rows of {before.size_bytes} bytes of batch {batch} of "
                f"{self._application}, and the batch comes back with {now.rows} rows of {now.size_bytes} bytes for it, so "
                "what is missing cannot be told. Start the query as it was before (same options, same "
                "spark.sql.shuffle.partitions), and change it after this batch"
            )

    def mark(self, transaction: Transaction, task: int, batch: int, amount: Amount) -> None:
        note = f"{amount.rows} {amount.size_bytes}"
        transaction.commit_offset(self._group, TopicPartition(LEDGER_TOPIC, task), batch, note)

    def forget(self) -> None:
        """Remove the marks: of a job that is over and will not come back."""
        with contextlib.suppress(ClientError):
            Groups(self._client).delete(self._group)

    def _read(self, task: int) -> _Mark | None:
        topic = OffsetFetchRequestTopics(name=LEDGER_TOPIC, partition_indexes=[task])
        request = OffsetFetchRequest(
            group_id=self._group,
            topics=[OffsetFetchRequestTopic(name=LEDGER_TOPIC, partition_indexes=[task])],
            groups=[OffsetFetchRequestGroup(group_id=self._group, topics=[topic])],
            require_stable=True,
        )
        broker = self._client.coordinator(self._group)
        response = broker.request(request, OffsetFetchResponse, max_version=_BY_NAME_VERSION)
        check(response.error_code, f"group {self._group}")
        for old in response.topics:
            for part in old.partitions:
                check(part.error_code, f"group {self._group}")
                return _mark(part.committed_offset, part.metadata)
        for group in response.groups:
            check(group.error_code, f"group {self._group}")
            for each in group.topics:
                for item in each.partitions:
                    check(item.error_code, f"group {self._group}")
                    return _mark(item.committed_offset, item.metadata)
        return None


@contextlib.contextmanager
def _unless(name: str) -> Iterator[None]:
    """Let an error of this name pass: somebody else did the same just before."""
    try:
        yield
    except ClientError as error:
        if error.name != name:
            raise


def _mark(batch: int, note: str | None) -> _Mark | None:
    if batch < 0:
        return None
    rows, _, size_bytes = (note or "").partition(" ")
    known = rows.isdecimal() and size_bytes.isdecimal()
    return _Mark(batch, Amount(int(rows), int(size_bytes)) if known else None)
