"""The examples in examples/stomp do what their README says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.stomp.conftest import StompBroker
from tests.integration.waiting import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples" / "stomp"
EXAMPLE_SECONDS = 60.0

# The examples have fixed names: one test at a time.
pytestmark = pytest.mark.xdist_group("stomp-examples")


class Receiver:
    def __init__(self, broker: StompBroker, directory: Path, *command: str) -> None:
        self._output = directory / f"{command[0]}-{os.urandom(4).hex()}.txt"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *command], stdout=output, stderr=output, cwd=EXAMPLES, env=environment(broker)
            )
        wait_until(lambda: "ready" in self.lines() or self._process.poll() is not None, what="the receiver")

    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def end(self) -> list[str]:
        assert self._process.wait(EXAMPLE_SECONDS) == 0, self.lines()
        return self.lines()[1:]


def environment(broker: StompBroker) -> dict[str, str]:
    return {**os.environ, "STOMP_ADDRESS": f"127.0.0.1:{broker.stomp_port}"}


def run(broker: StompBroker, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=EXAMPLE_SECONDS, cwd=EXAMPLES,
        env=environment(broker), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_are_done_once_each(stomp: StompBroker, tmp_path: Path) -> None:
    worker = Receiver(stomp, tmp_path, "worker.py", "--count", "3")
    assert run(stomp, "new_task.py", "first.", "second", "third") == "3 stored\n"
    assert worker.end() == ["done first.", "done second", "done third"]


def test_a_durable_listener_misses_nothing(stomp: StompBroker, tmp_path: Path, unique: Callable[[str], str]) -> None:
    topic, name = unique("news"), unique("ada")
    live = Receiver(stomp, tmp_path, "listener.py", f"{topic}.*", "--count", "2")
    durable = Receiver(stomp, tmp_path, "listener.py", f"{topic}.*", "--durable", name, "--count", "1")
    run(stomp, "announce.py", f"{topic}.sport", "a", "goal")
    assert durable.end() == [f"/topic/{topic}.sport a goal"]
    run(stomp, "announce.py", f"{topic}.weather", "rain")
    assert live.end() == [f"/topic/{topic}.sport a goal", f"/topic/{topic}.weather rain"]
    again = Receiver(stomp, tmp_path, "listener.py", f"{topic}.*", "--durable", name, "--count", "1")
    assert again.end() == [f"/topic/{topic}.weather rain"]
