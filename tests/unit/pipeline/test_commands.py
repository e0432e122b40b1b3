"""`trunkline pipeline` without Spark: what it says of state on disk, of wrong files, and of a machine without Java."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trunkline.cli.main import cli
from trunkline.pipeline.home import Home, PipelineHome
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


def keep(home: PipelineHome, state: str, *queries: QueryProgress, pid: int = 1) -> None:
    home.keep(version=2, file="/x/orders.toml")
    home.version(2).write_progress(
        {"pid": pid, "state": state, "error": None, "queries": [query.to_json() for query in queries]}
    )


def out_and_letters(state: str) -> tuple[QueryProgress, QueryProgress]:
    return (
        QueryProgress("out", "out", state=state, batch=3, read_by_source={"orders": 40}, written=38, lag=2),
        QueryProgress(
            "dead", "dead", dead_letters=True, state=state, batch=3, read_by_source={"orders": 40}, written=2, lag=0
        ),
    )


def test_pipelines_that_ran_are_listed_with_how_they_are(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    assert trunkline("pipeline", "list", *state).exit_code == 0
    keep(Home(tmp_path).pipeline("orders"), "finished", *out_and_letters("finished"))
    (listed,) = json.loads(trunkline("pipeline", "list", "--json", *state).stdout)
    expected = {"state": "finished", "version": 2, "pid": None, "read": 40, "written": 38, "dead_letters": 2, "lag": 2}
    assert {name: listed[name] for name in expected} == expected
    shown = json.loads(trunkline("pipeline", "status", "orders", "--json", *state).stdout)
    assert {name: shown[name] for name in expected} == expected
    assert [(item["read"], item["written"]) for item in shown["queries"]] == [(40, 38), (40, 2)]
    table = trunkline("pipeline", "status", "orders", *state).stdout
    assert "orders  finished, version 2" in table
    assert [line.split()[4:6] for line in table.splitlines()[-2:]] == [["40", "38"], ["40", "2"]]
    assert trunkline("pipeline", "list", *state).stdout.splitlines()[-1].split()[4:8] == ["40", "38", "2", "2"]


def test_the_queries_of_a_pipeline_that_died_died_too(tmp_path: Path) -> None:
    keep(Home(tmp_path).pipeline("orders"), "running", *out_and_letters("running"))
    shown = json.loads(trunkline("pipeline", "status", "orders", "--json", "--state", str(tmp_path)).stdout)
    assert [shown["state"], *(item["state"] for item in shown["queries"])] == ["died"] * 3
    assert "running" not in trunkline("pipeline", "status", "orders", "--state", str(tmp_path)).stdout
    (listed,) = json.loads(trunkline("pipeline", "list", "--json", "--state", str(tmp_path)).stdout)
    assert listed["state"] == "died"


def test_a_pipeline_that_does_not_run_can_be_removed(tmp_path: Path) -> None:
    home = Home(tmp_path).pipeline("orders")
    keep(home, "failed", *out_and_letters("failed"))
    remove = ("pipeline", "remove", "orders", "--state", str(tmp_path))
    with home.version(2).locked():
        refused = trunkline(*remove, "--yes")
    assert (refused.exit_code, "orders is running" in refused.stderr, "pipeline stop" in refused.stderr) == (
        1,
        True,
        True,
    )
    unsure = CliRunner().invoke(cli, list(remove), input="n\n")
    assert (unsure.exit_code, home.exists()) == (1, True)
    assert trunkline(*remove, "--yes").exit_code == 0
    assert not home.directory.exists()
    again = trunkline(*remove, "--yes")
    assert (again.exit_code, "there is no pipeline orders" in again.stderr) == (1, True)
    outside = trunkline("pipeline", "remove", "..", "--yes", "--state", str(tmp_path / "below"))
    assert (outside.exit_code, "no name of a pipeline" in outside.stderr) == (1, True)


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


def test_what_java_refuses_is_one_sentence_and_the_rest_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    state = ("--state", str(tmp_path))
    found = trunkline("pipeline", "run", str(file), "--master", "local[1]", "--memory", "1q", *state)
    assert found.exit_code == 1
    error, hint = found.stderr.splitlines()[-2:]
    assert error == "error: Spark does not start on local[1]: Invalid maximum heap size: -Xmx1q"
    log = Home(tmp_path).pipeline("p").version(1).log
    assert str(log) in hint
    assert "Could not create the Java Virtual Machine" in log.read_text()
    assert "Traceback" in log.read_text()
    (listed,) = json.loads(trunkline("pipeline", "list", "--json", *state).stdout)
    assert (listed["state"], "Invalid maximum heap size" in listed["error"]) == ("failed", True)


def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        file = tmp_path / "p.toml"
        file.write_text(PIPELINE)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = trunkline(
            "pipeline",
            "run",
            str(file),
            "--master",
            f"spark://nowhere.invalid:7077,{address}",
            "--state",
            str(tmp_path),
        )
    assert found.exit_code == 1
    error, hint = found.stderr.splitlines()[-2:]
    assert error.startswith("error: no Spark master answers at nowhere.invalid:7077 (")
    assert f"{address} (Connection refused)" in error
    assert "--master 'local[*]'" in hint
    (listed,) = json.loads(trunkline("pipeline", "list", "--json", "--state", str(tmp_path)).stdout)
    assert (listed["state"], listed["error"]) == ("failed", error.removeprefix("error: "))
    assert "Traceback" not in found.stderr
