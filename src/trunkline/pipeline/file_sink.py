"""Parquet files by Spark's file sink, kept so that readers other than Spark see each row once too.

Spark's sink lists the files of each batch in `_spark_metadata`, and Spark reads only what is listed. Others (DuckDB, pandas,
Arrow) read every file in the directory, and a killed driver leaves files that are on no list. So before the query starts,
when nobody writes, those are deleted. Only a batch in the making is visible to such readers before it counts.

Spark passes over batches whose number is on the list already. With a new checkpoint numbers begin anew, and Spark would
silently drop everything up to the old number: that is refused here, as is a directory with files of another origin.

Both need a directory of this machine; with other file systems Spark's own promise holds, and no more.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from trunkline.pipeline.definition import DefinitionError

METADATA: Final = "_spark_metadata"
_PART: Final = re.compile(r"part-\d{5}-[0-9a-f-]{36}.*\.parquet")


def prepare(path: str, *, new_checkpoint: bool) -> int:
    """Check and tidy the directory of a sink that is about to start; how many files were deleted."""
    if urlsplit(path).scheme not in {"", "file"}:
        return 0
    directory = Path(unquote(urlsplit(path).path) if path.startswith("file:") else path)
    if not directory.is_dir():
        return 0
    files = [item for item in directory.rglob("*.parquet") if METADATA not in item.parts]
    if new_checkpoint:
        if _batches(directory / METADATA):
            raise DefinitionError(
                f"{path} was written by another run of a pipeline whose checkpoint is not here: "
                "choose another path, or remove the directory to write it anew"
            )
        if files:
            raise DefinitionError(f"{path} has files that this pipeline did not write: choose an empty directory")
        return 0
    listed = _listed(directory / METADATA)
    left = [item for item in files if item.resolve() not in listed and _PART.fullmatch(item.name)]
    for item in left:
        item.unlink()
        item.with_name(f".{item.name}.crc").unlink(missing_ok=True)
    return len(left)


def _listed(metadata: Path) -> set[Path]:
    """The files of all batches: those since the last compaction, and what it gathered."""
    batches = _batches(metadata)
    compacted = max((number for number, item in batches.items() if item.suffix), default=-1)
    found: set[Path] = set()
    for batch, item in batches.items():
        if batch >= compacted:
            for line in item.read_text("utf-8").splitlines()[1:]:
                entry = json.loads(line)
                found.add(Path(unquote(urlsplit(entry["path"]).path)).resolve())
    return found


def _batches(metadata: Path) -> dict[int, Path]:
    """The list of each batch, the compacted one where there are two. None of a query that ended before its first batch."""
    batches: dict[int, Path] = {}
    for item in metadata.glob("*") if metadata.is_dir() else ():
        number, _, suffix = item.name.partition(".")
        if number.isdecimal() and suffix in {"", "compact"} and (suffix or int(number) not in batches):
            batches[int(number)] = item
    return batches
