"""A transaction: batches and committed offsets that count together or not at all.

    transaction = Transaction(client, "orders-0")      # fences whoever used this transactional id before
    transaction.add([TopicPartition("orders", 0)])
    transaction.commit_offset("group", TopicPartition("orders", 0), 42, "note")
    transaction.commit()                               # or abort()

Opening one asks for the producer id of its transactional id with a new epoch: what another process left unfinished under
this id is aborted, and everything that process still sends is refused. One object is one transaction; `producer_id`
and `epoch` go into the batches, which a `Sender` sends.

Every request here may be repeated after a lost connection: adding twice is adding once, and an end that was already
decided is answered as the first time. So a broker that restarts in the middle delays a transaction and does not fail it.
A broker ends a transaction that takes longer than `timeout_ms` by aborting it; the next request then fails.
"""

from __future__ import annotations

from collections.abc import Iterable

from trunkline.client.client import Client
from trunkline.client.errors import check
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from trunkline.protocols.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from trunkline.protocols.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trunkline.protocols.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

DEFAULT_TIMEOUT_MS = 300_000
# The last versions in which the client names everything itself and an epoch lasts for the whole transaction.
_INIT_VERSION = 4
_ADD_PARTITIONS_VERSION = 3
_OFFSETS_VERSION = 3
_OFFSET_COMMIT_VERSION = 4
_END_VERSION = 4


class Transaction:
    def __init__(self, client: Client, transactional_id: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self._added: set[TopicPartition] = set()
        self._begun = False
        self.producer_id, self.epoch = client.retrying(lambda: self._open(timeout_ms))

    def _open(self, timeout_ms: int) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        broker = self.client.transaction_coordinator(self.transactional_id)
        response = broker.request(request, InitProducerIdResponse, max_version=_INIT_VERSION)
        check(response.error_code, f"transactional id {self.transactional_id}")
        return response.producer_id, response.producer_epoch

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Before the first batch goes to a partition, it is made part of the transaction."""
        new = [tp for tp in partitions if tp not in self._added]
        if not new:
            return
        topics: dict[str, list[int]] = {}
        for tp in new:
            topics.setdefault(tp.topic, []).append(tp.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()],
        )

        def ask() -> None:
            broker = self.client.transaction_coordinator(self.transactional_id)
            response = broker.request(request, AddPartitionsToTxnResponse, max_version=_ADD_PARTITIONS_VERSION)
            for topic in response.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    tp = TopicPartition(topic.name, result.partition_index)
                    check(result.partition_error_code, f"transaction of {self.transactional_id} on {tp}")

        self.client.retrying(ask)
        self._added.update(new)
        self._begun = True

    def commit_offset(self, group: str, tp: TopicPartition, offset: int, metadata: str) -> None:
        """Commit an offset of a group as part of the transaction."""
        joining = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        part = TxnOffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[part])],
        )

        def join() -> None:
            broker = self.client.transaction_coordinator(self.transactional_id)
            response = broker.request(joining, AddOffsetsToTxnResponse, max_version=_OFFSETS_VERSION)
            check(response.error_code, f"transaction of {self.transactional_id} on group {group}")

        def ask() -> None:
            broker = self.client.coordinator(group)
            response = broker.request(request, TxnOffsetCommitResponse, max_version=_OFFSET_COMMIT_VERSION)
            for topic in response.topics:
                for result in topic.partitions:
                    check(result.error_code, f"offset of group {group} for {tp}")

        self.client.retrying(join)
        self._begun = True
        self.client.retrying(ask)

    def commit(self) -> None:
        self._end(committed=True)

    def abort(self) -> None:
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        if not self._begun:
            return  # a broker knows of no transaction before something is part of it
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

        def ask() -> None:
            broker = self.client.transaction_coordinator(self.transactional_id)
            response = broker.request(request, EndTxnResponse, max_version=_END_VERSION)
            check(response.error_code, f"transaction of {self.transactional_id}")

        self.client.retrying(ask)
