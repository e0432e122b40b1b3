"""Whatever bytes arrive, decoding ends in a message or in DecodeError, and in bounded memory."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.kafka.message_samples import Case, cases
from trunkline.protocols.kafka import wire
from trunkline.protocols.kafka.apis import APIS
from trunkline.protocols.kafka.codec import RequestHeader, decode_request, decode_request_header
from trunkline.protocols.kafka.messages.fetch import FetchRequest
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataResponse
from trunkline.protocols.kafka.messages.produce import ProduceRequest
from trunkline.protocols.kafka.wire import MAX_ELEMENTS, DecodeError

MUTATIONS_PER_CASE = 60
EXTREMES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


def decode_or_refuse(case: Case, data: bytes) -> bool:
    """Whether the bytes were a message; any other exception than DecodeError escapes."""
    try:
        case.type.decode(memoryview(data), 0, case.version)
    except DecodeError:
        return False
    return True


def mutate(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed)) if changed else 0
        action = random.randrange(5)
        if action == 0 and changed:
            changed[at] = random.choice(EXTREMES)
        elif action == 1 and changed:
            changed[at] ^= 1 << random.randrange(8)
        elif action == 2:
            del changed[at:]
        elif action == 3:
            changed[at:at] = random.randbytes(random.randint(1, 6))
        else:
            changed[at : at + 4] = random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x0f"))
    return bytes(changed)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_mutated_messages_are_decoded_or_refused(case: Case) -> None:
    random = Random(f"mutate {case}")
    for _ in range(MUTATIONS_PER_CASE // 6):
        valid = case.encoded(random)
        assert decode_or_refuse(case, valid)
        for _ in range(6):
            decode_or_refuse(case, mutate(valid, random))


@pytest.mark.parametrize("case", cases(), ids=str)
def test_random_bytes_are_decoded_or_refused(case: Case) -> None:
    random = Random(f"bytes {case}")
    for size in (0, 1, 2, 3, 5, 8, 13, 40, 200):
        for _ in range(4):
            decode_or_refuse(case, random.randbytes(size))
        decode_or_refuse(case, bytes(size))
        decode_or_refuse(case, b"\xff" * size)


@pytest.mark.parametrize("case", [case for case in cases() if case.key is not None], ids=str)
def test_every_truncation_is_refused_and_so_are_bytes_after_a_response(case: Case) -> None:
    valid = case.encoded(Random(f"cut {case}"))
    for end in range(0, len(valid), max(1, len(valid) // 50)):
        assert not decode_or_refuse(case, valid[:end])
    # Brokers ignore what follows a request: librdkafka sends three bytes behind Metadata v13.
    assert decode_or_refuse(case, valid + b"\x00") == case.message.endswith("Request")


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(frame=st.binary(max_size=80))
@example(frame=b"")
@example(frame=b"\x00\x03\x00\x09\x00\x00\x00\x01\x00\x01a")
def test_random_frames_are_requests_or_refused(frame: bytes) -> None:
    try:
        header, request = decode_request(memoryview(frame))
    except DecodeError:
        return
    assert header.api_key == request.API_KEY


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(key=st.sampled_from([0, 1, 3, 8, 11, 18, 68]), version=st.integers(0, 17), rest=st.binary(max_size=60))
def test_known_requests_with_random_bodies_are_decoded_or_refused(key: int, version: int, rest: bytes) -> None:
    tags = b"\x00" if key in APIS and APIS[key].is_flexible(version) else b""
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x07\xff\xff" + tags + rest
    assert decode_request_header(memoryview(frame))[0] == RequestHeader(key, version, 7, None)
    try:
        header, request = decode_request(memoryview(frame))
    except DecodeError:
        return
    assert header.api_key == request.API_KEY


@pytest.mark.parametrize(
    ("version", "body", "reason"),
    [
        pytest.param(1, b"\x7f\xff\xff\xff", "array of 2147483647", id="count larger than the frame"),
        pytest.param(1, b"\x00\x00\x00\x03\x00\x00", "array of 3", id="count larger than what remains"),
        pytest.param(1, b"\xff\xff\xff\xfe", "array length", id="negative count"),
        pytest.param(9, b"\xff\xff\xff\xff\x0f\x00", "array of", id="compact count larger than the frame"),
        pytest.param(9, b"\xff\xff\xff\xff\x1f\x00", "varint", id="varint of more than 32 bits"),
        pytest.param(9, b"\x80" * 100_000 + b"\x00", "varint", id="varint that does not end"),
        pytest.param(1, b"\x00\x00\x00\x01\xff\xfe", "string length", id="negative string length"),
        pytest.param(1, b"\x00\x00\x00\x01\xff\xff", "string length", id="null in place of a string"),
        pytest.param(1, b"\x00\x00\x00\x01\x00\x02\xc3\x28", "utf-8", id="text that is not UTF-8"),
        pytest.param(1, b"\x00\x00\x00\x01\x00\x03\xed\xa0\x80", "utf-8", id="text with a surrogate"),
        pytest.param(9, b"\x02\x00" + bytes(5), "may not be null", id="null in place of a compact string"),
        pytest.param(9, bytes(4) + b"\xff\xff\xff\xff\x0f", "tagged fields", id="more tagged fields than bytes"),
        pytest.param(9, bytes(4) + b"\x01\x00\x7f", "tagged field out", id="tagged field beyond the frame"),
    ],
)
def test_malformed_metadata_requests_are_refused(version: int, body: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        MetadataRequest.decode(memoryview(body), 0, version)


def test_a_tagged_field_must_fill_its_size() -> None:
    good = b"".join(FetchRequest(cluster_id="c").encode(12))
    at = good.index(b"\x00\x02\x02c")
    assert FetchRequest.decode(memoryview(good), 0, 12)[0].cluster_id == "c"
    longer = good[:at] + b"\x00\x03\x02cx" + good[at + 4 :]
    with pytest.raises(DecodeError, match="does not fill"):
        FetchRequest.decode(memoryview(longer), 0, 12)


def test_a_string_longer_than_the_format_allows_is_refused_in_both_directions() -> None:
    body = bytearray(b"\x02")
    wire.write_uvarint(body, 40_001)
    body += b"x" * 40_000 + bytes(8)
    with pytest.raises(DecodeError, match="string length"):
        MetadataRequest.decode(memoryview(body), 0, 9)
    with pytest.raises(ValueError, match="exceeds"):
        wire.write_compact_string(bytearray(), "x" * 40_000)


def test_records_longer_than_the_frame_are_refused() -> None:
    head = b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00"
    with pytest.raises(DecodeError, match="bytes length"):
        ProduceRequest.decode(memoryview(head + b"\x7f\xff\xff\xff" + bytes(100)), 0, 0)
    with pytest.raises(DecodeError, match="bytes length"):
        ProduceRequest.decode(memoryview(head + b"\xff\xff\xff\xfe" + bytes(100)), 0, 0)


def test_small_elements_cannot_fill_the_memory() -> None:
    """A frame of two-byte elements may not become an object for each of them."""
    count = 3 * MAX_ELEMENTS
    body = bytearray()
    wire.write_uvarint(body, count + 1)
    body += b"\x01\x00" * count
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="array elements"):
            MetadataRequest.decode(memoryview(body), 0, 9)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_the_limit_on_elements_counts_nested_arrays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline.protocols.kafka.messages import metadata

    monkeypatch.setattr(metadata, "MAX_ELEMENTS", 8)
    partition = metadata.MetadataResponsePartition(replica_nodes=[1, 2, 3])

    def response(partitions: int) -> memoryview:
        topic = metadata.MetadataResponseTopic(name="t", partitions=[partition] * partitions)
        return memoryview(b"".join(MetadataResponse(topics=[topic]).encode(9)))

    # One topic, and four for each partition: itself and its replicas.
    assert len(MetadataResponse.decode(response(1), 0, 9)[0].topics[0].partitions) == 1
    with pytest.raises(DecodeError, match="array elements"):
        MetadataResponse.decode(response(2), 0, 9)
