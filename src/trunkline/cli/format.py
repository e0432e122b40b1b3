"""How `consume` prints a record: a template over its fields, or JSON.

    %t topic   %p partition   %o offset   %k key   %v value   %h headers   %T timestamp (ms)   %% a percent sign
    \\n \\t \\r \\0 \\\\ \\xHH       escapes

Keys and values go out byte for byte. In JSON they are strings where they are UTF-8, else {"base64": "…"}.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

from trunkline.cli.output import Json
from trunkline.client.reader import ReadRecord

_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Renderer = Callable[[ReadRecord], bytes]


class FormatError(ValueError):
    """The template has a field or escape that does not exist."""


def renderer(template: str, *, null: bytes = b"null", end: bytes = b"\n") -> Renderer:
    """What turns a record into the bytes to print. `template` "json" gives one object per line."""
    if template == "json":
        return lambda item: json.dumps(as_json(item), ensure_ascii=False).encode() + b"\n"
    fields: dict[str, Renderer] = {
        "t": lambda item: item.partition.topic.encode(),
        "p": lambda item: b"%d" % item.partition.partition,
        "o": lambda item: b"%d" % item.record.offset,
        "k": lambda item: null if item.record.key is None else item.record.key,
        "v": lambda item: null if item.record.value is None else item.record.value,
        "h": lambda item: _headers(item, null),
        "T": lambda item: b"%d" % item.record.timestamp_ms,
        "%": lambda item: b"%",
    }
    parts = [_part(match, fields) for match in _TOKEN.finditer(template)]
    return lambda item: b"".join([part if isinstance(part, bytes) else part(item) for part in parts]) + end


def _part(match: re.Match[str], fields: dict[str, Renderer]) -> Renderer | bytes:
    field, escape, text, stray = match.groups()
    if text is not None:
        return str(text).encode("utf-8", "surrogateescape")
    if field is not None and field in fields:
        return fields[field]
    if escape is not None and escape[0] == "x" and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape is not None and escape in _ESCAPES:
        return _ESCAPES[escape]
    wrong = f"%{field}" if field is not None else f"\\{escape}" if escape is not None else str(stray)
    raise FormatError(f"{wrong} is not known; use %t %p %o %k %v %h %T %% and \\n \\t \\r \\0 \\xHH \\\\")


def _headers(item: ReadRecord, null: bytes) -> bytes:
    return b",".join([name.encode() + b"=" + (null if value is None else value) for name, value in item.record.headers])


def as_json(item: ReadRecord) -> Json:
    record = item.record
    return {
        "topic": item.partition.topic,
        "partition": item.partition.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp": iso_time(record.timestamp_ms),
        "key": bytes_as_json(record.key),
        "value": bytes_as_json(record.value),
        "headers": [[name, bytes_as_json(value)] for name, value in record.headers],
    }


def bytes_as_json(data: bytes | None) -> Json:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def iso_time(timestamp_ms: int) -> str | None:
    """None for a record without a timestamp, or one that is no date."""
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None
