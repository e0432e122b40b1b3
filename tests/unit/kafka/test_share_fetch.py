"""ShareFetch and ShareAcknowledge as requests: sessions, refusals, waiting, and what the end of a connection does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.unit.kafka.test_session import Client, produce_of, with_client
from trunkline.broker.core import BrokerCore
from trunkline.log.batch import NewRecord, build_batch, iter_batches
from trunkline.log.store import Durability, TopicPartition
from trunkline.protocols.kafka.codec import decode_response
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages import share_acknowledge as acknowledging
from trunkline.protocols.kafka.messages import share_fetch as fetching

T = TopicPartition("t", 0)
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
LONG_MS = 20_000
PRODUCE_VERSION = 9
Batch = tuple[int, int, list[int]]


class Member:
    """A share group's member on a connection of its own."""

    def __init__(self, broker: BrokerCore, client: Client | None = None, name: str = "anna", group: str = "g") -> None:
        self.broker, self.name, self.group = broker, name, group
        self.client = client or Client(broker)
        self.epoch = 0

    @property
    def topic_id(self) -> UUID:
        info = self.broker.topic("t")
        assert info is not None
        return info.id

    def request(
        self,
        said: Sequence[Batch] = (),
        *,
        epoch: int | None = None,
        topic_id: UUID | None = None,
        partition: int = 0,
        **more: Any,
    ) -> fetching.ShareFetchRequest:
        batches = [
            fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in said
        ]
        part = fetching.FetchPartition(partition_index=partition, acknowledgement_batches=batches)
        values: dict[str, Any] = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 100,
            **more,
        }
        return fetching.ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            batch_size=100,
            topics=[fetching.FetchTopic(topic_id=topic_id or self.topic_id, partitions=[part])],
            **values,
        )

    def send(
        self, request: fetching.ShareFetchRequest | acknowledging.ShareAcknowledgeRequest, version: int = 2
    ) -> int:
        self.client.sent.clear()
        return self.client.ask(request, version)

    async def fetched(self, correlation_id: int, version: int = 2) -> fetching.ShareFetchResponse:
        await self.client.until(lambda: bool(self.client.sent))
        return decode_response(
            fetching.ShareFetchResponse, memoryview(self.client.sent[0])[4:], version, correlation_id
        )

    async def ask(self, request: fetching.ShareFetchRequest, version: int = 2) -> fetching.ShareFetchResponse:
        response = await self.fetched(self.send(request, version), version)
        if not response.error_code:
            self.epoch = max(request.share_session_epoch, 0) + 1
        return response

    async def fetch(self, said: Sequence[Batch] = (), **more: Any) -> list[tuple[int, int, int]]:
        response = await self.ask(self.request(said, **more))
        assert not response.error_code
        return ranges(response)

    async def acknowledge(
        self, said: Sequence[Batch], *, epoch: int | None = None, renewing: bool = False
    ) -> tuple[int, list[int]]:
        batches = [
            acknowledging.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in said
        ]
        part = acknowledging.AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        sent = self.send(
            acknowledging.ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.name,
                share_session_epoch=self.epoch if epoch is None else epoch,
                is_renew_ack=renewing,
                topics=[acknowledging.AcknowledgeTopic(topic_id=self.topic_id, partitions=[part])],
            )
        )
        await self.client.until(lambda: bool(self.client.sent))
        found = decode_response(acknowledging.ShareAcknowledgeResponse, memoryview(self.client.sent[0])[4:], 2, sent)
        if not found.error_code:
            self.epoch += 1
        return found.error_code, [data.error_code for topic in found.responses for data in topic.partitions]


def ranges(response: fetching.ShareFetchResponse) -> list[tuple[int, int, int]]:
    found = []
    for topic in response.responses:
        for data in topic.partitions:
            if data.acquired_records:
                assert [header.base_offset for header, _ in iter_batches(data.records or b"")]
            found += [(each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records]
    return found


async def prepared(broker: BrokerCore, *sizes: int) -> None:
    await broker.create_topic("t", 1)
    await broker.groups.configure("g", {"share.auto.offset.reset": "earliest"})
    await broker.groups.empty_share_group("g", create=True)
    for size in sizes:
        batch = build_batch([NewRecord(None, b"value")] * size, timestamp_ms=1)
        await broker.append(T, batch, Durability.OS)


def test_a_session_is_opened_gone_on_with_and_closed(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 10, 10)
        anna = Member(broker, client)
        assert (await anna.ask(anna.request(epoch=1))).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await anna.fetch(max_records=5) == [(0, 9, 1)]
        assert (await anna.ask(anna.request(epoch=7))).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await anna.fetch([(0, 9, [ACCEPT])]) == [(10, 19, 1)]
        closed = await anna.ask(anna.request([(10, 14, [ACCEPT])], epoch=-1))
        assert closed.responses[0].partitions[0].acknowledge_error_code == 0
        assert ranges(closed) == []
        assert (await anna.ask(anna.request(epoch=-1))).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await Member(broker, client, "ben").fetch() == [(15, 19, 2)]

    with_client(tmp_path, scenario)


def test_requests_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 10)
        for name, group, code in (
            ("", "g", ErrorCode.INVALID_REQUEST),
            ("x" * 37, "g", ErrorCode.INVALID_REQUEST),
            ("anna", "nobody", ErrorCode.GROUP_ID_NOT_FOUND),
        ):
            member = Member(broker, client, name, group)
            assert (await member.ask(member.request())).error_code == code
        anna = Member(broker, client)
        no_group = anna.request()
        no_group.group_id = None
        assert (await anna.ask(no_group)).error_code == ErrorCode.INVALID_REQUEST
        assert (await anna.ask(anna.request([(0, 1, [ACCEPT])]))).error_code == ErrorCode.INVALID_REQUEST
        unknown = await anna.ask(anna.request(topic_id=UUID(int=5)))
        assert unknown.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        far = await anna.ask(anna.request(partition=9))
        assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in {
            data.error_code for topic in far.responses for data in topic.partitions
        }
        assert (await anna.acknowledge([], epoch=0))[0] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await Member(broker, client, "ben").acknowledge([], epoch=3))[0] == ErrorCode.SHARE_SESSION_NOT_FOUND

    with_client(tmp_path, scenario)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([(0, 4, [ACCEPT])], ErrorCode.NONE),
        ([(0, 1, [ACCEPT, REJECT]), (2, 4, [RELEASE])], ErrorCode.NONE),
        ([(10, 12, [ACCEPT])], ErrorCode.INVALID_RECORD_STATE),  # another's
        ([(18, 25, [ACCEPT])], ErrorCode.INVALID_REQUEST),  # never given out
        ([(4, 0, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [9])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [ACCEPT, ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [ACCEPT]), (3, 6, [ACCEPT])], ErrorCode.INVALID_REQUEST),  # twice
        ([(0, 4, [RENEW])], ErrorCode.INVALID_REQUEST),  # not announced
        ([(0, 2**62, [ACCEPT])], ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_may_be_said_of_records(tmp_path: Path, said: list[Batch], code: ErrorCode) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 10, 10)
        anna, ben = Member(broker, client), Member(broker, None, "ben")
        await anna.fetch(max_records=1)
        await ben.fetch(max_records=1)
        assert await anna.acknowledge(said) == (ErrorCode.NONE, [code])
        response = await anna.ask(anna.request(said))
        again = response.responses[0].partitions[0].acknowledge_error_code
        assert again == code or not code  # what was refused is refused with a fetch, too
        ben.client.session.lost()

    with_client(tmp_path, scenario)


def test_locks_are_renewed_by_requests_that_ask_for_nothing_else(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 10)
        anna = Member(broker, client)
        await anna.fetch()
        wrong = await anna.ask(anna.request([(0, 9, [RENEW])], is_renew_ack=True))
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        nothing: dict[str, Any] = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}
        good = await anna.ask(anna.request([(0, 9, [RENEW])], is_renew_ack=True, **nothing))
        assert good.responses[0].partitions[0].acknowledge_error_code == 0
        assert good.acquisition_lock_timeout_ms == 30_000
        assert await anna.acknowledge([(0, 9, [RENEW])], renewing=True) == (0, [0])
        await broker.groups.configure("g", {"share.renew.acknowledge.enable": "false"})
        assert await anna.acknowledge([(0, 9, [RENEW])], renewing=True) == (0, [ErrorCode.INVALID_RECORD_STATE])
        old = anna.request([(0, 9, [RENEW])])
        response = await anna.ask(old, version=1)
        assert response.responses[0].partitions[0].acknowledge_error_code == ErrorCode.INVALID_REQUEST

    with_client(tmp_path, scenario)


def test_a_waiting_fetch_is_woken_by_an_append_and_by_what_others_give_back(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker)
        anna, ben = Member(broker, client), Member(broker, None, "ben")
        waiting = anna.send(anna.request(max_wait_ms=LONG_MS))
        await asyncio.sleep(0.01)
        assert anna.client.sent == []
        Client(broker).ask(produce_of("t", b"wake"), PRODUCE_VERSION)
        assert ranges(await anna.fetched(waiting)) == [(0, 0, 1)]
        anna.epoch = 1
        waiting = ben.send(ben.request(max_wait_ms=LONG_MS))
        await asyncio.sleep(0.01)
        assert ben.client.sent == []
        await anna.acknowledge([(0, 0, [RELEASE])])
        assert ranges(await ben.fetched(waiting)) == [(0, 0, 2)]
        ben.client.session.lost()

    with_client(tmp_path, scenario)


def test_the_end_of_a_connection_gives_back_what_was_held(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 10)
        anna, ben = Member(broker), Member(broker, client, "ben")
        assert await anna.fetch() == [(0, 9, 1)]
        waiting = ben.send(ben.request(max_wait_ms=LONG_MS))
        await asyncio.sleep(0.01)
        anna.client.session.lost()
        assert ranges(await ben.fetched(waiting)) == [(0, 9, 2)]

    with_client(tmp_path, scenario)


def test_an_acknowledgement_takes_effect_behind_a_fetch_that_waits(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 1)
        anna = Member(broker, client)
        await anna.fetch()
        anna.send(anna.request(max_wait_ms=LONG_MS))
        anna.epoch += 1
        part = acknowledging.AcknowledgePartition(
            partition_index=0,
            acknowledgement_batches=[
                acknowledging.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[RELEASE])
            ],
        )
        client.ask(
            acknowledging.ShareAcknowledgeRequest(
                group_id="g",
                member_id="anna",
                share_session_epoch=anna.epoch,
                topics=[acknowledging.AcknowledgeTopic(topic_id=anna.topic_id, partitions=[part])],
            ),
            2,
        )
        # What was released wakes the fetch before it: both are answered, in their order.
        await client.until(lambda: len(client.sent) == 2)

    with_client(tmp_path, scenario)


def test_a_topic_that_is_deleted_ends_the_wait(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker)
        anna = Member(broker, client)
        waiting = anna.send(anna.request(max_wait_ms=LONG_MS))
        await asyncio.sleep(0.01)
        await broker.delete_topic("t")
        response = await anna.fetched(waiting)
        assert response.responses[0].partitions[0].error_code in (
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )

    with_client(tmp_path, scenario)


def test_a_strict_member_gets_no_more_than_it_asks_for(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 10)
        anna = Member(broker, client)
        assert await anna.fetch(max_records=3, share_acquire_mode=1) == [(0, 2, 1)]
        assert await anna.fetch(max_records=3, share_acquire_mode=1) == [(3, 5, 1)]
        assert await anna.fetch(max_records=0) == []

    with_client(tmp_path, scenario)


def test_a_session_outlives_its_group_but_gets_nothing(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await prepared(broker, 10, 10)
        anna = Member(broker, client)
        await anna.fetch(max_records=1)
        await broker.delete_group("g")
        response = await anna.ask(anna.request())
        assert response.responses[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert broker.shares.offsets("g") == []

    with_client(tmp_path, scenario)
