"""Groups of librdkafka consumers, driven by one thread: poll every member in turn until the group is as it should be.

A member that is to die without a word runs in a process of its own (`MemberProcess`): SIGKILL leaves the broker to notice.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kafka

from tests.integration.waiting import DEADLINE_SECONDS, wait_until

REPOSITORY = Path(__file__).resolve().parents[3]
Partitions = frozenset[tuple[str, int]]


def assigned(member: Any) -> Partitions:
    return frozenset((each.topic, each.partition) for each in member.assignment())


def is_shared(shares: Sequence[Partitions], partitions: Partitions, sizes: Sequence[int]) -> bool:
    """Whether the shares are of these sizes and hold every partition exactly once."""
    return (
        sorted(map(len, shares)) == sorted(sizes)
        and sum(map(len, shares)) == len(partitions)
        and frozenset[tuple[str, int]]().union(*shares) == partitions
    )


def all_partitions(topic: str, count: int) -> Partitions:
    return frozenset((topic, partition) for partition in range(count))


class Group:
    """Members that are polled in turn; the messages they get are kept in `messages`, by member."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = list(members)
        self.messages: list[list[Any]] = [[] for _ in members]
        self.errors: list[Any] = []

    def add(self, member: Any) -> None:
        self.members.append(member)
        self.messages.append([])

    def close(self, index: int) -> None:
        """Let one member leave, polling the others meanwhile is the caller's next step."""
        self.members.pop(index).close()
        self.messages.pop(index)

    def turn(self) -> None:
        for member, messages in zip(self.members, self.messages, strict=True):
            message = member.poll(0.02)
            if message is None:
                continue
            if message.error() is None:
                messages.append(message)
            else:
                self.errors.append(message.error())

    def assignments(self) -> list[Partitions]:
        return [assigned(member) for member in self.members]

    def values(self) -> list[bytes]:
        return [message.value() for messages in self.messages for message in messages]

    def until(self, condition: Callable[[], Any], what: str, timeout: float = DEADLINE_SECONDS) -> None:
        def turn() -> bool:
            self.turn()
            return bool(condition())

        try:
            wait_until(turn, timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; assignments {self.assignments()}, errors {self.errors}") from None

    def settle(self, partitions: Partitions, sizes: Sequence[int], timeout: float = DEADLINE_SECONDS) -> None:
        """Poll until the members share exactly these partitions, each once, in shares of these sizes (in any order)."""

        def shared() -> bool:
            return is_shared(self.assignments(), partitions, sizes)

        self.until(shared, f"{len(partitions)} partitions in shares of {sizes}", timeout)


def subscribed(topic: str, configuration: dict[str, Any]) -> Any:
    """A kafka-python consumer of this topic. Subscribed as it is made, it may take metadata without the topic for the
    metadata it has looked at; as leader it then assigns nothing and is content with that.
    """
    consumer = kafka.KafkaConsumer(**configuration)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.partitions_for_topic(topic), what=f"metadata of {topic}")
    return consumer


class MemberThread:
    """A kafka-python consumer, polled by a thread of its own as in an application: one thread cannot poll several, because
    a member that is not being polled answers nothing, not even while another waits for it."""

    def __init__(self, topic: str, configuration: dict[str, Any]) -> None:
        self._consumer = subscribed(topic, configuration)
        self._assignment: Partitions = frozenset()
        self._leaving = threading.Event()
        self.values: list[bytes | None] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def assignment(self) -> Partitions:
        assert self.failure is None, self.failure
        return self._assignment

    def close(self) -> None:
        self._leaving.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the member did not leave"
        assert self.failure is None, self.failure

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                for messages in self._consumer.poll(timeout_ms=100).values():
                    self.values += [message.value for message in messages]
                self._assignment = frozenset((each.topic, each.partition) for each in self._consumer.assignment())
            self._consumer.close()
        except BaseException as error:
            self.failure = error


class MemberProcess:
    """A consumer in a process of its own that prints its assignment, as JSON, whenever it changes."""

    def __init__(self, configuration: dict[str, Any], topics: Sequence[str]) -> None:
        given = json.dumps({"configuration": configuration, "topics": list(topics)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.kafka.member", given], stdout=subprocess.PIPE, cwd=REPOSITORY
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._assignment: Partitions = frozenset()
        threading.Thread(target=self._read, daemon=True).start()

    def assignment(self) -> Partitions:
        while not self._lines.empty():
            self._assignment = frozenset((topic, partition) for topic, partition in json.loads(self._lines.get()))
        return self._assignment

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
