"""The clients of a campaign: producers, group members and a transactional processor, each a thread of its own.

They are plain confluent-kafka programs that must live through any number of broker crashes. They report to the ledger
what the broker acknowledged to them, never what they hoped for. `finish` asks a client to complete what it has begun;
`join` then waits for it. An error that no broker crash explains ends up among the ledger's complaints.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.crash.ledger import Fate, Ledger, Place, number_of, value_of

UNACKNOWLEDGED_MAX = 400
BURST_RECORDS = 10
BURST_SECONDS = 0.02
PADDING_BYTES_MAX = 400
FINISH_SECONDS = 90.0
CALL_SECONDS = 15.0
BATCH_RECORDS = 100

_QUIET = logging.getLogger("tests.crash.clients")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def client_config(bootstrap: str, **settings: object) -> dict[str, Any]:
    """Settings that make a client come back quickly after its broker did."""
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        "socket.timeout.ms": 10_000,
        # librdkafka (2.16) waits for the next refresh when the broker dies as a consumer asks for its topics: 5 minutes.
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
        "error_cb": lambda error: None,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


class Client(threading.Thread):
    def __init__(self, name: str, bootstrap: str, ledger: Ledger) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.ledger = ledger
        self._finish = threading.Event()

    def finish(self) -> None:
        self._finish.set()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.ledger.complain(f"client {self.name} gave up: {error!r}")

    def work(self) -> None:
        raise AssertionError("each kind of client says what its work is")


class RecordProducer(Client):
    """Sends numbered records round the partitions and writes down where each was acknowledged."""

    def __init__(
        self, topic: str, partitions: int, bootstrap: str, ledger: Ledger, *, seed: int, **settings: object
    ) -> None:
        super().__init__(f"producer of {topic}", bootstrap, ledger)
        self.topic = topic
        self.partitions = partitions
        self.settings = settings
        self.random = random.Random(seed)
        self.sent = 0

    def work(self) -> None:
        config = client_config(self.bootstrap, message_timeout_ms=300_000, linger_ms=1, **self.settings)
        producer = Producer(config, logger=_QUIET)
        while not self._finish.is_set():
            if len(producer) < UNACKNOWLEDGED_MAX:
                for _ in range(BURST_RECORDS):
                    self._send(producer)
            producer.poll(0)
            self._finish.wait(BURST_SECONDS)
        left = producer.flush(FINISH_SECONDS)
        if left:
            self.ledger.complain(f"{left} records for {self.topic} were never acknowledged")
        with self.ledger.lock:
            self.ledger.sent[self.topic] = self.sent

    def _send(self, producer: Producer) -> None:
        value = value_of(self.sent, self.random.randrange(PADDING_BYTES_MAX))
        producer.produce(self.topic, value, partition=self.sent % self.partitions, on_delivery=self._delivered)
        self.sent += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.ledger.complain(f"a record for {self.topic} was refused: {error}")
            return
        place = Place(self.topic, message.partition())
        self.ledger.record_acknowledged(place, message.offset(), message.value())


class GroupMember(Client):
    """Reads in a group and commits what it has read; what it saw and what was committed goes to the ledger."""

    def __init__(self, group: str, topics: list[str], bootstrap: str, ledger: Ledger, **settings: object) -> None:
        super().__init__(f"member of {group}", bootstrap, ledger)
        self.group = group
        self.topics = topics
        self.settings = settings
        self._uncommitted: dict[Place, int] = {}

    def work(self) -> None:
        config = client_config(
            self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_wait_max_ms=100,
            **self.settings,
        )
        consumer = Consumer(config, logger=_QUIET)
        consumer.subscribe(self.topics, on_revoke=self._lost, on_lost=self._lost)
        try:
            while not self._finish.is_set():
                for message in consumer.consume(BATCH_RECORDS, 0.1):
                    if message.error() is None:
                        place = Place(message.topic(), message.partition())
                        self.ledger.record_seen(self.group, place, message.offset(), message.value())
                        self._uncommitted[place] = message.offset() + 1
                if self._uncommitted:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """What another member owns now is no longer ours to commit."""
        for partition in partitions:
            self._uncommitted.pop(Place(partition.topic, partition.partition), None)

    def _commit(self, consumer: Consumer) -> None:
        offsets = [TopicPartition(place.topic, place.partition, offset) for place, offset in self._uncommitted.items()]
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # the broker is away, or the group rebalances: the next batch is committed with these
        for partition in done:
            if partition.error is None:
                place = Place(partition.topic, partition.partition)
                self.ledger.commit_acknowledged(self.group, place, partition.offset)
        self._uncommitted.clear()


class Processor(Client):
    """Reads a topic and writes another, exactly once: records and offsets in one transaction, some of them aborted."""

    GROUP = "processor"

    def __init__(
        self,
        source: str,
        target: str,
        partitions: int,
        bootstrap: str,
        ledger: Ledger,
        *,
        seed: int,
        **settings: object,
    ) -> None:
        super().__init__(f"processor of {source}", bootstrap, ledger)
        self.source = source
        self.target = target
        self.partitions = partitions
        self.random = random.Random(seed)
        self.settings = settings
        self.restarts = 0
        self.done: Callable[[], bool] = lambda: True

    def work(self) -> None:
        while not self._ended():
            self.restarts += 1
            consumer = Consumer(
                client_config(
                    self.bootstrap,
                    group_id=self.GROUP,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    isolation_level="read_committed",
                    fetch_wait_max_ms=100,
                    **self.settings,
                ),
                logger=_QUIET,
            )
            producer = Producer(
                client_config(self.bootstrap, transactional_id=self.GROUP, transaction_timeout_ms=60_000), logger=_QUIET
            )
            try:
                consumer.subscribe([self.source])
                self._init(producer)
                while not self._ended():
                    self._round(producer, consumer)
            except StartAgain:
                pass
            finally:
                consumer.close()

    def _ended(self) -> bool:
        return self._finish.is_set() and self.done()

    def _init(self, producer: Producer) -> None:
        until = time.monotonic() + FINISH_SECONDS
        while True:
            try:
                producer.init_transactions(CALL_SECONDS)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise StartAgain from error

    def _round(self, producer: Producer, consumer: Consumer) -> None:
        batch = [m for m in consumer.consume(self.random.randrange(1, BATCH_RECORDS), 0.1) if m.error() is None]
        if not batch:
            return
        attempt = self.ledger.attempt_begun(len(batch))
        abort = self.random.random() < 0.2
        try:
            producer.begin_transaction()
            for message in batch:
                self._produce(producer, message, attempt)
            ends = {m.partition(): m.offset() + 1 for m in batch}
            offsets = [TopicPartition(self.source, partition, offset) for partition, offset in ends.items()]
            group = consumer.consumer_group_metadata()
            _retried(lambda: producer.send_offsets_to_transaction(offsets, group, CALL_SECONDS))
            if not abort:
                self.ledger.attempt_is(attempt, Fate.ENDING)
                _retried(lambda: producer.commit_transaction(CALL_SECONDS))
                self.ledger.attempt_is(attempt, Fate.COMMITTED)
                for partition, offset in ends.items():
                    self.ledger.commit_acknowledged(self.GROUP, Place(self.source, partition), offset)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise StartAgain from error
            abort = True
        if abort:
            self._abort(producer, consumer, attempt)

    def _produce(self, producer: Producer, message: Message, attempt: int) -> None:
        value = b"%d|%d|%s" % (number_of(message.value()), attempt, b"y" * self.random.randrange(PADDING_BYTES_MAX))
        producer.produce(self.target, value, partition=self.random.randrange(self.partitions))

    def _abort(self, producer: Producer, consumer: Consumer, attempt: int) -> None:
        """Undo the transaction and go back to what the last one committed."""
        try:
            _retried(lambda: producer.abort_transaction(CALL_SECONDS))
            self.ledger.attempt_is(attempt, Fate.ABORTED)
            assignment = consumer.assignment()
            for partition in _retried(lambda: consumer.committed(assignment, CALL_SECONDS)):
                if partition.error is not None:
                    raise StartAgain
                consumer.seek(TopicPartition(partition.topic, partition.partition, max(partition.offset, 0)))
        except KafkaException as error:
            raise StartAgain from error


class StartAgain(Exception):
    """This producer or consumer is of no more use; a new one takes over under the same names."""


def _retried(call: Callable[[], Any]) -> Any:
    """Repeat a call that failed in a way that may be repeated; a crashed broker comes back within the deadline."""
    until = time.monotonic() + FINISH_SECONDS
    while True:
        try:
            return call()
        except KafkaException as error:
            cause = error.args[0]
            may_repeat = cause.retriable() or cause.code() in REPEATABLE
            if not may_repeat or cause.txn_requires_abort() or cause.fatal() or time.monotonic() > until:
                raise


REPEATABLE = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._WAIT_COORD, KafkaError._ALL_BROKERS_DOWN}
