"""A campaign for the Java client, which alone takes a new epoch for each transaction (KIP-890).

A Java program writes transactions, with offsets, while the broker is killed again and again; it says what it knows of each,
and the ledger compares that with what a read_committed consumer finds. A seed repeats the schedule of the kills.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.campaign import TOPIC_CONFIG, read_all, start_and_kill
from tests.crash.clients import client_config
from tests.crash.ledger import Fate, Ledger, Place, verdict
from tests.integration.java.jvm import JVM_FLAGS, compiled, required
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until
from trunkline.bench.apache_kafka import classpath

SOURCES = Path(__file__).parent / "java"
TOPIC, PARTITIONS, GROUP = "invoices", 3, "biller"
LIFE_SECONDS = (0.05, 1.2)
RECOVERY_SECONDS = (0.0, 0.4)
KILLED_WHILE_STARTING = 0.2
ANSWER_SECONDS = 30.0
FINISH_SECONDS = 120.0
FIRST_COMMITS = 3


@dataclass(frozen=True)
class JavaSummary:
    seed: int
    kills: int
    committed: int
    aborted: int
    complaints: list[str]

    def __str__(self) -> str:
        checked = f"{self.kills} kills; {self.committed} committed and {self.aborted} aborted transactions checked"
        return verdict(f"seed {self.seed}: {checked}", self.complaints)


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

    def finish(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
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


class JavaCampaign:
    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.server = ServerProcess(directory)
        self.kills = 0

    def run(self, cycles: int, on_cycle: Callable[[int], None] = lambda done: None) -> JavaSummary:
        self.server.start()
        try:
            admin = AdminClient(client_config(self.server.bootstrap))
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=TOPIC_CONFIG)])[TOPIC].result(ANSWER_SECONDS)
            biller = Biller(self.server.bootstrap, self.ledger, self.random.randrange(1 << 30))
            try:
                wait_until(lambda: biller.last_committed >= FIRST_COMMITS, what="the first transactions")
                for cycle in range(cycles):
                    time.sleep(self.random.uniform(*LIFE_SECONDS))
                    self._kill_and_restart(biller)
                    on_cycle(cycle + 1)
                    if self.ledger.complaints:
                        break
                biller.finish()
            finally:
                biller.kill()
            self._kill_and_restart(biller)
            self._verify()
        finally:
            self.server.close()
        fates = [attempt.fate for attempt in self.ledger.attempts]
        return JavaSummary(
            seed=self.seed,
            kills=self.kills,
            committed=fates.count(Fate.COMMITTED),
            aborted=fates.count(Fate.ABORTED),
            complaints=self.ledger.complaints,
        )

    def _kill_and_restart(self, biller: Biller) -> None:
        self.server.kill()
        self.kills += 1
        promised = biller.last_committed
        while self.random.random() < KILLED_WHILE_STARTING:
            start_and_kill(self.server, self.random.uniform(*RECOVERY_SECONDS))
            self.kills += 1
        self.server.start()
        consumer = self._consumer()
        found = consumer.committed([TopicPartition(TOPIC, 0)], ANSWER_SECONDS)[0].offset
        consumer.close()
        if found < promised:
            self.ledger.complain(f"the group is at {found} after a crash; {promised} was committed")

    def _consumer(self) -> Consumer:
        config = client_config(self.server.bootstrap, group_id=GROUP, isolation_level="read_committed")
        return Consumer({**config, "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 20})

    def _verify(self) -> None:
        consumer = self._consumer()
        found = read_all(consumer, [Place(TOPIC, partition) for partition in range(PARTITIONS)])
        consumer.close()
        values = [value for offsets in found.values() for value in offsets.values()]
        self.ledger.check_transactions(TOPIC, values, everything=False)
