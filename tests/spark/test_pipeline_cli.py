"""`trunkline pipeline` and `trunkline topic archive` as processes: run, killed, run again, stopped, replayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.server import ServerProcess
from tests.spark.running_pipelines import fill, records
from trunkline.client.client import Client
from trunkline.pipeline.home import Home, VersionHome
from trunkline.pipeline.session import check_java, quick_java_options

Unique = Callable[[str], str]
DEADLINE_S = 120.0
RECORDS = 500
QUICK = ["--master", "local[2]", "--memory", "512m", "--conf"]
QUICK.append(f"spark.driver.extraJavaOptions={' '.join(quick_java_options(check_java()))}")


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Commands:
    def __init__(self, bootstrap: str, state: Path, started: list[subprocess.Popen[str]]) -> None:
        self.bootstrap = bootstrap
        self.state = state
        self._started = started

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trunkline", *arguments, "--state", str(self.state)]
        # In a session of its own, so that Spark's processes are killed with it.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, err
        return out if code == 0 else err


@pytest.fixture
def commands(broker: ServerProcess, tmp_path: Path, started: list[subprocess.Popen[str]]) -> Commands:
    return Commands(broker.bootstrap, tmp_path / "state", started)


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)


def lag(home: VersionHome) -> object:
    queries = home.progress()["queries"]
    assert isinstance(queries, list)
    (query,) = queries
    assert isinstance(query, dict)
    return query["lag"]


@pytest.mark.timeout(300)
def test_a_killed_pipeline_goes_on_exactly_once_and_a_replay_writes_the_next_version(
    commands: Commands, client: Client, unique: Unique, tmp_path: Path
) -> None:
    topic, out = unique("orders"), unique("out")
    fill(client, topic, [{"id": number} for number in range(RECORDS)])
    file = tmp_path / "orders.toml"
    file.write_text(
        f"""
        trigger_ms = 0
        [[source]]
        name = "orders"
        topics = ["{topic}"]
        options = {{ maxOffsetsPerTrigger = 100 }}
        [[sink]]
        kind = "topic"
        topic = "{out}.v{{version}}"
        """
    )
    run = ["pipeline", "run", str(file), "--bootstrap", commands.bootstrap, *QUICK]
    killed = commands.start(*run)
    home = Home(commands.state).pipeline("orders").version(1)
    wait_until(lambda: f"{out}.v1" in client.metadata().topics and len(records(client, f"{out}.v1")) > 0, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not home.running()
    (listed,) = json.loads(commands.run("pipeline", "list", "--json"))
    assert (listed["pipeline"], listed["state"], listed["pid"]) == ("orders", "died", None)

    again = commands.start(*run)
    wait_until(lambda: len(records(client, f"{out}.v1")) >= RECORDS, again)
    # Records can be read before Spark has reported their batch.
    wait_until(lambda: lag(home) == 0, again)
    assert "running already" in commands.run(*run, code=1)
    commands.run("pipeline", "stop", "orders")
    assert again.wait(DEADLINE_S) == 0, again.communicate()
    ids = sorted(json.loads(item.value or b"")["id"] for item in records(client, f"{out}.v1"))
    assert ids == list(range(RECORDS))
    status = json.loads(commands.run("pipeline", "status", "orders", "--json"))
    assert (status["state"], status["version"], status["queries"][0]["lag"]) == ("stopped", 1, 0)

    commands.run("pipeline", "replay", "orders", "--since", "earliest", "--bootstrap", commands.bootstrap, *QUICK)
    assert len(records(client, f"{out}.v2")) == RECORDS
    assert json.loads(commands.run("pipeline", "list", "--json"))[0]["version"] == 2


def test_a_topic_is_archived_by_one_command(commands: Commands, client: Client, unique: Unique, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    topic = unique("events")
    fill(client, topic, [{"id": number} for number in range(10)])
    told = commands.run(
        "topic", "archive", topic, "--to", str(tmp_path / "lake"), "--schema", "json", "--once", "--json",
        "--bootstrap", commands.bootstrap, *QUICK,
    )  # fmt: skip
    (query,) = json.loads(told)
    assert (query["read"], query["written"]) == (10, 10)
    table = ds.dataset(tmp_path / "lake", partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == list(range(10))
