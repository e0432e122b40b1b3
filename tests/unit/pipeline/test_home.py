"""The state of pipelines on disk, and how far they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.pipeline.home import Home, HomeError, default_home
from trunkline.pipeline.progress import QueryProgress

HOLD = """
import sys
from pathlib import Path
from trunkline.pipeline.home import PipelineHome
version = PipelineHome(Path(sys.argv[1])).version(1)
with version.locked():
    version.write_progress({"pid": 1, "state": "running"})
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_version_runs_exactly_as_long_as_its_process(tmp_path: Path) -> None:
    home = Home(tmp_path).pipeline("orders")
    home.keep(version=1, file="orders.toml")
    version = home.version(1)
    assert not version.running()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert version.running()
        with pytest.raises(HomeError, match="orders is running already"), version.locked():
            pass
    finally:
        process.kill()
        process.communicate()
    assert not version.running()
    assert version.progress()["state"] == "running"
    with version.locked():
        assert version.running()


def test_versions_are_counted_and_the_current_one_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path).pipeline("orders")
    assert (home.exists(), home.current(), home.next_version()) == (False, 1, 2)
    home.keep(version=1, file=None)
    home.version(10).keep_schema("orders", "id BIGINT")
    assert home.version(10).schema("orders") == "id BIGINT"
    assert home.version(1).schema("orders") is None
    assert home.next_version() == 11
    home.keep(version=10, file="orders.toml")
    found = Home(tmp_path).pipelines()
    assert [(item.name, item.current(), item.file()) for item in found] == [("orders", 10, "orders.toml")]
    with pytest.raises(HomeError, match="in use"):
        home.discard(10)


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path).pipeline("orders")
    home.keep(version=1, file=None)
    (home.directory / "pipeline.json").write_text("{")
    with pytest.raises(HomeError, match=r"pipeline\.json is damaged"):
        home.current()


def test_the_home_follows_the_environment() -> None:
    assert default_home({"TRUNKLINE_PIPELINES": "/p"}) == Path("/p")
    assert default_home({"XDG_STATE_HOME": "/s"}) == Path("/s/trunkline/pipelines")
    assert default_home({"HOME": "/h"}) == Path("/h/.local/state/trunkline/pipelines")


def report(batch: int, *, rows: int, end: int, latest: int, run: str = "r") -> dict[str, object]:
    source = {"endOffset": {"t": {"0": end}}, "latestOffset": f'{{"t": {{"0": {latest}}}}}'}
    return {
        "batchId": batch,
        "runId": run,
        "numInputRows": rows,
        "processedRowsPerSecond": 12.5,
        "durationMs": {"addBatch": 3, "triggerExecution": 40},
        "sources": [source],
    }


def test_reports_are_folded_once_each() -> None:
    progress = QueryProgress("q", "topic")
    assert progress.take(report(0, rows=10, end=10, latest=25))
    assert not progress.take(report(0, rows=10, end=10, latest=25))
    assert (progress.rows, progress.lag, progress.batch_ms, progress.state) == (10, 15, 40, "running")
    assert progress.take(report(1, rows=15, end=25, latest=25))
    # A restarted query numbers on, and may report the batch that failed before.
    assert progress.take(report(1, rows=5, end=25, latest=25, run="other"))
    assert (progress.rows, progress.lag, progress.batch) == (30, 0, 1)


def test_reports_with_unknown_parts_leave_the_lag_unknown() -> None:
    progress = QueryProgress("q", "topic")
    unknown = {**report(0, rows=1, end=1, latest=1), "sources": [{"endOffset": None}]}
    assert progress.take(unknown)
    assert progress.to_json()["lag"] is None
    assert not progress.take({"batchId": None})
    idle = {**report(1, rows=0, end=1, latest=4), "durationMs": {"latestOffset": 1}}
    assert not progress.take(idle)
    assert (progress.lag, progress.batch) == (3, 0)
