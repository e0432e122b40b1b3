"""The state of pipelines on disk, and how far they are."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.pipeline.home import Home, HomeError, default_home

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


def test_a_removed_pipeline_leaves_nothing_and_one_that_runs_stays(tmp_path: Path) -> None:
    home = Home(tmp_path).pipeline("orders")
    home.keep(version=2, file=None)
    home.version(1).keep_schema("orders", "id BIGINT")
    (home.version(2).checkpoints / "out").mkdir(parents=True)
    with home.version(1).locked(), pytest.raises(HomeError, match="orders is running already"):
        home.remove()
    assert home.version(1).schema("orders") == "id BIGINT"
    home.remove()
    assert not home.directory.exists()
    assert Home(tmp_path).pipelines() == []
    for name in ("", "..", "a/b", "/etc"):
        with pytest.raises(HomeError, match="no name of a pipeline"):
            Home(tmp_path).pipeline(name)


def test_a_run_does_not_start_in_a_directory_that_is_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path).pipeline("orders")
    home.keep(version=1, file=None)
    flock = fcntl.flock

    def removed_before_it_is_locked(file: int, operation: int) -> None:
        shutil.rmtree(home.directory)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before_it_is_locked)
    with pytest.raises(HomeError, match="was removed"), home.version(1).locked():
        pass
