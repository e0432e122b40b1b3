"""`trunkline log`: look into the files of a log, check them, repair them.

`dump` works with or without a broker running. A segment is read one batch at a time and each batch is printed as it is read,
so that a file of any size can be looked at. A batch whose checksum is wrong is shown and reading goes on; bytes that are no
batch end it. Both are named with their position at the end, with exit code 1.

`check` and `repair` take the whole data directory of a stopped broker, and hold its lock. `check` changes nothing and exits
with 1 when something is wrong. `repair` starts the store on the directory in its thorough manner, which mends every file as a
start mends what it meets, and closes it again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.format import bytes_as_json, iso_time
from trunkline.cli.options import json_option
from trunkline.cli.output import Json, print_json, print_table, remark
from trunkline.log.batch import BatchHeader, Record, check_crc, iter_file, iter_records
from trunkline.log.errors import CorruptBatch, DataDirectoryInUse, StorageFailure

if TYPE_CHECKING:
    from trunkline.log.embedded.inspection import Finding

_COLUMNS = (
    ("POSITION", 12),
    ("OFFSETS", 21),
    ("COUNT", 7),
    ("CODEC", 6),
    ("SIZE", 9),
    ("PRODUCER", 20),
    ("CRC", 4),
    ("MAX_TIME", 29),
    ("KIND", 0),
)


@click.group
def log() -> None:
    """Look into the files of a log; check and repair them."""


@log.command
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option("-r", "--records", is_flag=True, help="Also the records of each batch.")
@json_option
def dump(files: tuple[Path, ...], records: bool, as_json: bool) -> None:
    """Print the batches, and the records, of segment files (*.log).

    Columns: position in the file, offsets, records, codec, bytes, producer id/epoch/sequence, checksum, greatest
    timestamp, kind. With --json, one object per batch and line.

    \b
    trunkline log dump trunkline-data/orders-0/00000000000000000000.log
    trunkline log dump --records --json trunkline-data/orders-0/*.log
    """
    faults: list[str] = []
    for file in files:
        if not as_json:
            click.echo(click.style(str(file), bold=True))
            click.echo(_row([name for name, _ in _COLUMNS]))
        try:
            _dump(file, faults, records=records, as_json=as_json)
        except CorruptBatch as error:
            faults.append(str(error))
    if faults:
        for fault in faults[:-1]:
            CommandError(fault).show()
        raise CommandError(faults[-1], "a broker serves the rest; `trunkline log check` looks through all files")


_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


@log.command
@click.argument("directory", type=_DIRECTORY)
@json_option
def check(directory: Path, as_json: bool) -> None:
    """Read every file of a stopped broker's data directory and say what is wrong.

    Exit code 1 if anything is. Nothing is changed.

    \b
    trunkline log check trunkline-data
    """
    with _locked(directory):
        findings = _inspected(directory)
    _print_findings(findings, as_json=as_json)
    if findings:
        raise CommandError(
            f"{_count(findings)} in {directory}", "`trunkline log repair` sets damage aside and makes the rest whole"
        )
    remark(f"{directory}: nothing is wrong")


@log.command
@click.argument("directory", type=_DIRECTORY)
@json_option
def repair(directory: Path, as_json: bool) -> None:
    """Set aside what is damaged in a stopped broker's data directory, and make the rest whole.

    Nothing is deleted: what cannot be read is kept in files that end in .damaged, beside the log that it was cut out of. Indexes
    are built anew. Settings of topics that are lost become ones that delete nothing. Exit code 1 if something is left.

    \b
    trunkline log repair trunkline-data
    """
    with _locked(directory):
        findings = _inspected(directory)
        before = _set_aside(directory)
    left: list[Finding] = []
    if findings:
        _mend(directory)
        with _locked(directory):
            left = _inspected(directory)
    _print_findings(findings, as_json=as_json)
    for path in sorted(_set_aside(directory) - before):
        remark(f"kept: {path}")
    if left:
        raise CommandError(f"{_count(left)} left in {directory}: {left[0].path}: {left[0].what}")
    remark(f"{directory}: {_count(findings)} repaired" if findings else f"{directory}: nothing was wrong")


def _count(findings: Sequence[Finding]) -> str:
    return f"{len(findings)} fault{'' if len(findings) == 1 else 's'}"


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock. Where nothing can be written nobody else runs either."""
    from trunkline.log.embedded.lock import DirectoryLock

    if not any(directory.glob("*-*/*.log")) and not (directory / "checkpoint.json").exists():
        raise CommandError(f"{directory} is no data directory: there is no log in it")
    lock = DirectoryLock(str(directory))
    try:
        lock.acquire()
    except DataDirectoryInUse as error:
        raise CommandError(str(error), "stop the broker first") from None
    except StorageFailure:
        pass
    try:
        yield
    finally:
        lock.release()


def _inspected(directory: Path) -> list[Finding]:
    from trunkline.log.embedded.inspection import inspect, log_bytes

    try:
        with click.progressbar(length=log_bytes(str(directory)), label="checking", file=sys.stderr) as bar:
            return list(inspect(str(directory), bar.update))
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror}") from None


def _mend(directory: Path) -> None:
    from trunkline.log.embedded.store import EmbeddedStore

    async def start_and_close(bar: Callable[[int], None]) -> None:
        store = EmbeddedStore(directory, thorough=lambda partition: bar(partition.size_bytes))
        await store.start()
        await store.close()

    from trunkline.log.embedded.inspection import log_bytes

    try:
        with click.progressbar(length=log_bytes(str(directory)), label="repairing", file=sys.stderr) as bar:
            asyncio.run(start_and_close(bar.update))
    except StorageFailure as error:
        raise CommandError(str(error)) from None


def _set_aside(directory: Path) -> set[Path]:
    return {*directory.glob("*/*.damaged"), *directory.glob("*.damaged")}


def _print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json([finding._asdict() for finding in findings])
    elif findings:
        print_table(("file", "position", "what is wrong"), findings)


def _dump(file: Path, faults: list[str], *, records: bool, as_json: bool) -> None:
    for position, header, batch in iter_file(file):
        intact = True
        try:
            check_crc(batch)
        except CorruptBatch as error:
            intact = False
            faults.append(f"{file} at {position}: {error}")
        found: list[Record] = []
        if records and intact:
            try:
                found = list(iter_records(batch))
            except CorruptBatch as error:
                faults.append(f"{file} at {position}: {error}")
        if as_json:
            described = _batch_as_json(file, position, header, intact)
            if records:
                described["records"] = [_record_as_json(record) for record in found]
            click.echo(json.dumps(described, ensure_ascii=False))
        else:
            click.echo(_row(_batch_cells(position, header, intact)))
            for record in found:
                click.echo(_record_line(record))


def _row(cells: list[str]) -> str:
    return "  ".join(cell.ljust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)).rstrip()


def _kind(header: BatchHeader) -> str:
    words = [
        word
        for word, holds in (
            ("transactional", header.transactional),
            ("control", header.control),
            ("log-append-time", header.log_append_time),
        )
        if holds
    ]
    return ",".join(words) or "data"


def _batch_cells(position: int, header: BatchHeader, intact: bool) -> list[str]:
    producer = "-"
    if header.producer_id >= 0:
        producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
    return [
        str(position),
        f"{header.base_offset}..{header.last_offset}",
        str(header.record_count),
        header.compression,
        str(header.size_bytes),
        producer,
        "ok" if intact else "BAD",
        iso_time(header.max_timestamp_ms) or "-",
        _kind(header),
    ]


def _batch_as_json(file: Path, position: int, header: BatchHeader, intact: bool) -> dict[str, Json]:
    return {
        "file": str(file),
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "codec": header.compression,
        "size_bytes": header.size_bytes,
        "crc_ok": intact,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "leader_epoch": header.leader_epoch,
        "transactional": header.transactional,
        "control": header.control,
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "timestamp_type": "LogAppendTime" if header.log_append_time else "CreateTime",
    }


def _record_as_json(record: Record) -> Json:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": bytes_as_json(record.key),
        "value": bytes_as_json(record.value),
        "headers": [[name, bytes_as_json(value)] for name, value in record.headers],
    }


def _record_line(record: Record) -> str:
    headers = " ".join(f"{name}={_printable(value)}" for name, value in record.headers)
    return (
        f"    {record.offset}  {iso_time(record.timestamp_ms) or '-'}  {_printable(record.key)}: "
        f"{_printable(record.value)}{'  [' + headers + ']' if headers else ''}"
    )


def _printable(data: bytes | None) -> str:
    """Text on one line, whatever the bytes are."""
    if data is None:
        return "null"
    text = data.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
