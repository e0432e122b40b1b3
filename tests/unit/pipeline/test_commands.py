"""`trunkline pipeline` without Spark: what it says of state on disk, of wrong files, and of a machine without Java."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trunkline.cli.main import cli
from trunkline.pipeline.home import Home
from trunkline.pipeline.progress import QueryProgress

PIPELINE = """
[[source]]
name = "orders"
topics = ["orders"]
[[sink]]
kind = "topic"
topic = "out"
"""
# A process that holds the lock of a version as `run` does, and ends on SIGTERM.
RUNNING = """
import os, signal, sys, threading
from pathlib import Path
from trunkline.pipeline.home import PipelineHome
version = PipelineHome(Path(sys.argv[1])).version(1)
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
with version.locked():
    version.write_progress({"pid": os.getpid(), "state": "running", "queries": []})
    print("running", flush=True)
    while not ended.wait(0.05):
        pass
"""


def trunkline(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), prog_name="trunkline")


def test_pipelines_that_ran_are_listed_with_how_they_are(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    assert trunkline("pipeline", "list", *state).exit_code == 0
    home = Home(tmp_path).pipeline("orders")
    home.keep(version=2, file="/x/orders.toml")
    query = QueryProgress("out", "out", state="finished", batch=3, rows=40, lag=2)
    home.version(2).write_progress({"pid": 1, "state": "finished", "error": None, "queries": [query.to_json()]})
    (listed,) = json.loads(trunkline("pipeline", "list", "--json", *state).stdout)
    assert (listed["state"], listed["version"], listed["pid"], listed["records"], listed["lag"]) == (
        "finished",
        2,
        None,
        40,
        2,
    )
    shown = trunkline("pipeline", "status", "orders", *state)
    assert "orders  finished, version 2" in shown.stdout
    assert "40" in shown.stdout
    home.version(2).write_progress({"pid": 1, "state": "running", "error": None, "queries": []})
    assert json.loads(trunkline("pipeline", "list", "--json", *state).stdout)[0]["state"] == "died"


def test_a_pipeline_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    for command in ("status", "stop"):
        found = trunkline("pipeline", command, "nothing", "--state", str(tmp_path))
        assert found.exit_code == 1
        assert "there is no pipeline nothing" in found.stderr


def test_stop_ends_the_process_and_waits_for_it(tmp_path: Path) -> None:
    home = Home(tmp_path).pipeline("orders")
    home.keep(version=1, file=None)
    process = subprocess.Popen([sys.executable, "-c", RUNNING, str(home.directory)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        assert (
            json.loads(trunkline("pipeline", "list", "--json", "--state", str(tmp_path)).stdout)[0]["pid"]
            == process.pid
        )
        stopped = trunkline("pipeline", "stop", "orders", "--json", "--state", str(tmp_path))
        assert json.loads(stopped.stdout) == {"pipeline": "orders", "stopped": True}
        assert process.wait(10) == 0
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert (
        json.loads(trunkline("pipeline", "stop", "orders", "--json", "--state", str(tmp_path)).stdout)["stopped"]
        is False
    )


def test_without_java_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = trunkline("pipeline", "run", str(file), "--state", str(tmp_path / "state"))
    assert found.exit_code == 1
    (said,) = [line for line in found.stderr.splitlines() if line.startswith("error:")]
    assert "Spark needs Java 17" in said
    assert "apt-get install openjdk-17-jre-headless" in said


def test_a_replay_needs_a_place_of_its_own_for_its_result(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    found = trunkline("pipeline", "replay", str(file), "--since", "1h", "--state", str(tmp_path / "state"))
    assert found.exit_code == 1
    assert "put {version} into its name" in found.stderr
    assert "--append" in found.stderr
    wrong = trunkline("pipeline", "run", str(tmp_path / "none.toml"), "--state", str(tmp_path / "state"))
    assert (wrong.exit_code, "none.toml: No such file" in wrong.stderr) == (1, True)
