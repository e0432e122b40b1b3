"""Streams, as RabbitMQ has them: what a queue of the type `stream` is declared with, and where its consumers begin.

A stream is a topic that nothing is taken off: each consumer reads the log at a place of its own (`stream_reader`), and Kafka
clients read and write the same records. Retention is the topic's:

    x-max-age                          retention.ms: a number and Y, M, D, h, m or s; segments go when all of it is older
    x-max-length-bytes                 retention.bytes
    x-stream-max-segment-size-bytes    segment.bytes

A consumer says where it begins by `x-stream-offset`: `first`, `last` (the last record), `next` (what comes from now on, unless told
otherwise), an offset, a moment, or an age like those above. What lies before the beginning or behind the end means those.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from trunkline.broker.messaging.argument_checks import Arguments
from trunkline.cursors.queue.limits import RETAINED_TOPIC_CONFIG
from trunkline.log.store import LogStore, TopicPartition

STREAM: Final = "stream"
FIRST, LAST, NEXT = "first", "last", "next"
_MAX_DIGITS: Final = 9
_MIN_SEGMENT_BYTES: Final = 1 << 20  # smaller ones would be a file for every few messages
_MAX_SEGMENT_BYTES: Final = (1 << 31) - 1
_DAY_MS: Final = 24 * 3_600_000
_UNITS_MS: Final = {"Y": 365 * _DAY_MS, "M": 30 * _DAY_MS, "D": _DAY_MS, "h": 3_600_000, "m": 60_000, "s": 1_000}


def is_stream(arguments: Arguments) -> bool:
    return arguments.get("x-queue-type") == STREAM


def read_age_ms(text: str) -> int | None:
    """Of `7D`, `12h` …; None if that is no age."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit()) or len(number) > _MAX_DIGITS or unit not in _UNITS_MS:
        return None
    return int(number) * _UNITS_MS[unit]


def topic_config(arguments: Arguments) -> dict[str, str]:
    """The settings of a stream's topic. Without any of its own a stream keeps everything, as in RabbitMQ."""
    config = {**RETAINED_TOPIC_CONFIG, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    age = arguments.get("x-max-age")
    if isinstance(age, str):
        config["retention.ms"] = str(read_age_ms(age) or 0)
        config["segment.ms"] = str(max(read_age_ms(age) or 0, 1_000))
    size = arguments.get("x-max-length-bytes")
    if isinstance(size, int):
        config["retention.bytes"] = str(size)
    segment = arguments.get("x-stream-max-segment-size-bytes")
    if isinstance(segment, int):
        config["segment.bytes"] = str(min(max(segment, _MIN_SEGMENT_BYTES), _MAX_SEGMENT_BYTES))
    return config


def is_place(value: object) -> bool:
    """Whether a consumer can begin there."""
    if isinstance(value, str):
        return value in (FIRST, LAST, NEXT) or read_age_ms(value) is not None
    return isinstance(value, datetime) or (isinstance(value, int) and not isinstance(value, bool))


async def find_place(store: LogStore, tp: TopicPartition, asked: object, now_ms: int) -> int:
    """The offset that a consumer begins at."""
    bounds = store.bounds(tp)
    start, end = bounds.log_start_offset, bounds.high_watermark
    moment_ms: int | None = None
    if isinstance(asked, datetime):
        moment_ms = int(asked.timestamp() * 1000)
    elif isinstance(asked, str):
        if asked == FIRST:
            return start
        if asked == LAST:
            return max(start, end - 1)
        age_ms = read_age_ms(asked)
        moment_ms = None if age_ms is None else now_ms - age_ms
    elif isinstance(asked, int):
        return min(max(asked, start), end)
    if moment_ms is None:
        return end
    found = await store.offset_for_time(tp, moment_ms)
    return end if found is None else max(found.offset, start)
