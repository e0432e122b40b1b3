"""Frames and headers: what surrounds a message on the socket."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.protocols.kafka.codec import (
    DecodeError,
    FrameAssembler,
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from trunkline.protocols.kafka.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from trunkline.protocols.kafka.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataResponse


def frame_of(buffers: list[bytes | bytearray | memoryview]) -> memoryview:
    joined = b"".join(buffers)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4
    return memoryview(joined)[4:]


@pytest.mark.parametrize("version", [1, 8, 9, 13])
@pytest.mark.parametrize("client_id", [None, "", "reader-7"])
def test_a_request_is_read_back_with_its_header(version: int, client_id: str | None) -> None:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=True)
    header, decoded = decode_request(frame_of(encode_request(request, version, 41, client_id)))
    assert header == RequestHeader(3, version, 41, client_id)
    assert decoded == request


@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_a_response_is_read_back(version: int) -> None:
    frame = frame_of(encode_response(3, version, 99, MetadataResponse()))
    assert decode_response(MetadataResponse, frame, version, 99) == MetadataResponse()
    with pytest.raises(DecodeError, match="where 98 was due"):
        decode_response(MetadataResponse, frame, version, 98)


def test_a_body_that_is_encoded_already_gives_the_same_frame() -> None:
    response = MetadataResponse(cluster_id="c", controller_id=1)
    for version in (0, 9, 13):
        assert b"".join(encode_response(3, version, 5, response.encode(version))) == b"".join(
            encode_response(3, version, 5, response)
        )


@pytest.mark.parametrize("version", range(5))
def test_api_versions_answers_with_the_plain_header(version: int) -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=0, min_version=0, max_version=13)])
    frame = frame_of(encode_response(18, version, 7, response))
    assert bytes(frame[:4]) == b"\x00\x00\x00\x07"
    assert ApiVersionsResponse.decode(frame, 4, version)[0] == response


@pytest.mark.parametrize(("key", "version"), [(18, 77), (999, 0), (-1, 3), (3, -1), (3, 14)])
def test_an_unknown_request_still_yields_what_an_answer_needs(key: int, version: int) -> None:
    head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    frame = memoryview(head + (1234).to_bytes(4, "big") + b"\xff\xf0whatever")
    header, at = decode_request_header(frame)
    assert (header, at) == (RequestHeader(key, version, 1234, None), 8)
    with pytest.raises(DecodeError, match="unknown"):
        decode_request(frame)


def test_tags_in_a_flexible_request_header_are_skipped() -> None:
    frame = bytes(frame_of(encode_request(ApiVersionsRequest(client_software_name="x"), 3, 1, "me")))
    assert frame[12] == 0
    tagged = frame[:12] + b"\x01\x00\x03abc" + frame[13:]
    header, request = decode_request(memoryview(tagged))
    assert header.client_id == "me"
    assert request == ApiVersionsRequest(client_software_name="x")


@pytest.mark.parametrize("size", range(10))
def test_a_request_header_that_is_cut_is_refused(size: int) -> None:
    frame = bytes(frame_of(encode_request(MetadataRequest(), 9, 1, "me")))
    with pytest.raises(DecodeError):
        decode_request_header(memoryview(frame)[:size])


def test_fetched_records_leave_as_the_buffer_that_came_from_the_log() -> None:
    records = memoryview(b"r" * 50_000)
    response = FetchResponse(
        responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(records=records)] * 2)]
    )
    buffers = encode_response(1, 12, 3, response)
    assert sum(part is records for part in buffers) == 2
    decoded = decode_response(FetchResponse, frame_of(buffers), 12, 3)
    assert decoded.responses[0].partitions[1].records == records


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(bodies=st.lists(st.binary(max_size=30), max_size=6), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_frames_are_the_same_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    assembler = FrameAssembler()
    frames: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        frames += map(bytes, assembler.feed(stream[at : at + size]))
        at += size
        turn += 1
    assert frames == bodies
    assert assembler.pending_bytes == 0


@pytest.mark.parametrize("size", [-1, 101, 0x7FFFFFFF])
def test_a_frame_size_out_of_bounds_fails_the_stream_for_good(size: int) -> None:
    assembler = FrameAssembler(max_frame_bytes=100)
    assert [bytes(frame) for frame in assembler.feed(b"\x00\x00\x00\x01a")] == [b"a"]
    with pytest.raises(DecodeError, match="at most 100"):
        assembler.feed(size.to_bytes(4, "big", signed=True))
    assert assembler.pending_bytes == 0
    with pytest.raises(DecodeError, match="already failed"):
        assembler.feed(b"\x00\x00\x00\x01a")
