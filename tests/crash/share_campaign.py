"""The campaign of a share group: members that accept, release, and are cut off with records in hand. What is promised is in
`share_ledger`.

Members speak the protocol themselves (`client/share_member`): what they were told, and when, is exactly what they write down.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.crash.clients import RecordProducer, client_config
from tests.crash.kills import Campaign, Kills
from tests.crash.ledger import Ledger, Place
from tests.crash.share_ledger import Offset, ShareLedger
from trunkline.client import Client, ClientError
from trunkline.client.connection import KafkaConnection
from trunkline.client.share_groups import ShareGroups, Standing
from trunkline.client.share_member import ACCEPT, RELEASE, Locked, Settled, ShareMember
from trunkline.client.share_member import Place as SharePlace
from trunkline.log.store import TopicPartition

TOPIC, GROUP = "tasks", "workers"
PARTITIONS, MEMBERS = 2, 3
ANSWER_SECONDS = 30.0
FINISH_SECONDS = 120.0
DELIVERY_LIMIT = 10  # the most that Kafka allows
FEW_DELIVERIES = 3  # up to here a member may let go of a record: it is then never archived
PAUSE_SECONDS = 0.02
TIMEOUT_MS = 10_000
SHARE_OF_RELEASES, SHARE_OF_CUTS, SHARE_OF_COMMITS = 0.1, 0.05, 0.3


class Worker(threading.Thread):
    """One member, through any number of connections."""

    def __init__(self, number: int, address: tuple[str, int], ledger: ShareLedger, seed: int) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self._address = address
        self._ledger = ledger
        self._random = random.Random(seed)
        self._id = f"worker-{number}"
        self._finish = threading.Event()

    def finish(self) -> None:
        self._finish.set()

    def run(self) -> None:
        try:
            while not self._finish.is_set():
                with suppress(ClientError):  # the broker was killed, or is starting
                    self._connected()
                self._finish.wait(PAUSE_SECONDS)
        except Exception as error:
            self._ledger.complain(f"{self.name} gave up: {error!r}")

    def _connected(self) -> None:
        generation = self._ledger.generation  # what answers from now on is this one, or none
        with KafkaConnection(*self._address, timeout_ms=TIMEOUT_MS) as connection:
            if generation != self._ledger.generation:
                return
            member = ShareMember(connection, GROUP, [TOPIC], self._id)
            if member.heartbeat():
                self._work(member, generation)

    def _work(self, member: ShareMember, generation: int) -> None:
        held: list[Locked] = []
        beaten = time.monotonic()
        while not self._finish.is_set():
            said, done = self._decide(held)
            if said and self._random.random() < SHARE_OF_COMMITS:
                member.acknowledge(said)
                self._ledger.was_accepted(done, generation)
                said, done = {}, []
            held = member.fetch(said, max_wait_ms=100, max_records=self._random.choice((5, 50, 500)))
            self._ledger.was_accepted(done, generation)
            for each in held:
                self._ledger.was_delivered(_offsets(each), each.deliveries, self.name, generation)
            few = all(each.deliveries <= FEW_DELIVERIES for each in held)
            if held and few and self._random.random() < SHARE_OF_CUTS:
                for each in held:
                    self._ledger.will_be_let_go(_offsets(each))
                return  # the connection is cut with records in hand
            if time.monotonic() - beaten > 1:
                member.heartbeat()
                beaten = time.monotonic()

    def _decide(self, held: list[Locked]) -> tuple[dict[SharePlace, list[Settled]], list[Offset]]:
        """Accept most, release some; returns what to say, and what is accepted with it."""
        said: dict[SharePlace, list[Settled]] = {}
        done: list[Offset] = []
        for each in held:
            few = each.deliveries <= FEW_DELIVERIES
            kind = RELEASE if few and self._random.random() < SHARE_OF_RELEASES else ACCEPT
            said.setdefault(each.place, []).append(Settled(each.first, each.last, kind))
            if kind == ACCEPT:
                done += _offsets(each)
            else:
                self._ledger.will_be_let_go(_offsets(each))
        self._ledger.will_be_accepted(done)
        return said, done


def _offsets(locked: Locked) -> list[Offset]:
    return [(locked.place.partition, offset) for offset in range(locked.first, locked.last + 1)]


class ShareCampaign(Campaign):
    def __init__(self, kills: Kills) -> None:
        super().__init__(kills)
        self.ledger = ShareLedger()
        self.records = Ledger()
        self._workers: list[Worker] = []

    @property
    def complaints(self) -> list[str]:
        return self.ledger.complaints + self.records.complaints

    def begin(self) -> None:
        admin = AdminClient(client_config(self.server.bootstrap))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(ANSWER_SECONDS)
        settings = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(DELIVERY_LIMIT)}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
        admin.incremental_alter_configs([group])[group].result(ANSWER_SECONDS)
        self._producer = RecordProducer(
            TOPIC, PARTITIONS, self.server.bootstrap, self.records, seed=self.new_seed(), enable_idempotence=True
        )
        address = (self.server.host, self.server.port)
        self._workers = [Worker(number, address, self.ledger, self.new_seed()) for number in range(MEMBERS)]
        for client in (self._producer, *self._workers):
            client.start()

    def killed(self) -> None:
        self.ledger.generation += 1

    def stop_sending(self) -> None:
        self._producer.finish()

    def finish(self) -> None:
        """Let the producer deliver, and the members accept all that there is."""
        self._producer.join(FINISH_SECONDS)
        deadline = time.monotonic() + FINISH_SECONDS
        while self._is_left() and time.monotonic() < deadline and not self.complaints:
            time.sleep(0.1)
        self.end()
        for worker in self._workers:
            worker.join(FINISH_SECONDS)
            if worker.is_alive():
                self.ledger.complain(f"{worker.name} did not finish")

    def _stored(self) -> list[Offset]:
        with self.records.lock:
            places = [Place(TOPIC, partition) for partition in range(PARTITIONS)]
            return [(place.partition, offset) for place in places for offset in self.records.acknowledged[place]]

    def _is_left(self) -> bool:
        """Whether there is anything to accept, by the ledger or by what the broker says."""
        with self.ledger.lock:
            asked = set(self.ledger.asked)
        return any(offset not in asked for offset in self._stored()) or any(
            standing.lag for standing in self._standings().values()
        )

    def _standings(self) -> dict[TopicPartition, Standing]:
        with Client(self.server.bootstrap) as client:
            return ShareGroups(client).standings(GROUP)

    def verify(self) -> None:
        stored = self._stored()
        self.ledger.check_accepted(stored)
        for tp, standing in self._standings().items():
            ends = max((offset for partition, offset in stored if partition == tp.partition), default=-1) + 1
            if standing.lag or standing.start_offset < ends:
                self.ledger.complain(f"{tp} stands at {standing} after the last crash; all before {ends} was accepted")

    def end(self) -> None:
        self._producer.finish()
        for worker in self._workers:
            worker.finish()

    def checked(self) -> Mapping[str, int]:
        return {
            "accepted records": len(self.ledger.accepted),
            "redeliveries to a share group": self.ledger.redelivered,
        }
