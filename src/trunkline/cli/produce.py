"""`trunkline produce`: each line of the input becomes a record.

Lines are sent in batches while more input waits, and at once when it pauses, so that it suits both a file and a person
typing. Lines are bytes: nothing is decoded, only the line feed is cut off. Limit: `MAX_LINE_BYTES`.

Ctrl-C and SIGTERM end it with exit code 130 or 143, after it has said how many records the broker has.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.interruption import Interrupted, Interruption
from trunkline.cli.options import client_options, json_option, parse_pairs
from trunkline.cli.output import print_json, remark
from trunkline.client import Client
from trunkline.client.errors import ClientError
from trunkline.client.producer import Producer
from trunkline.log.compression import CODEC_NAMES

MAX_LINE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_ACKS = {"0": 0, "1": 1, "all": -1}


class Chunks(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class Progress(Protocol):
    def __call__(self, read_bytes: int, records: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes key, value and headers."""

    key_separator: bytes | None = None
    key: bytes | None = None
    null_value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def split(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        key, value = self.key, line
        if self.key_separator is not None:
            head, found, value = line.partition(self.key_separator)
            if not found:
                raise CommandError(
                    f"line {number} has no {self.key_separator.decode(errors='replace')!r} after a key",
                    "the lines before it were sent; write KEY, the separator, VALUE",
                )
            key = head
        return key, None if self.null_value is not None and value == self.null_value else value


@click.command
@click.argument("topic")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Read lines from a file, with a progress bar.  [default: stdin]",
)
@click.option("-k", "--key", metavar="TEXT", help="The key of every record.")
@click.option("-K", "--key-separator", metavar="TEXT", help="What separates key and value on each line; \\t is a tab.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_pairs,
    help="A header for every record; may be repeated.",
)
@click.option("--null-value", metavar="TEXT", help="A value that stands for null (a tombstone).")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Send everything to this partition.")
@click.option(
    "--acks",
    type=click.Choice(list(_ACKS)),
    default="all",
    show_default=True,
    help="What must have happened before a record counts as sent.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(CODEC_NAMES),
    default="none",
    show_default=True,
    help="Compression of the batches.",
)
@json_option
@client_options
def produce(
    client: Client,
    *,
    topic: str,
    path: Path | None,
    key: str | None,
    key_separator: str | None,
    headers: list[tuple[str, str]],
    null_value: str | None,
    partition: int | None,
    acks: str,
    compression: str,
    as_json: bool,
) -> None:
    """Send each line of stdin, or of a file, as a record.

    \b
    echo hello | trunkline produce greetings
    printf 'alice\\t42\\nbob\\t17\\n' | trunkline produce scores --key-separator '\\t'
    trunkline produce events --file events.jsonl --compression zstd --header source=import
    """
    if key_separator == "":
        raise click.BadParameter("it is empty", param_hint="--key-separator")
    if key is not None and key_separator is not None:
        raise click.UsageError("give either --key or --key-separator")
    line_format = LineFormat(
        key_separator.replace("\\t", "\t").encode() if key_separator else None,
        key.encode() if key is not None else None,
        null_value.encode() if null_value is not None else None,
        tuple((name, value.encode()) for name, value in headers),
    )
    producer = Producer(client, topic, acks=_ACKS[acks], compression=compression)
    begun = time.monotonic()
    interrupted: Interrupted | None = None
    try:
        with _source(path, show=not as_json) as (source, advance), Interruption() as interruption:
            send_lines(source, producer, line_format, partition, advance, interruption)
            producer.flush()
    except Interrupted as error:
        interrupted = error
    except ClientError:
        if producer.sent_records:
            remark(_told(producer, "before the error"))
        raise
    seconds = time.monotonic() - begun
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": producer.sent_records,
                "bytes": producer.sent_bytes,
                "seconds": round(seconds, 3),
                "last_offsets": {str(at): offset for at, offset in sorted(producer.last_offsets.items())},
                "complete": interrupted is None,
            }
        )
    else:
        remark(_told(producer, "" if interrupted is None else "before the interruption"))
    if interrupted is not None:
        raise click.exceptions.Exit(interrupted.exit_code)


def _told(producer: Producer, when: str) -> str:
    count = producer.sent_records
    records = f"{count} record{'' if count == 1 else 's'}"
    if not when:
        return f"{records} sent to {producer.topic}"
    return f"{records} to {producer.topic} {'acknowledged' if producer.acks else 'sent'} {when}"


def send_lines(
    source: Chunks,
    producer: Producer,
    line_format: LineFormat,
    partition: int | None,
    advance: Progress,
    interruption: Interruption | None = None,
) -> None:
    """Send every line; what was complete before an error or an interruption is sent too."""
    number = 0
    try:
        for lines, size in _lines(source, interruption or Interruption()):
            for line in lines:
                number += 1
                key, value = line_format.split(line, number)
                producer.send(key, value, line_format.headers, partition=partition)
            if size < _CHUNK_BYTES:
                producer.flush()
            advance(size, len(lines))
    except (CommandError, Interrupted):
        producer.flush()
        raise


def _lines(source: Chunks, interruption: Interruption) -> Iterator[tuple[list[bytes], int]]:
    """The lines that each read completes, with the size of that read. The last line needs no line feed."""
    pending = b""
    while True:
        with interruption.waiting():
            chunk = source.read1(_CHUNK_BYTES)
        if not chunk:
            break
        *lines, pending = (pending + chunk).split(b"\n")
        if len(pending) > MAX_LINE_BYTES:
            raise CommandError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        yield lines, len(chunk)
    if pending:
        yield [pending], 0


@contextlib.contextmanager
def _source(path: Path | None, *, show: bool) -> Iterator[tuple[Chunks, Progress]]:
    if path is None:
        yield cast(Chunks, sys.stdin.buffer), _no_progress
        return
    with path.open("rb") as file:
        if not show:
            yield file, _no_progress
            return
        with _progress_bar(file, path) as advance:
            yield file, advance


def _no_progress(read_bytes: int, records: int) -> None:
    return None


@contextlib.contextmanager
def _progress_bar(file: BinaryIO, path: Path) -> Iterator[Progress]:
    """MB/s and records/s on stderr; nothing when that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[rate]} records/s"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(path.name, total=path.stat().st_size, rate="-")
        begun = time.monotonic()
        total = 0

        def advance(read_bytes: int, records: int) -> None:
            nonlocal total
            total += records
            elapsed = max(time.monotonic() - begun, 1e-6)
            bar.update(task, advance=read_bytes, rate=f"{total / elapsed:,.0f}")

        yield advance
