"""The campaign of Kafka clients: producers of each kind, groups of both protocols, and a processor with transactions.

After each start the partition ends and the committed offsets are compared with what was promised before the kill; at the
end every record is read and compared. What is promised is in `ledger`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.clients import Client, GroupMember, Processor, RecordProducer, client_config
from tests.crash.kills import Campaign, Kills
from tests.crash.ledger import Ledger, Place
from tests.integration.waiting import wait_until

PARTITIONS = 3
ACKS_ONE, ACKS_ALL, ORDERS, INVOICES = "acks-one", "acks-all", "orders", "invoices"
CLASSIC, MODERN = "classic-group", "modern-group"
ANSWER_SECONDS = 30.0
FINISH_SECONDS = 120.0
STALLED_SECONDS = 5.0
# Small segments, so that kills fall on rolls, indexes and snapshots too.
TOPIC_CONFIG = {"segment.bytes": "65536", "segment.index.bytes": "4096", "index.interval.bytes": "512"}


class KafkaCampaign(Campaign):
    def __init__(self, kills: Kills) -> None:
        super().__init__(kills)
        self.ledger = Ledger()
        self._promised: tuple[dict[Place, int], dict[str, dict[Place, int]]] = ({}, {})
        self._commits_checked = 0
        self._clients: list[Client] = []

    @property
    def complaints(self) -> list[str]:
        return self.ledger.complaints

    def begin(self) -> None:
        self._create_topics()
        self._start_clients()

    def end(self) -> None:
        for client in self._clients:
            client.finish()

    def checked(self) -> Mapping[str, int]:
        return {
            "acknowledged records": sum(len(offsets) for offsets in self.ledger.acknowledged.values()),
            "transactions": len(self.ledger.attempts),
            "committed offsets": self._commits_checked,
        }

    # -- the clients -----------------------------------------------------------------------------------------------

    def _create_topics(self) -> None:
        admin = AdminClient(client_config(self.server.bootstrap))
        names = (ACKS_ONE, ACKS_ALL, ORDERS, INVOICES)
        for future in admin.create_topics([NewTopic(n, PARTITIONS, 1, config=TOPIC_CONFIG) for n in names]).values():
            future.result(ANSWER_SECONDS)

    def _start_clients(self) -> None:
        where, ledger, seed = self.server.bootstrap, self.ledger, self.new_seed
        plain = {"enable_idempotence": False}
        self._producers = [
            RecordProducer(ACKS_ONE, PARTITIONS, where, ledger, seed=seed(), acks=1, **plain),
            RecordProducer(ACKS_ALL, PARTITIONS, where, ledger, seed=seed(), acks="all", **plain),
            RecordProducer(ORDERS, PARTITIONS, where, ledger, seed=seed(), enable_idempotence=True),
        ]
        read = [ACKS_ONE, ACKS_ALL, ORDERS]
        classic = {"partition_assignment_strategy": "cooperative-sticky", "session_timeout_ms": 10_000}
        self._members = [
            GroupMember(CLASSIC, read, where, ledger, **classic),
            GroupMember(CLASSIC, read, where, ledger, **classic),
            GroupMember(MODERN, read, where, ledger, group_protocol="consumer"),
        ]
        self._processor = Processor(ORDERS, INVOICES, PARTITIONS, where, ledger, seed=seed(), session_timeout_ms=6_000)
        self._clients = [*self._producers, *self._members, self._processor]
        for client in self._clients:
            client.start()

    def stop_sending(self) -> None:
        for producer in self._producers:
            producer.finish()

    def finish(self) -> None:
        """Let every producer deliver, the processor process and the groups read what there is; then stop them."""
        for producer in self._producers:
            producer.join(FINISH_SECONDS)
        ends = self._ends([ACKS_ONE, ACKS_ALL, ORDERS])
        orders = {place: end for place, end in ends.items() if place.topic == ORDERS}
        self._processor.done = lambda: self._has_committed(Processor.GROUP, orders)
        self._processor.finish()
        for group in (CLASSIC, MODERN):
            wait_until(partial(self._has_committed, group, ends), FINISH_SECONDS, f"{group} at the end of its topics")
        for member in self._members:
            member.finish()
        self._see_the_processor_through()
        for client in self._clients:
            client.join(FINISH_SECONDS)
            if client.is_alive():
                self.ledger.complain(f"client {client.name} did not finish")

    def _see_the_processor_through(self) -> None:
        """Wait for the processor, and kill the broker again when it makes no progress.

        librdkafka (2.16, its issues 5456 and 5511) can wait for ever to commit a transaction's offsets: it looks at its
        cached coordinator again only when a connection changes state. One more crash is such a change.
        """
        until = time.monotonic() + FINISH_SECONDS
        while self._processor.is_alive() and time.monotonic() < until:
            begun = len(self.ledger.attempts)
            self._processor.join(STALLED_SECONDS)
            if self._processor.is_alive() and len(self.ledger.attempts) == begun:
                self.kills.strike()

    def _has_committed(self, group: str, ends: dict[Place, int]) -> bool:
        with self.ledger.lock:
            commits = self.ledger.commits[group]
            return all(commits.get(place, 0) >= end for place, end in ends.items()) or bool(self.ledger.complaints)

    # -- the kills -------------------------------------------------------------------------------------------------

    def killed(self) -> None:
        # Acknowledgements that were on their way when the broker died may still arrive: they count as well, later.
        self._promised = (self.ledger.promised_ends(), self.ledger.promised_commits())

    def restarted(self) -> None:
        try:
            self._compare(*self._promised)
        except KafkaException as error:
            self.ledger.complain(
                f"the broker does not answer after a restart: {error}; it said {self.server.log_tail()}"
            )

    def _compare(self, ends: dict[Place, int], commits: dict[str, dict[Place, int]]) -> None:
        actual = self._ends([ACKS_ONE, ACKS_ALL, ORDERS])
        for place, end in ends.items():
            if actual[place] < end:
                self.ledger.complain(f"{place} ends at {actual[place]} after a crash; {end} was promised")
        for group, places in commits.items():
            for place, offset in self._committed(group, places).items():
                self._commits_checked += 1
                if offset < places[place]:
                    self.ledger.complain(
                        f"group {group} is at {offset} on {place} after a crash; it had committed {places[place]}"
                    )

    # -- what the broker holds ---------------------------------------------------------------------------------------

    def _probe(self, group: str, isolation: str = "read_uncommitted") -> Consumer:
        config = client_config(
            self.server.bootstrap, group_id=group, isolation_level=isolation, enable_auto_commit=False
        )
        return Consumer(
            {**config, "auto.offset.reset": "earliest", "enable.partition.eof": True, "fetch.wait.max.ms": 20}
        )

    def _ends(self, topics: list[str]) -> dict[Place, int]:
        probe = self._probe("probe")
        try:
            places = [Place(topic, partition) for topic in topics for partition in range(PARTITIONS)]
            return {p: probe.get_watermark_offsets(TopicPartition(*p), ANSWER_SECONDS)[1] for p in places}
        finally:
            probe.close()

    def _committed(self, group: str, places: dict[Place, int]) -> dict[Place, int]:
        probe = self._probe(group)
        try:
            found = probe.committed([TopicPartition(*place) for place in places], ANSWER_SECONDS)
            return {Place(p.topic, p.partition): p.offset for p in found}
        finally:
            probe.close()

    def _read(self, topics: list[str], isolation: str) -> dict[Place, dict[int, bytes]]:
        """Every record of these topics, by offset."""
        probe = self._probe("reader", isolation)
        try:
            return read_all(probe, [Place(t, p) for t in topics for p in range(PARTITIONS)])
        finally:
            probe.close()

    def verify(self) -> None:
        stored = self._read([ACKS_ONE, ACKS_ALL, ORDERS], "read_uncommitted")
        self.ledger.check_acknowledged(stored)
        self.ledger.check_idempotent(ORDERS, stored)
        for group in (CLASSIC, MODERN):
            self.ledger.check_coverage(group, stored, [ACKS_ONE, ACKS_ALL, ORDERS])
        committed = self._read([INVOICES], "read_committed")
        values = [value for offsets in committed.values() for value in offsets.values()]
        self.ledger.check_transactions(ORDERS, values)


def read_all(consumer: Consumer, places: list[Place], first_offset: int = 0) -> dict[Place, dict[int, bytes]]:
    """Read these partitions from their first offset to the end that the broker reports."""
    found: dict[Place, dict[int, bytes]] = {place: {} for place in places}
    consumer.assign([TopicPartition(place.topic, place.partition, first_offset) for place in places])
    unread = set(places)
    deadline = time.monotonic() + FINISH_SECONDS
    while unread:
        assert time.monotonic() < deadline, f"could not read {unread} to the end"
        for message in consumer.consume(1000, 0.05):
            place = Place(message.topic(), message.partition())
            if message.error() is None:
                found[place][message.offset()] = message.value()
            elif message.error().name() == "_PARTITION_EOF":
                unread.discard(place)
    return found
