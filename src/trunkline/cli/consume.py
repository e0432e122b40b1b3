"""`trunkline consume`: print the records of a topic.

Without a group it reads partitions from where it is told, and commits nothing. With one it is a member of that group:
the broker gives it partitions, and it commits what it has printed. Ctrl-C and SIGTERM end it cleanly with exit code 0.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.format import FormatError, Renderer, renderer
from trunkline.cli.options import client_options, json_option, parse_since
from trunkline.cli.output import reader_gone, remark
from trunkline.client import Client
from trunkline.client.member import Member
from trunkline.client.reader import Reader, ReadRecord
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.store import TopicPartition

POLL_MS = 500


class Source(Protocol):
    """Where records come from: a Reader or a Member."""

    def poll(self, max_wait_ms: int = ...) -> Iterator[ReadRecord]: ...


@click.command
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Start at the first record.")
@click.option(
    "-o",
    "--offset",
    metavar="N|earliest|latest|-N",
    help="Start at offset N, at an end, or N records before the end.  [default: latest]",
)
@click.option("--since", metavar="SPAN|TIME", help="Start at a time: 10m, 2h, 1d ago, or 2026-01-31T12:00.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; may be repeated.",
)
@click.option("-g", "--group", metavar="NAME", help="Read as a member of this group, and commit what was printed.")
@click.option("-n", "--max", "max_records", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end of the topic.")
@click.option(
    "--timeout",
    "idle_s",
    type=click.FloatRange(min=0.001),
    metavar="SECONDS",
    help="Stop when no record has come for this long.",
)
@click.option("--committed", is_flag=True, help="Only records of committed transactions (read_committed).")
@click.option(
    "-f",
    "--format",
    "template",
    default="%v",
    show_default=True,
    help="What to print per record: %t topic, %p partition, %o offset, %k key, %v value, %h headers, %T timestamp, or json.",
)
@click.option("--null", default="null", show_default=True, metavar="TEXT", help="What stands for a null key or value.")
@click.option("--no-newline", is_flag=True, help="Print nothing after each record.")
@json_option
@client_options
def consume(
    client: Client,
    *,
    topic: str,
    from_beginning: bool,
    offset: str | None,
    since: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_records: int | None,
    exit_at_end: bool,
    idle_s: float | None,
    committed: bool,
    template: str,
    null: str,
    no_newline: bool,
    as_json: bool,
) -> None:
    """Print the records of a topic.

    \b
    trunkline consume greetings --from-beginning
    trunkline consume orders --offset -10 --format '%p:%o %k=%v'
    trunkline consume orders --since 10m --json --exit-at-end
    trunkline consume orders --group billing --max 100
    """
    if sum([from_beginning, offset is not None, since is not None]) > 1:
        raise click.UsageError("give only one of --from-beginning, --offset and --since")
    start = Start.parse("earliest" if from_beginning else offset, since, client.clock.wall_ms())
    try:
        render = renderer("json" if as_json else template, null=null.encode(), end=b"" if no_newline else b"\n")
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    if group is not None and (partitions or start.relative is not None):
        raise click.UsageError("--group reads what the broker assigns: leave out --partition and a number for --offset")
    chosen = _partitions(client, topic, partitions)
    printer = Printer(render, sys.stdout.buffer, max_records)
    with _ended_by_signals():
        if group is None:
            positions = start.resolve(Topics(client), chosen, committed)
            ends = Topics(client).offsets(chosen, LATEST, committed=committed) if exit_at_end else None
            _read(Reader(client, positions, committed=committed), printer, Patience(client, idle_s), ends)
        else:
            with Member(client, group, [topic], start_at=start.timestamp_ms, committed=committed) as member:
                _follow(member, printer, Patience(client, idle_s), exit_at_end)
    if sys.stderr.isatty():
        remark(f"{printer.count} record{'' if printer.count == 1 else 's'}")


class Start:
    """Where reading begins: a time (or an end) as ListOffsets takes it, or an offset counted from an end."""

    def __init__(self, timestamp_ms: int = LATEST, relative: int | None = None) -> None:
        self.timestamp_ms = timestamp_ms
        self.relative = relative
        """An offset if it is 0 or more, else that many records before the end."""

    @classmethod
    def parse(cls, offset: str | None, since: str | None, now_ms: int) -> Start:
        if since is not None:
            return cls(parse_since(since, now_ms))
        if offset is None or offset == "latest":
            return cls(LATEST)
        if offset == "earliest":
            return cls(EARLIEST)
        try:
            return cls(relative=int(offset))
        except ValueError:
            raise click.BadParameter(
                f"{offset!r} is neither a number nor earliest or latest", param_hint="--offset"
            ) from None

    def resolve(self, topics: Topics, partitions: list[TopicPartition], committed: bool) -> dict[TopicPartition, int]:
        if self.relative is None:
            return topics.offsets_since(partitions, self.timestamp_ms)
        if self.relative >= 0:
            return dict.fromkeys(partitions, self.relative)
        starts = topics.offsets(partitions, EARLIEST)
        ends = topics.offsets(partitions, LATEST, committed=committed)
        return {tp: max(starts[tp], ends[tp] + self.relative) for tp in partitions}


class Printer:
    """Writes records and counts them; `full` when as many as wanted are out."""

    def __init__(self, render: Renderer, stream: BinaryIO, max_records: int | None) -> None:
        self.render = render
        self.stream = stream
        self.max_records = max_records
        self.count = 0

    @property
    def full(self) -> bool:
        return self.max_records is not None and self.count >= self.max_records

    def put(self, item: ReadRecord) -> None:
        self.stream.write(self.render(item))
        self.count += 1

    def round(self, source: Source, max_wait_ms: int) -> ReadRecord | None:
        """Print one round of records; the last one when that made it full."""
        try:
            for item in source.poll(max_wait_ms):
                self.put(item)
                if self.full:
                    return item
        finally:
            self.stream.flush()
        return None


class Patience:
    """Says when no record has come for too long, or nobody reads what is printed any more."""

    def __init__(self, client: Client, idle_s: float | None) -> None:
        self.client = client
        self.idle_ms = None if idle_s is None else idle_s * 1000
        self.seen = 0
        self.since_ms = client.clock.monotonic_ms()

    def wait_ms(self) -> int:
        return POLL_MS if self.idle_ms is None else max(1, int(min(POLL_MS, self.idle_ms)))

    def over(self, count: int) -> bool:
        if reader_gone():
            return True
        if count != self.seen:
            self.seen, self.since_ms = count, self.client.clock.monotonic_ms()
        return self.idle_ms is not None and self.client.clock.monotonic_ms() - self.since_ms >= self.idle_ms


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: it ends the reading, and what follows is the same as at any other end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _partitions(client: Client, topic: str, wanted: tuple[int, ...]) -> list[TopicPartition]:
    existing = [item.index for item in client.topic(topic).partitions]
    for index in wanted:
        if index not in existing:
            raise CommandError(f"topic {topic} has no partition {index}", f"it has 0 to {existing[-1]}")
    return [TopicPartition(topic, index) for index in (wanted or existing)]


def _read(reader: Reader, printer: Printer, patience: Patience, ends: dict[TopicPartition, int] | None) -> None:
    while True:
        if ends is not None:
            # A partition that is read to the end is not asked again, so that the others are not held up.
            for tp in [tp for tp, at in reader.positions.items() if at >= ends[tp]]:
                del reader.positions[tp]
            if not reader.positions:
                return
        printer.round(reader, patience.wait_ms())
        for tp, start in reader.moved.items():
            remark(f"{tp}: older records are gone; reading on from offset {start}")
        reader.moved.clear()
        if printer.full or patience.over(printer.count):
            return


def _follow(member: Member, printer: Printer, patience: Patience, exit_at_end: bool) -> None:
    while True:
        before = printer.count
        last = printer.round(member, patience.wait_ms())
        if last is not None:
            member.mark(last)
            return
        if patience.over(printer.count):
            return
        if exit_at_end and printer.count == before and member.owned:
            ends = Topics(member.client).offsets(member.owned, LATEST, committed=member.reader.committed)
            if all(at >= ends[tp] for tp, at in member.reader.positions.items()):
                return
