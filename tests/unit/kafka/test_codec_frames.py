"""Frames and headers: what surrounds a message on the socket."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.protocols.kafka.codec import (
    DecodeError,
    FrameReader,
    RequestHeader,
    SpareBuffers,
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


class Stream:
    """A connection that is read piece by piece into whatever buffer the frame reader asks for."""

    def __init__(self, max_frame_bytes: int = 1 << 20, spares: SpareBuffers | None = None) -> None:
        self.frames: list[bytes] = []
        self.room: memoryview | None = None
        self.most = 1 << 30  # frames that may be taken
        self.all_taken = True
        self.reader = FrameReader(
            max_frame_bytes,
            spares or SpareBuffers(),
            may_take=lambda: len(self.frames) < self.most,
            take=lambda frame: self.frames.append(bytes(frame)),
            read_into=self._read_into,
        )

    def _read_into(self, buffer: memoryview | None) -> None:
        self.room = buffer

    def read(self, data: bytes) -> None:
        while data:
            if self.room is None:
                self.all_taken = self.reader.feed(memoryview(data))
                return
            size = min(len(self.room), len(data))
            self.room[:size] = data[:size]
            self.reader.feed(self.room[:size])
            data = data[size:]


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(bodies=st.lists(st.binary(max_size=30), max_size=6), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_frames_are_the_same_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = framed(*bodies)
    reading = Stream()
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        reading.read(stream[at : at + size])
        at += size
        turn += 1
    assert reading.frames == bodies
    assert reading.reader.held_bytes == 0


@pytest.mark.parametrize("piece", [1_000, 100_000, 262_144])
def test_large_frames_are_read_into_buffers_of_their_own(piece: int) -> None:
    bodies = [b"a" * 300_000, b"b" * 10, b"c" * 900_000, b"d" * 262_141, b"e" * 262_140]
    stream = framed(*bodies)
    reading = Stream()
    for at in range(0, len(stream), piece):
        reading.read(stream[at : at + piece])
    assert reading.frames == bodies
    assert (reading.reader.held_bytes, reading.room) == (0, None)


def test_a_size_alone_sets_little_aside() -> None:
    reading = Stream(max_frame_bytes=100_000_000)
    reading.read((100_000_000).to_bytes(4, "big"))
    assert reading.reader.held_bytes <= 16 * 1024
    reading.read(bytes(20_000))
    assert reading.reader.held_bytes <= 40_000


def test_the_buffer_of_a_large_frame_serves_another() -> None:
    spares = SpareBuffers()
    first, second = Stream(spares=spares), Stream(spares=spares)
    first.read(framed(bytes(300_000)))
    assert spares.take(300_000) is None
    for at in range(0, 300_004, 1_000):
        first.read(framed(bytes(300_000))[at : at + 1_000])
    second.read((300_000).to_bytes(4, "big"))
    assert second.reader.held_bytes >= 300_000, "of the buffer that was there"
    assert spares.take(300_000) is None


def test_frames_that_may_not_be_taken_wait_and_are_handed_over_later() -> None:
    reading = Stream()
    reading.most = 2
    reading.read(framed(b"a", b"b", b"c", b"d") + b"\x00")
    assert (reading.frames, reading.all_taken) == ([b"a", b"b"], False)
    assert reading.reader.held_bytes == 11
    reading.most = 3
    assert not reading.reader.go_on()
    reading.most = 10
    assert reading.reader.go_on()
    assert reading.frames == [b"a", b"b", b"c", b"d"]
    assert reading.reader.held_bytes == 1


def test_what_is_complete_is_not_asked_about() -> None:
    reading = Stream()
    reading.most = 2
    reading.read(framed(b"a", b"b"))
    assert reading.all_taken, "nothing is left that would have to wait"


@pytest.mark.parametrize("size", [-1, 101, 0x7FFFFFFF])
def test_a_frame_size_out_of_bounds_fails_the_stream(size: int) -> None:
    reading = Stream(max_frame_bytes=100)
    reading.read(framed(b"a"))
    assert reading.frames == [b"a"]
    with pytest.raises(DecodeError, match="max_request_bytes is 100"):
        reading.read(size.to_bytes(4, "big", signed=True))
    assert reading.reader.held_bytes == 0
