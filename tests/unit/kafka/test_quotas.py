"""Quotas over the protocol: described and altered as Kafka does, and what they do to a session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.unit.kafka.test_access import as_bob
from tests.unit.kafka.test_guard import ask, codes
from tests.unit.kafka.test_session import Client, fetch_of, produce_of
from trunkline.broker.core import BrokerCore
from trunkline.log.memory.store import MemoryStore
from trunkline.protocols.kafka.apis import ApiKey
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages import alter_client_quotas as alter
from trunkline.protocols.kafka.messages import describe_client_quotas as describe
from trunkline.protocols.kafka.messages.fetch import FetchResponse
from trunkline.protocols.kafka.messages.metadata import MetadataRequest
from trunkline.protocols.kafka.messages.produce import ProduceResponse

Parts = Sequence[tuple[str, str | None]]


async def put(client: Client, parts: Parts, **values: float | None) -> set[ErrorCode]:
    request = alter.AlterClientQuotasRequest(
        entries=[
            alter.EntryData(
                entity=[alter.EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
                ops=[alter.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
            )
        ]
    )
    return codes(await ask(client, request, ApiKey.ALTER_CLIENT_QUOTAS, 1))


async def described(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False
) -> dict[Parts, dict[str, float]]:
    request = describe.DescribeClientQuotasRequest(
        components=[
            describe.ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in components
        ],
        strict=strict,
    )
    answer = await ask(client, request, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1)
    assert isinstance(answer, describe.DescribeClientQuotasResponse)
    assert not answer.error_code, answer
    return {
        tuple((each.entity_type, each.entity_name) for each in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries or ()
    }


def test_quotas_are_altered_and_described_by_entity() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        bob, default = [("user", "bob")], [("user", None)]
        both = [("user", "bob"), ("client-id", "c")]
        assert not await put(client, bob, producer_byte_rate=1000.0, request_percentage=50.0)
        assert not await put(client, default, consumer_byte_rate=7.0)
        assert not await put(client, both, producer_byte_rate=5.0)
        assert not await put(client, [("ip", "10.0.0.1")], connection_creation_rate=3.0)
        assert not await put(client, bob, request_percentage=None)
        users = {
            (("user", "bob"),): {"producer_byte_rate": 1000.0},
            (("user", None),): {"consumer_byte_rate": 7.0},
        }
        pair = {(("client-id", "c"), ("user", "bob")): {"producer_byte_rate": 5.0}}
        assert await described(client, ("user", 2, None), strict=True) == users
        assert await described(client, ("user", 2, None)) == users | pair
        assert await described(client, ("user", 0, "bob"), ("client-id", 0, "c")) == pair
        assert await described(client, ("user", 1, None)) == {(("user", None),): {"consumer_byte_rate": 7.0}}
        assert len(await described(client)) == 4
        assert await put(client, bob, moon_rate=1.0) == {ErrorCode.INVALID_REQUEST}
        assert await put(client, [], producer_byte_rate=1.0) == {ErrorCode.INVALID_REQUEST}
        assert not await put(client, bob, producer_byte_rate=None)
        assert (("user", "bob"),) not in await described(client)

    as_bob(scenario, allow_everyone=True)


def test_quotas_are_there_after_a_restart() -> None:
    async def test() -> None:
        store = MemoryStore()
        for values in ({"producer_byte_rate": 9.0}, {}):
            core = BrokerCore(store, with_messaging=False)
            await core.start()
            recorded = core.access.book.put_quotas((("user", "bob"),), values)
            assert recorded is not None
            await recorded
            await core.close()
            again = BrokerCore(store, with_messaging=False)
            await again.start()
            assert again.access.book.quotas.by_entity == ({(("user", "bob"),): values} if values else {})
            await again.close()

    asyncio.run(test())


def test_a_producer_above_its_quota_is_told_to_wait_and_not_read_meanwhile() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        await put(client, [("user", "bob")], producer_byte_rate=10_000.0)
        answer = await ask(client, produce_of("t", b"x" * 50_000), ApiKey.PRODUCE, 9)
        assert isinstance(answer, ProduceResponse)
        assert answer.throttle_time_ms == 0
        answer = await ask(client, produce_of("t", b"x" * 51_000), ApiKey.PRODUCE, 9)
        assert isinstance(answer, ProduceResponse)
        assert 0 < answer.throttle_time_ms < 2_000
        assert not codes(answer), "what was sent is stored"
        assert not client.session._may_proceed()
        other = Client(broker)
        await ask(other, MetadataRequest(topics=[]), ApiKey.METADATA, 9)
        await asyncio.sleep(answer.throttle_time_ms / 1000 + 0.05)
        assert client.session._may_proceed()

    as_bob(scenario, allow_everyone=True)


def test_a_consumer_above_its_quota_gets_its_records_later() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        await ask(client, produce_of("t", b"x" * 5_000), ApiKey.PRODUCE, 9)
        await put(client, [("user", None)], consumer_byte_rate=800.0)

        async def fetched() -> tuple[int, int]:
            answer = await ask(client, fetch_of("t", max_wait_ms=0), ApiKey.FETCH, 12)
            assert isinstance(answer, FetchResponse)
            size = sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)
            return size, answer.throttle_time_ms

        size, wait_ms = await fetched()
        assert (size > 5_000, wait_ms) == (True, 0)
        size, wait_ms = await fetched()
        assert size == 0
        assert wait_ms > 1_000

    as_bob(scenario, allow_everyone=True)


def test_a_client_that_makes_the_broker_work_too_much_waits() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await put(client, [("client-id", "test")], request_percentage=0.000_001)
        client.ask(MetadataRequest(topics=None), 9)
        client.ask(MetadataRequest(topics=None), 9)
        assert not client.session._may_proceed()
        await asyncio.sleep(1.2)
        assert client.session._may_proceed()

    as_bob(scenario, allow_everyone=True)
