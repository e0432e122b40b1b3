"""Which broker is asked, and asking again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.fake_broker import NODE, FakeBroker
from trunkline.client import Client, ClientError
from trunkline.client.errors import DISCONNECTED
from trunkline.client.groups import Groups
from trunkline.client.topics import LATEST, Topics
from trunkline.clock import ManualClock
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.apis import ApiKey
from trunkline.protocols.kafka.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from trunkline.protocols.kafka.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from trunkline.protocols.kafka.messages.find_coordinator import FindCoordinatorRequest
from trunkline.protocols.kafka.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trunkline.protocols.kafka.messages.metadata import MetadataRequest
from trunkline.protocols.kafka.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from trunkline.protocols.kafka.wire import Message


def connect(broker: FakeBroker) -> Client:
    """A client whose waiting only moves its clock."""
    clock = ManualClock()
    return Client(broker.bootstrap, clock=clock, sleep=lambda seconds: clock.advance(seconds * 1000), timeout_ms=5_000)


def offsets_answer(*codes: int) -> Iterator[Message]:
    for code in codes:
        partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=42)
        yield ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])


def test_an_error_that_passes_is_tried_again_with_fresh_metadata() -> None:
    answers = offsets_answer(6, 5, 0)
    with FakeBroker({ApiKey.LIST_OFFSETS: lambda request: next(answers)}, topics={"t": 1}) as broker:
        assert Topics(connect(broker)).offsets([TopicPartition("t", 0)], LATEST) == {TopicPartition("t", 0): 42}
        assert len([1 for _, request in broker.asked(MetadataRequest) if getattr(request, "topics", None)]) == 3


def test_an_error_that_stays_is_not_tried_again() -> None:
    answers = offsets_answer(29)
    with FakeBroker({ApiKey.LIST_OFFSETS: lambda request: next(answers)}, topics={"t": 1}) as broker:
        with pytest.raises(ClientError, match="not allowed") as caught:
            Topics(connect(broker)).offsets([TopicPartition("t", 0)], LATEST)
        assert caught.value.name == "TOPIC_AUTHORIZATION_FAILED"


def test_trying_again_ends_when_the_time_is_up() -> None:
    def never(request: Message) -> Message:
        return next(offsets_answer(6))

    with FakeBroker({ApiKey.LIST_OFFSETS: never}, topics={"t": 1}) as broker:
        client = connect(broker)
        with pytest.raises(ClientError) as caught:
            Topics(client).offsets([TopicPartition("t", 0)], LATEST)
        assert caught.value.name == "NOT_LEADER_OR_FOLLOWER"
        assert 3_000 < client.clock.monotonic_ms() <= 5_000


def test_a_dropped_connection_is_opened_again() -> None:
    answers: Iterator[Message | None] = iter([None, *offsets_answer(0)])
    with FakeBroker({ApiKey.LIST_OFFSETS: lambda request: next(answers)}, topics={"t": 1}) as broker:
        assert Topics(connect(broker)).offsets([TopicPartition("t", 0)], LATEST) == {TopicPartition("t", 0): 42}
        assert broker.connections == 2


def test_a_broker_that_went_away_is_told_apart_from_one_that_never_was() -> None:
    with FakeBroker(topics={"t": 1}) as broker:
        client = connect(broker)
        client.metadata()
    with pytest.raises(ClientError, match="lost the connection") as caught:
        client.metadata()
    assert caught.value.name == DISCONNECTED


def test_a_missing_topic_is_an_error_and_a_hint() -> None:
    with FakeBroker() as broker:
        with pytest.raises(ClientError, match="topic absent: there is no such topic") as caught:
            connect(broker).topic("absent")
        assert "trunkline topic list" in caught.value.hint
        assert connect(broker).metadata(["absent"]).topics == {}


def test_a_topic_that_is_being_created_is_waited_for() -> None:
    with FakeBroker() as broker:
        waits: list[float] = []
        clock = ManualClock()

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            clock.advance(seconds * 1000)
            broker.topics["new"] = 3

        client = Client(broker.bootstrap, clock=clock, sleep=sleep)
        assert len(client.topic("new", create=True).partitions) == 3
        assert len(waits) == 1


def test_the_brokers_own_words_are_passed_on() -> None:
    def refuse(request: Message) -> Message:
        assert isinstance(request, CreateTopicsRequest)
        assert request.topics[0].num_partitions == -1
        result = CreatableTopicResult(name="t", error_code=40, error_message="retention.ms must be a number.")
        return CreateTopicsResponse(topics=[result])

    with FakeBroker({ApiKey.CREATE_TOPICS: refuse}) as broker:
        with pytest.raises(ClientError) as caught:
            Topics(connect(broker)).create("t")
        assert str(caught.value) == "topic t: retention.ms must be a number (INVALID_CONFIG)"


def test_an_unknown_error_code_is_shown_by_number() -> None:
    response = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=999)])
    with (
        FakeBroker({ApiKey.CREATE_TOPICS: lambda request: response}) as broker,
        pytest.raises(ClientError, match="ERROR_999"),
    ):
        Topics(connect(broker)).create("t")


@pytest.mark.parametrize("newest", [5, 7, 8, 9])
def test_committed_offsets_are_read_in_every_version(newest: int) -> None:
    old = OffsetFetchResponsePartition(partition_index=0, committed_offset=5)
    new = OffsetFetchResponsePartitions(partition_index=0, committed_offset=5)
    none = OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1)
    response = OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic(name="t", partitions=[old])],
        groups=[
            OffsetFetchResponseGroup(group_id="g", topics=[OffsetFetchResponseTopics(name="t", partitions=[new, none])])
        ],
    )
    with FakeBroker({ApiKey.OFFSET_FETCH: lambda request: response}) as broker:
        broker.versions = {**broker.versions, ApiKey.OFFSET_FETCH: (0, newest)}
        assert Groups(connect(broker)).committed("g") == {TopicPartition("t", 0): 5}


def test_the_coordinator_is_looked_up_again_when_it_moved() -> None:
    moved = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=16)])
    found = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g")])
    answers = iter([moved, found])
    with FakeBroker({ApiKey.OFFSET_FETCH: lambda request: next(answers)}) as broker:
        assert Groups(connect(broker)).committed("g") == {}
        assert len(broker.asked(FindCoordinatorRequest)) == 2


def test_members_of_an_old_broker_are_described_even_when_their_assignment_is_unreadable() -> None:
    member = DescribedGroupMember(member_id="m", client_id="c", client_host="/h", member_assignment=b"\x00")
    described = DescribedGroup(group_id="g", group_state="Stable", protocol_type="consumer", members=[member])
    response = DescribeGroupsResponse(groups=[described])
    versions = {ApiKey.API_VERSIONS: (0, 4), ApiKey.FIND_COORDINATOR: (0, 2), ApiKey.DESCRIBE_GROUPS: (0, 1)}
    with FakeBroker({ApiKey.DESCRIBE_GROUPS: lambda request: response}, versions=versions) as broker:
        group = Groups(connect(broker)).describe("g")
        assert [(item.id, list(item.assigned)) for item in group.members] == [("m", [])]


def test_a_group_that_is_dead_does_not_exist() -> None:
    response = DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state="Dead")])
    versions = {ApiKey.API_VERSIONS: (0, 4), ApiKey.FIND_COORDINATOR: (0, 2), ApiKey.DESCRIBE_GROUPS: (0, 1)}
    with FakeBroker({ApiKey.DESCRIBE_GROUPS: lambda request: response}, versions=versions) as broker:
        with pytest.raises(ClientError) as caught:
            Groups(connect(broker)).describe("g")
        assert caught.value.name == "GROUP_ID_NOT_FOUND"


def test_the_controller_is_the_one_that_metadata_names() -> None:
    with FakeBroker() as broker:
        client = connect(broker)
        assert client.controller().port == broker.port
        assert client.metadata([]).controller == NODE


def test_a_broker_that_was_never_reached_is_waited_for_only_if_it_is_known_to_run() -> None:
    clock = ManualClock()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds * 1000)

    for known in (False, True):
        with Client("127.0.0.1:1", known_to_run=known, clock=clock, sleep=sleep, timeout_ms=5_000) as client:
            with pytest.raises(ClientError) as caught:
                client.metadata()
            assert (caught.value.name == DISCONNECTED, bool(waits)) == (known, known)
