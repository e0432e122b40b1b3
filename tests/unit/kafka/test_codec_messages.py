"""Every declared message in every version survives encoding and decoding, and the checked-in code is current."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.message_samples import DECLARATIONS, Case, cases
from tools.generate_kafka_messages import MESSAGES, generate
from trunkline.protocols.kafka.apis import APIS, load, request_header_version, response_header_version
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsResponse
from trunkline.protocols.kafka.messages.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
from trunkline.protocols.kafka.messages.fetch import FetchResponse, LeaderIdAndEpoch, PartitionData
from trunkline.protocols.kafka.messages.metadata import MetadataRequest
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from trunkline.protocols.kafka.wire import DecodeError

EVERY = [pytest.param(case, id=str(case)) for case in cases()]


@pytest.mark.parametrize("case", EVERY)
@settings(max_examples=6, deadline=None, database=None, derandomize=True)
@given(random=st.randoms(use_true_random=False))
def test_a_message_survives_the_round_trip(case: Case, random: Random) -> None:
    message = case.sample(random)
    encoded = b"".join(message.encode(case.version))
    decoded, end = case.type.decode(memoryview(encoded), 0, case.version)
    assert decoded == message
    assert end == len(encoded)


@pytest.mark.parametrize("case", EVERY)
def test_a_message_of_defaults_can_be_sent(case: Case) -> None:
    message = case.type()
    decoded, _ = case.type.decode(memoryview(b"".join(message.encode(case.version))), 0, case.version)
    assert decoded == message


def test_the_checked_in_messages_are_what_the_generator_writes() -> None:
    texts = generate()
    assert {path.name for path in MESSAGES.glob("*.py")} == {*texts, "__init__.py"}
    for name, text in texts.items():
        assert (MESSAGES / name).read_text("utf-8") == text, f"{name} is out of date: run `make generate`"


def test_every_declared_api_loads() -> None:
    declared = {d.key: d for group in DECLARATIONS.values() for d in group if d.key is not None}
    assert declared.keys() == APIS.keys()
    for key, api in APIS.items():
        request, response = load(key)
        assert (request.__name__, response.__name__) == (f"{api.name}Request", f"{api.name}Response")
        assert request.API_KEY == response.API_KEY == key
        assert (api.min_version, api.max_version) == (request.MIN_VERSION, request.MAX_VERSION)
        assert is_dataclass(request)
        assert not hasattr(request(), "__dict__")


def test_importing_the_codec_loads_no_messages() -> None:
    code = (
        "import sys, trunkline.protocols.kafka.codec\n"
        "print([m for m in sys.modules if m.startswith('trunkline.protocols.kafka.messages.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['trunkline.protocols.kafka.messages.catalogue']"


def test_the_response_header_of_api_versions_is_never_flexible() -> None:
    assert request_header_version(18, 3) == 2
    assert response_header_version(18, 3) == 0
    assert response_header_version(3, 9) == 1
    assert response_header_version(3, 8) == 0
    assert request_header_version(17, 1) == 1


def test_records_are_a_view_of_the_frame_and_are_sent_without_a_copy() -> None:
    records = b"r" * 100_000
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])],
    )
    parts = request.encode(9)
    assert any(part is records for part in parts)
    frame = memoryview(b"".join(parts))
    decoded, _ = ProduceRequest.decode(frame, 0, 9)
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame.obj
    assert view == records


def test_fields_of_other_versions_are_ignored_when_encoding_and_default_when_decoding() -> None:
    response = FetchResponse(throttle_time_ms=7, session_id=9)
    decoded, _ = FetchResponse.decode(memoryview(b"".join(response.encode(1))), 0, 1)
    assert (decoded.throttle_time_ms, decoded.session_id) == (7, 0)
    assert len(b"".join(ProduceResponse(throttle_time_ms=7).encode(0))) == 4


def test_tagged_fields_are_left_out_when_they_have_their_default() -> None:
    plain = b"".join(ApiVersionsResponse().encode(3))
    assert plain == b"\x00\x00" + b"\x01" + b"\x00\x00\x00\x00" + b"\x00"
    tagged = b"".join(ApiVersionsResponse(finalized_features_epoch=5, zk_migration_ready=True).encode(3))
    assert tagged == plain[:-1] + b"\x02" + b"\x01\x08" + (5).to_bytes(8, "big") + b"\x03\x01\x01"
    assert PartitionData().current_leader == LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)


def test_unknown_tagged_fields_are_skipped() -> None:
    body = bytearray(b"".join(MetadataRequest(topics=None).encode(12)))
    assert body[-1] == 0
    body[-1:] = b"\x02" + b"\x05\x03abc" + b"\x89\x01\x00"
    decoded, end = MetadataRequest.decode(memoryview(body), 0, 12)
    assert decoded == MetadataRequest(topics=None)
    assert end == len(body)


def test_null_is_refused_in_versions_that_have_none() -> None:
    with pytest.raises(ValueError, match="may not be null"):
        MetadataRequest(topics=None).encode(0)
    with pytest.raises(DecodeError):
        MetadataRequest.decode(memoryview(b"\xff\xff\xff\xff"), 0, 0)
    assert MetadataRequest.decode(memoryview(b"\xff\xff\xff\xff"), 0, 1)[0].topics is None


@pytest.mark.parametrize("version", [-1, 14])
def test_versions_outside_the_range_are_refused(version: int) -> None:
    with pytest.raises(DecodeError, match="no version"):
        ProduceRequest.decode(memoryview(bytes(100)), 0, version)
    with pytest.raises(ValueError, match="no version"):
        ProduceRequest().encode(version)


def test_a_subscription_travels_behind_its_version() -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["a", "b"], owned_partitions=[TopicPartition(topic="a", partitions=[0, 2])], generation_id=4
    )
    encoded = subscription.encode_prefixed(2)
    assert encoded[:2] == b"\x00\x02"
    assert ConsumerProtocolSubscription.decode_prefixed(memoryview(encoded)) == (subscription, 2)
    newer = b"\x00\x09" + subscription.encode_prefixed(3)[2:] + b"a field of version 9"
    assert ConsumerProtocolSubscription.decode_prefixed(memoryview(newer)) == (subscription, 9)
    for bad in (b"", b"\x00", b"\xff\xff\x00", b"\x00\x01\x00"):
        with pytest.raises(DecodeError):
            ConsumerProtocolSubscription.decode_prefixed(memoryview(bad))


def test_every_field_has_a_default() -> None:
    request_type, response_type = load(1)
    for message in (request_type, response_type):
        assert is_dataclass(message)
        assert {item.name for item in fields(message)} == set(message.__slots__)
