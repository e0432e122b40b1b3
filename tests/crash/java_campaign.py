"""The campaign of the Java client, which alone takes a new epoch for each transaction (KIP-890).

A Java program writes transactions, with offsets; it says what it knows of each, and the ledger compares that with what a
read_committed consumer finds.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.clients import client_config
from tests.crash.kafka_campaign import TOPIC_CONFIG, read_all
from tests.crash.kills import Campaign, Kills
from tests.crash.ledger import Fate, Ledger, Place
from tests.integration.java.jvm import JVM_FLAGS, compiled, required
from tests.integration.waiting import wait_until
from trunkline.bench.apache_kafka import classpath

SOURCES = Path(__file__).parent / "java"
TOPIC, PARTITIONS, GROUP = "invoices", 3, "biller"
ANSWER_SECONDS = 30.0
FINISH_SECONDS = 120.0
FIRST_COMMITS = 3


class Biller:
    """The Java program, and what it has said so far."""

    def __init__(self, bootstrap: str, ledger: Ledger, seed: int) -> None:
        path = classpath()
        command = [required("java"), *JVM_FLAGS, "-cp", f"{compiled(SOURCES, path)}:{path}", "Biller"]
        command += [bootstrap, TOPIC, str(PARTITIONS), GROUP, str(seed)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.last_committed = -1
        self._ledger = ledger
        self._remark = ""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def stop_sending(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def finish(self) -> None:
        self._listener.join(FINISH_SECONDS)
        if self._remark != "done":
            self._ledger.complain(f"the Java client did not finish; it said {self._remark!r} last")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, _, rest = line.strip().partition(" ")
            if what == "begun":
                attempt, size = map(int, rest.split())
                assert self._ledger.attempt_begun(size) == attempt
            elif what in ("ending", "committed", "aborted"):
                self._ledger.attempt_is(int(rest), Fate(what))
                if what == "committed":
                    self.last_committed = int(rest)
            else:
                self._remark = line.strip()


class JavaCampaign(Campaign):
    def __init__(self, kills: Kills) -> None:
        super().__init__(kills)
        self.ledger = Ledger()
        self._biller: Biller | None = None
        self._promised = -1

    @property
    def complaints(self) -> list[str]:
        return self.ledger.complaints

    def begin(self) -> None:
        admin = AdminClient(client_config(self.server.bootstrap))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=TOPIC_CONFIG)])[TOPIC].result(ANSWER_SECONDS)
        biller = self._biller = Biller(self.server.bootstrap, self.ledger, self.new_seed())
        wait_until(lambda: biller.last_committed >= FIRST_COMMITS, what="the first transactions")

    def killed(self) -> None:
        if self._biller is not None:
            self._promised = self._biller.last_committed

    def restarted(self) -> None:
        consumer = self._consumer()
        found = consumer.committed([TopicPartition(TOPIC, 0)], ANSWER_SECONDS)[0].offset
        consumer.close()
        if found < self._promised:
            self.ledger.complain(f"the group is at {found} after a crash; {self._promised} was committed")

    def stop_sending(self) -> None:
        assert self._biller is not None
        self._biller.stop_sending()

    def finish(self) -> None:
        assert self._biller is not None
        self._biller.finish()

    def end(self) -> None:
        if self._biller is not None:
            self._biller.kill()

    def checked(self) -> Mapping[str, int]:
        fates = [attempt.fate for attempt in self.ledger.attempts]
        return {
            "committed Java transactions": fates.count(Fate.COMMITTED),
            "aborted Java transactions": fates.count(Fate.ABORTED),
        }

    def _consumer(self) -> Consumer:
        config = client_config(self.server.bootstrap, group_id=GROUP, isolation_level="read_committed")
        return Consumer({**config, "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 20})

    def verify(self) -> None:
        consumer = self._consumer()
        found = read_all(consumer, [Place(TOPIC, partition) for partition in range(PARTITIONS)])
        consumer.close()
        values = [value for offsets in found.values() for value in offsets.values()]
        self.ledger.check_transactions(TOPIC, values, everything=False)
