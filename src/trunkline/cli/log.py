"""`trunkline log`: look into the files of a log, with or without a broker running.

A segment is read one batch at a time and each batch is printed as it is read, so that a file of any size can be looked
at. A batch whose checksum is wrong is shown and reading goes on; bytes that are no batch end it. Both are named with
their position at the end, with exit code 1.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.format import bytes_as_json, iso_time
from trunkline.cli.options import json_option
from trunkline.cli.output import Json
from trunkline.log.batch import BatchHeader, Record, check_crc, iter_file, iter_records
from trunkline.log.errors import CorruptBatch

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
    """Look into segment files."""


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
        raise CommandError(faults[-1], "a broker truncates a torn end when it starts; damage before the end stays")


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
