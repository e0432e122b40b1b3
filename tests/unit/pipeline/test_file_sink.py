"""The directory of Parquet files before a query starts: tidied, or refused where rows would be lost or doubled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trunkline.pipeline.definition import DefinitionError
from trunkline.pipeline.file_sink import METADATA, prepare

UNIQUE = "0123abcd-0000-0000-0000-0123456789ab"


def part(directory: Path, number: int) -> Path:
    path = directory / f"part-{number:05d}-{UNIQUE}-c000.snappy.parquet"
    path.write_bytes(b"PAR1")
    return path


def listed(directory: Path, name: str, *parts: Path) -> None:
    (directory / METADATA).mkdir(exist_ok=True)
    lines = [json.dumps({"path": item.as_uri(), "action": "add"}) for item in parts]
    (directory / METADATA / name).write_text("\n".join(["v1", *lines]))


def test_a_query_that_ended_before_its_first_batch_may_start_again(tmp_path: Path) -> None:
    (tmp_path / METADATA).mkdir()
    assert prepare(str(tmp_path), new_checkpoint=True) == 0


def test_rows_of_another_checkpoint_are_not_mixed_in(tmp_path: Path) -> None:
    listed(tmp_path, "0", part(tmp_path, 0))
    with pytest.raises(DefinitionError, match="written by another run"):
        prepare(str(tmp_path), new_checkpoint=True)
    other = tmp_path / "other"
    other.mkdir()
    part(other, 0)
    with pytest.raises(DefinitionError, match="did not write"):
        prepare(str(other), new_checkpoint=True)


def test_files_on_no_list_are_deleted_and_those_that_a_compaction_gathered_stay(tmp_path: Path) -> None:
    parts = [part(tmp_path, number) for number in range(5)]
    listed(tmp_path, "0", parts[0])
    listed(tmp_path, "1.compact", parts[0], parts[1])
    listed(tmp_path, "1", parts[1])
    listed(tmp_path, "2", parts[2])
    assert prepare(str(tmp_path), new_checkpoint=False) == 2
    assert [item.exists() for item in parts] == [True, True, True, False, False]
