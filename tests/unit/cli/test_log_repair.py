"""`trunkline log check` and `trunkline log repair` on the data directory of a stopped broker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.log.stores import TP, batch_of, log_files, opened, records_of, run, values, with_topic
from trunkline.cli.main import cli


def invoke(*arguments: str | Path, code: int) -> Result:
    result = CliRunner().invoke(cli, ["log", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def check(directory: Path, *, code: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke("check", directory, "--json", code=code).stdout)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    async def main() -> None:
        async with with_topic(tmp_path / "data", segment_bytes="900", index_interval_bytes="100") as store:
            for number in range(40):
                await store.append(TP, batch_of(b"%04d" % number, pid=1, epoch=0, sequence=number, transactional=True))
                if number % 4 == 3:
                    await store.append_marker(TP, 1, 0, commit=number % 8 == 3)

    run(main())
    return tmp_path / "data"


def test_a_healthy_directory_has_nothing_wrong_and_is_left_alone(directory: Path) -> None:
    def content() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != ".lock"
        }

    before = content()
    assert check(directory, code=0) == []
    assert "nothing was wrong" in invoke("repair", directory, code=0).stderr
    assert content() == before


def damage(directory: Path, what: str) -> Path:
    """Do one kind of harm; returns the file that must be named."""
    second = log_files(directory)[1]
    stem = second.with_suffix("")
    if what == "a flipped byte":
        content = bytearray(second.read_bytes())
        content[-3] ^= 1
        second.write_bytes(content)
        return second
    if what == "a cut segment":
        os.truncate(second, second.stat().st_size // 2)
        return second
    if what == "a missing segment":
        second.unlink()
        return log_files(directory)[0]
    if what in (".index", ".timeindex", ".txnindex"):
        path = stem.with_suffix(what)
        content = bytearray(path.read_bytes())
        content[9] ^= 1
        path.write_bytes(content)
        return path
    if what == "a snapshot":
        path = max((directory / "t-0").glob("*.snapshot"))
        path.write_bytes(path.read_bytes()[:-1])
        return path
    if what == "the checkpoint":
        (directory / "checkpoint.json").write_bytes(b"{")
        return directory / "checkpoint.json"
    assert what == "no topology"
    shutil.rmtree(directory / "__topology-0")
    return directory / "__topology-0"


KINDS = (
    "a flipped byte",
    "a cut segment",
    "a missing segment",
    ".index",
    ".timeindex",
    ".txnindex",
    "a snapshot",
    "the checkpoint",
    "no topology",
)


@pytest.mark.parametrize("what", KINDS)
def test_what_is_wrong_is_named_and_repaired(directory: Path, what: str) -> None:
    async def served() -> list[bytes | None]:
        async with opened(directory) as store:
            return values(await records_of(store, committed=True))

    named = damage(directory, what)
    found = check(directory, code=1)
    assert str(named) in [finding["path"] for finding in found]
    result = invoke("repair", directory, code=0)
    assert str(named) in result.stdout
    assert check(directory, code=0) == []
    everything = [b"%04d" % number for number in range(40) if number % 8 < 4]
    whole = asyncio.run(served())
    if what in ("a flipped byte", "a cut segment", "a missing segment"):
        assert whole == sorted(whole, key=lambda value: value or b"")
        assert set(whole) < set(everything)
        assert len(whole) > 10
    else:
        assert whole == everything


def test_a_directory_that_is_in_use_is_refused(directory: Path) -> None:
    async def main() -> None:
        async with opened(directory):
            for command in ("check", "repair"):
                assert "in use by the process" in invoke(command, directory, code=1).stderr

    run(main())


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    assert "is no data directory" in invoke("check", tmp_path, code=1).stderr
