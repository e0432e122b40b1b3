"""How records are written on the command line and printed by it."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.consume import Start
from trunkline.cli.errors import CommandError
from trunkline.cli.format import FormatError, renderer
from trunkline.cli.main import cli
from trunkline.cli.options import parse_since
from trunkline.cli.produce import LineFormat, send_lines
from trunkline.client.producer import Producer
from trunkline.client.reader import ReadRecord
from trunkline.client.topics import EARLIEST, LATEST
from trunkline.log.batch import NewRecord, Record, build_batch, build_marker
from trunkline.log.store import TopicPartition

NOW_MS = 1_700_000_000_000


def item(
    key: bytes | None = b"k", value: bytes | None = b"v", headers: list[tuple[str, bytes | None]] | None = None
) -> ReadRecord:
    return ReadRecord(TopicPartition("t", 2), Record(7, NOW_MS, key, value, headers or []))


# -- formats -----------------------------------------------------------------------------------------------------


def test_every_field_of_a_format() -> None:
    record = item(headers=[("a", b"1"), ("b", None)])
    assert renderer("%t %p %o %k=%v %h %T 100%%")(record) == b"t 2 7 k=v a=1,b=null 1700000000000 100%\n"
    assert renderer(r"%k\t%v\n\x00\\", end=b"")(record) == b"k\tv\n\x00\\"
    assert renderer("%k|%v", null=b"NIL")(item(None, None)) == b"NIL|NIL\n"


@given(st.binary(), st.binary())
def test_keys_and_values_are_printed_byte_for_byte(key: bytes, value: bytes) -> None:
    assert renderer("%k%v", end=b"")(item(key, value)) == key + value


@given(st.one_of(st.none(), st.binary()), st.one_of(st.none(), st.binary()))
def test_json_loses_nothing(key: bytes | None, value: bytes | None) -> None:
    def back(found: object) -> bytes | None:
        if isinstance(found, dict):
            return base64.b64decode(found["base64"])
        return None if found is None else str(found).encode()

    line = renderer("json")(item(key, value, [("h", value)]))
    assert line.count(b"\n") == 1
    shown = json.loads(line)
    assert (back(shown["key"]), back(shown["value"])) == (key, value)
    assert [(name, back(content)) for name, content in shown["headers"]] == [("h", value)]
    assert (shown["topic"], shown["partition"], shown["offset"], shown["timestamp_ms"]) == ("t", 2, 7, NOW_MS)
    assert datetime.fromisoformat(shown["timestamp"]) == datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.mark.parametrize("template", ["%z", "%", "\\q", "\\x1", "abc\\"])
def test_a_format_with_an_unknown_field_is_refused(template: str) -> None:
    with pytest.raises(FormatError):
        renderer(template)


# -- times and offsets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("10m", 600_000),
        ("2h30m", 9_000_000),
        ("1.5s", 1_500),
        ("500ms", 500),
        ("1d", 86_400_000),
        ("2W", 1_209_600_000),
    ],
)
def test_a_span_is_counted_back_from_now(text: str, ago_ms: int) -> None:
    assert parse_since(text, NOW_MS) == NOW_MS - ago_ms


def test_a_time_may_name_its_zone() -> None:
    assert parse_since("2023-11-14T22:13:20Z", NOW_MS) == NOW_MS
    assert parse_since("2023-11-15T00:13:20+02:00", NOW_MS) == NOW_MS


@pytest.mark.parametrize("text", ["", "soon", "10", "10 m x", "-5m", "2023-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_since(text, NOW_MS)


def test_where_reading_starts() -> None:
    assert Start.parse(None, None, NOW_MS).timestamp_ms == LATEST
    assert Start.parse("earliest", None, NOW_MS).timestamp_ms == EARLIEST
    assert Start.parse("17", None, NOW_MS).relative == 17
    assert Start.parse("-3", None, NOW_MS).relative == -3
    assert Start.parse(None, "1s", NOW_MS).timestamp_ms == NOW_MS - 1000


# -- lines to records --------------------------------------------------------------------------------------------


class Sent(Producer):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.flushed_at: list[int] = []

    def send(self, key: bytes | None, value: bytes | None, *_: object, **__: object) -> None:
        self.records.append((key, value))

    def flush(self) -> None:
        self.flushed_at.append(len(self.records))


class Pieces(io.BytesIO):
    """Gives its content in pieces of these sizes, as a pipe may."""

    def __init__(self, content: bytes, sizes: list[int]) -> None:
        super().__init__(content)
        self.sizes = sizes

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(self.sizes.pop(0) if self.sizes else -1)


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b""))), st.lists(st.integers(1, 20)), st.booleans())
def test_every_line_is_one_record_however_the_input_is_cut(lines: list[bytes], sizes: list[int], ends: bool) -> None:
    content = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    sent = Sent()
    send_lines(Pieces(content, sizes), sent, LineFormat(), None, lambda read_bytes, records: None)
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [value for _, value in sent.records] == expected


def test_what_is_typed_is_sent_at_once() -> None:
    sent = Sent()
    send_lines(Pieces(b"one\ntwo\n", [4, 4]), sent, LineFormat(), None, lambda read_bytes, records: None)
    assert sent.flushed_at == [1, 2]


def test_keys_and_nulls_of_a_line() -> None:
    lines = LineFormat(key_separator=b"::", null_value=b"NULL")
    assert lines.split(b"a::b::c", 1) == (b"a", b"b::c")
    assert lines.split(b"::", 1) == (b"", b"")
    assert lines.split(b"a::NULL", 1) == (b"a", None)
    assert LineFormat(key=b"k").split(b"NULL", 1) == (b"k", b"NULL")


def test_a_line_without_a_key_is_named_and_those_before_it_are_sent() -> None:
    sent = Sent()
    with pytest.raises(CommandError, match="line 2 has no ':'"):
        send_lines(
            io.BytesIO(b"a:1\nb\n"), sent, LineFormat(key_separator=b":"), None, lambda read_bytes, records: None
        )
    assert sent.records == [(b"a", b"1")]
    assert sent.flushed_at == [1]


# -- log dump ----------------------------------------------------------------------------------------------------


def segment(path: Path) -> list[bytes]:
    batches = [
        build_batch([NewRecord(b"k", b"v", [("h", b"\xff")], NOW_MS), NewRecord(None, None, (), NOW_MS + 1)], compression="gzip"),
        build_batch([NewRecord(b"k", b"x", (), NOW_MS)], base_offset=2, producer_id=5, producer_epoch=1, base_sequence=8, transactional=True),
        build_marker(5, 1, commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS, base_offset=3),
    ]  # fmt: skip
    path.write_bytes(b"".join(batches))
    return batches


def test_log_dump_shows_batches_and_records(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    batches = segment(path)
    result = CliRunner().invoke(cli, ["log", "dump", "--json", "--records", str(path)])
    assert result.exit_code == 0, result.output
    first, second, third = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["base_offset"], first["last_offset"], first["count"], first["codec"]) == (0, 1, 2, "gzip")
    assert first["crc_ok"] is True
    assert [(record["offset"], record["key"], record["value"]) for record in first["records"]] == [
        (0, "k", "v"),
        (1, None, None),
    ]
    assert first["records"][0]["headers"] == [["h", {"base64": "/w=="}]]
    assert (second["position"], second["size_bytes"]) == (len(batches[0]), len(batches[1]))
    assert (second["producer_id"], second["producer_epoch"], second["base_sequence"]) == (5, 1, 8)
    assert (second["transactional"], second["control"]) == (True, False)
    assert (third["transactional"], third["control"]) == (True, True)
    plain = CliRunner().invoke(cli, ["log", "dump", "--records", str(path)]).stdout.splitlines()
    assert plain[0] == str(path)
    assert plain[2].split()[:5] == ["0", "0..1", "2", "gzip", str(len(batches[0]))]
    assert "k: v" in plain[3]
    assert "null: null" in plain[4]
    assert plain[5].split()[-1] == "transactional"


def test_log_dump_goes_on_after_a_bad_checksum_and_names_its_position(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    batches = segment(path)
    damaged = bytearray(b"".join(batches))
    damaged[len(batches[0]) + 65] ^= 1
    path.write_bytes(damaged)
    result = CliRunner().invoke(cli, ["log", "dump", "--json", "--records", str(path)])
    assert result.exit_code == 1
    assert [json.loads(line)["crc_ok"] for line in result.stdout.splitlines()] == [True, False, True]
    assert f"error: {path} at {len(batches[0])}: batch checksum" in result.stderr


@pytest.mark.parametrize("keep", [12, 40, 70])
def test_log_dump_says_where_a_torn_end_begins(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "0.log"
    batches = segment(path)
    path.write_bytes(b"".join(batches[:2]) + batches[2][:keep])
    result = CliRunner().invoke(cli, ["log", "dump", "--json", str(path)])
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    assert f"{path} at {len(batches[0]) + len(batches[1])}: " in result.stderr


def test_an_empty_segment_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.touch()
    result = CliRunner().invoke(cli, ["log", "dump", "--json", str(path)])
    assert (result.exit_code, result.output) == (0, "")
