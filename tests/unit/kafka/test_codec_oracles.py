"""Two independent implementations read what we write, and write the same bytes back.

`kio` aborts the interpreter on some malformed input, so the oracles are fed only our own encodings.
"""

from __future__ import annotations

import io
import pkgutil
from functools import cache
from importlib import import_module
from random import Random
from typing import Any

import kafka.protocol
import pytest
from kio.serial import entity_reader, entity_writer

from tests.unit.kafka.message_samples import Case, Values, cases
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsResponse

SAMPLES_PER_CASE = 12

KIO_HAS_NOT = {
    **dict.fromkeys(("CreateAcls", "DeleteAcls", "DeleteTopics", "DescribeAcls", "DescribeConfigs"), 0),
    **dict.fromkeys(("DescribeLogDirs", "ListOffsets", "OffsetFetch", "WriteTxnMarkers"), 0),
    **dict.fromkeys(("CreateTopics", "OffsetCommit", "OffsetForLeaderEpoch"), 1),
    "Produce": 2,
    "Fetch": 3,
}
"""The last version, of those that Kafka 4 removed, that kio lacks."""

KAFKA_PYTHON_HAS_NOT = (
    *("ConsumerGroup", "ConsumerProtocol", "GetTelemetry", "PushTelemetry"),
    *("Share", "DescribeShare", "AlterShare", "DeleteShare"),
)


def api_name(case: Case) -> str:
    return case.message.removesuffix("Request").removesuffix("Response")


def kio_cases() -> list[Case]:
    return [case for case in cases() if case.version > KIO_HAS_NOT.get(api_name(case), -1)]


def kafka_python_cases() -> list[Case]:
    return [case for case in cases() if not case.message.startswith(KAFKA_PYTHON_HAS_NOT)]


def kio_type(case: Case) -> Any:
    if case.key is None:
        words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in case.message)
        folder, side = words.lstrip("_"), "data"
    else:
        folder, side = case.module, "request" if case.message.endswith("Request") else "response"
    return getattr(import_module(f"kio.schema.{folder}.v{case.version}.{side}"), case.message)


@cache
def kafka_python_types() -> dict[str, Any]:
    names = [module.name for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol.")]
    return {
        name: value
        for module in names
        if ".old" not in module
        for name, value in vars(import_module(module)).items()
        if isinstance(value, type) and hasattr(value, "_json") and name.endswith(("Request", "Response"))
    }


@pytest.mark.parametrize("case", kio_cases(), ids=str)
def test_kio_reads_and_writes_the_same_bytes(case: Case) -> None:
    peer = kio_type(case)
    read, write = entity_reader(peer), entity_writer(peer)
    random = Random(str(case))
    for _ in range(SAMPLES_PER_CASE):
        ours = case.encoded(random, Values.SHARED)
        value, size = read(ours, 0)
        assert size == len(ours)
        theirs = io.BytesIO()
        write(theirs, value)
        assert theirs.getvalue() == ours
        decoded, _ = case.type.decode(memoryview(theirs.getvalue()), 0, case.version)
        assert b"".join(decoded.encode(case.version)) == ours


@pytest.mark.parametrize("case", kafka_python_cases(), ids=str)
def test_kafka_python_reads_and_writes_the_same_bytes(case: Case) -> None:
    peer = kafka_python_types()[case.message]
    random = Random(str(case))
    for _ in range(SAMPLES_PER_CASE):
        message = case.sample(random, Values.SHARED)
        if isinstance(message, ApiVersionsResponse):
            # With an error kafka-python expects the form of version 0, whatever version was asked for.
            message.error_code = 0
        ours = b"".join(message.encode(case.version))
        value = peer.decode(ours, version=case.version)
        value._header = None
        theirs = bytes(value.encode(version=case.version))
        assert theirs == ours
        for name in value._struct.fields:
            if hasattr(message, name) and isinstance(getattr(message, name), str | int | bytes | None):
                assert getattr(value, name) == getattr(message, name), name
