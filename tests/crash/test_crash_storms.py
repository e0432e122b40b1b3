"""Kills in the middle of what the broker does by itself or rarely: compaction, retention, topic changes, rebalances."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.clients import GroupMember, RecordProducer, client_config
from tests.crash.kafka_campaign import read_all
from tests.crash.ledger import Ledger, Place, number_of, value_of
from tests.integration.hostile.peer import Peer
from tests.integration.server import ServerProcess
from tests.integration.waiting import wait_until
from trunkline.log.batch import NewRecord, build_batch

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

KILLS = 4
LIFE_SECONDS = (0.2, 0.9)
ANSWER_SECONDS = 30.0
KEYS = 20
BUSY_CLEANER = {"cleanup_interval_ms": "20"}
UNKNOWN_TOPIC = ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART")
TOPIC_EXISTS = "TOPIC_ALREADY_EXISTS"


def create(server: ServerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient(client_config(server.bootstrap))
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(ANSWER_SECONDS)


def kill_repeatedly(server: ServerProcess, seed: int, check: Callable[[], None] = lambda: None) -> None:
    """Let the broker live for random moments; `check` runs after each restart."""
    rng = random.Random(seed)
    for _ in range(KILLS):
        time.sleep(rng.uniform(*LIFE_SECONDS))
        server.kill()
        server.start()
        check()


def reader(server: ServerProcess) -> Consumer:
    return Consumer(
        client_config(
            server.bootstrap, group_id="reader", enable_partition_eof=True, check_crcs=True, fetch_wait_max_ms=20
        )
    )


def stored(server: ServerProcess, place: Place) -> dict[int, bytes]:
    consumer = reader(server)
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(*place), ANSWER_SECONDS)
        return read_all(consumer, [place], low)[place]
    finally:
        consumer.close()


class KeyedProducer(threading.Thread):
    """Writes ever higher numbers under a few keys, one record at a time, and remembers what was acknowledged."""

    def __init__(self, server: ServerProcess, topic: str) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.topic = topic
        self.acknowledged: dict[int, bytes] = {}  # offset -> value
        self.newest: dict[int, int] = {}  # key -> highest number acknowledged
        self._stop_asked = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            try:
                with Peer(self.server.port) as peer:
                    while not self._stop_asked.is_set():
                        key = number % KEYS
                        value = value_of(number, 200)
                        answer = peer.produce(self.topic, build_batch([NewRecord(b"%d" % key, value)]))
                        if answer.error_code == 0:
                            self.acknowledged[answer.base_offset] = value
                            self.newest[key] = number
                        number += 1
            except (OSError, AssertionError):
                number += 1  # the broker was killed; whether the last record was stored is not known
                self._stop_asked.wait(0.01)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(ANSWER_SECONDS)
        assert not self.is_alive()


def test_kills_during_compaction_lose_no_newest_value(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, BUSY_CLEANER)
    server.start()
    try:
        create(server, "compacted", cleanup_policy="compact", segment_bytes="8192", min_cleanable_dirty_ratio="0.01")
        place = Place("compacted", 0)
        producer = KeyedProducer(server, "compacted")
        producer.start()
        kill_repeatedly(server, seed=1)
        wait_until(lambda: len(producer.newest) == KEYS, what="a record of every key")
        producer.finish()
        total = len(producer.acknowledged)

        def compacted() -> bool:
            return len(stored(server, place)) < total * 0.9

        wait_until(compacted, what="compaction to drop old values")
        found = stored(server, place)
        for offset, value in found.items():
            known = producer.acknowledged.get(offset, value)
            assert known == value, f"offset {offset} was {known!r} and is {value!r}"
        newest: dict[int, int] = {}
        for offset in sorted(found):
            number = number_of(found[offset])
            newest[number % KEYS] = number
        behind = {
            key: (number, newest.get(key)) for key, number in producer.newest.items() if newest.get(key, -1) < number
        }
        assert not behind, f"keys whose newest acknowledged value is gone: {behind}"
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        server.close()


def test_kills_during_retention_never_move_the_start_back_nor_lose_what_follows_it(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, BUSY_CLEANER)
    server.start()
    starts: list[int] = []
    place = Place("short", 0)

    def note_start() -> None:
        consumer = reader(server)
        starts.append(consumer.get_watermark_offsets(TopicPartition(*place), ANSWER_SECONDS)[0])
        consumer.close()

    def retained() -> bool:
        note_start()
        return starts[-1] > 0

    try:
        create(server, "short", segment_bytes="8192", retention_bytes="65536", file_delete_delay_ms="0")
        producer = KeyedProducer(server, "short")
        producer.start()
        kill_repeatedly(server, seed=2, check=note_start)
        wait_until(retained, what="retention to drop old segments")
        producer.finish()
        assert starts == sorted(starts), f"the log's start went back: {starts}"
        server.kill()
        server.start()
        note_start()
        found = stored(server, place)
        lost = [
            o
            for o, v in producer.acknowledged.items()
            if o >= starts[-1] and found.get(o, v if o < min(found) else None) != v
        ]
        assert not lost, f"{len(lost)} acknowledged records after the start are gone, e.g. {lost[:5]}"
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        server.close()


class TopicStorm(threading.Thread):
    """Creates and deletes topics, and remembers what it was told of each: there, gone, or not known."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.random = random.Random(seed)
        self.exists: dict[str, bool | None] = {}
        self.done = 0
        self.complaints: list[str] = []
        self._stop_asked = threading.Event()

    def run(self) -> None:
        admin = AdminClient(client_config(self.server.bootstrap))
        while not self._stop_asked.is_set():
            name = f"storm-{self.random.randrange(12)}"
            known = self.exists.get(name, False)
            self.exists[name] = None
            if known is None:
                known = self._look(admin, name)
            try:
                if known:
                    admin.delete_topics([name], operation_timeout=10, request_timeout=5)[name].result(ANSWER_SECONDS)
                else:
                    topic = NewTopic(name, self.random.randint(1, 3), 1)
                    admin.create_topics([topic], request_timeout=5)[name].result(ANSWER_SECONDS)
                self.exists[name] = not known
                self.done += 1
            except KafkaException as error:
                # A request that was cut off may have been carried out, and librdkafka may have sent it again.
                code = error.args[0].name()
                if code in {TOPIC_EXISTS, *UNKNOWN_TOPIC} or error.args[0].code() < 0:
                    continue
                self.complaints.append(f"{name}: {error}")

    def _look(self, admin: AdminClient, name: str) -> bool:
        while not self._stop_asked.is_set():
            try:
                return name in admin.list_topics(timeout=5).topics
            except KafkaException:
                continue
        return False

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(ANSWER_SECONDS * 2)
        assert not self.is_alive()


def test_kills_during_a_storm_of_topic_changes(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.start()
    try:
        storm = TopicStorm(server, seed=3)
        storm.start()
        kill_repeatedly(server, seed=3)
        enough = storm.done + 5
        wait_until(lambda: storm.done >= enough, what="topic changes after the last restart")
        storm.finish()
        server.kill()
        server.start()
        assert not storm.complaints, storm.complaints
        listed = set(AdminClient(client_config(server.bootstrap)).list_topics(timeout=ANSWER_SECONDS).topics)
        wrong = {n: e for n, e in storm.exists.items() if e is not None and (n in listed) != e}
        assert not wrong, f"topics that are not as they were acknowledged: {wrong}"
        with Peer(server.port) as peer:
            for name in sorted(n for n in listed if n.startswith("storm-")):
                answer = peer.produce(name, build_batch([NewRecord(None, b"v")]))
                assert (answer.error_code, answer.base_offset) == (0, 0), f"{name} is usable and empty"
        directories = {
            p.name.rpartition("-")[0] for p in server.data.iterdir() if p.is_dir() and p.name.startswith("storm-")
        }
        assert {d for d in directories if "." not in d} <= listed, "no directory outlives its topic"
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        server.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kills_during_rebalances_lose_nobody_and_nothing(tmp_path: Path, protocol: str) -> None:
    """Members come and go while the broker is killed; in the end those that stay have read everything."""
    settings: dict[str, object] = {"group_protocol": protocol}
    if protocol == "classic":
        settings |= {"session_timeout_ms": 6000, "partition_assignment_strategy": "cooperative-sticky"}
    server = ServerProcess(tmp_path, {"group_consumer_session_timeout_ms": "6000"})
    server.start()
    ledger = Ledger()
    try:
        create(server, "t", 6)
        producer = RecordProducer("t", 6, server.bootstrap, ledger, seed=4, enable_idempotence=True)
        stayers = [GroupMember("g", ["t"], server.bootstrap, ledger, **settings) for _ in range(2)]
        producer.start()
        for member in stayers:
            member.start()
        passing: list[GroupMember] = []

        def change_members() -> None:
            for member in passing:
                member.finish()
            passing.append(GroupMember("g", ["t"], server.bootstrap, ledger, **settings))
            passing[-1].start()

        kill_repeatedly(server, seed=4, check=change_members)
        for member in passing:
            member.finish()
        producer.finish()
        producer.join(ANSWER_SECONDS * 3)
        ends = {place: end for place, end in ledger.promised_ends().items() if place.topic == "t"}

        def read_to_the_end() -> bool:
            commits = ledger.promised_commits().get("g", {})
            return bool(ledger.complaints) or all(commits.get(place, 0) >= end for place, end in ends.items())

        wait_until(read_to_the_end, 90.0, "the group at the end of its topic")
        for member in [*stayers, *passing]:
            member.finish()
        for member in [*stayers, *passing]:
            member.join(ANSWER_SECONDS)
        consumer = reader(server)
        found = read_all(consumer, sorted(ends))
        consumer.close()
        ledger.check_acknowledged(found)
        ledger.check_idempotent("t", found)
        ledger.check_coverage("g", found, ["t"])
        assert not ledger.complaints, ledger.complaints
        assert "Traceback" not in server.log.read_text(errors="replace"), server.log_tail()
    finally:
        producer.finish()
        server.close()
