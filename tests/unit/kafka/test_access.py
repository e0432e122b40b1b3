"""What a client must be allowed for each API, of the table of handlers: an API that is added fails here until it has a rule.

The broker allows nothing by itself. Each API is asked, in its newest version, by somebody who is allowed just what it needs,
and by somebody who lacks one thing of it and must be told so with Kafka's own code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple
from uuid import UUID

import pytest

from tests.unit.kafka.test_guard import _request, ask, codes, declarations
from tests.unit.kafka.test_session import Client, produce_of
from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerSettings
from trunkline.cursors.stream import OffsetEntry
from trunkline.log.memory.store import MemoryStore
from trunkline.protocols.kafka import apis, handlers
from trunkline.protocols.kafka.apis import ApiKey, Request
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages import share_fetch
from trunkline.protocols.kafka.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from trunkline.protocols.kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from trunkline.protocols.kafka.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from trunkline.protocols.kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from trunkline.protocols.kafka.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from trunkline.protocols.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from trunkline.protocols.kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from trunkline.protocols.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from trunkline.protocols.kafka.messages.produce import ProduceResponse
from trunkline.protocols.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from trunkline.security.principal import Principal
from trunkline.security.rules import CLUSTER_NAME, Effect, Kind, Operation, Pattern, Rule

BOB = Principal("bob", "10.0.0.1")
TOPIC, GROUP, TRANSACTION = "t", "group", "transaction"
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


class Need(NamedTuple):
    operation: Operation
    kind: Kind
    name: str

    @property
    def code(self) -> ErrorCode:
        return ErrorCode[f"{self.kind.name}_AUTHORIZATION_FAILED"]

    @property
    def rule(self) -> Rule:
        return Rule(self.kind, Pattern.LITERAL, self.name, "User:bob", "*", self.operation, Effect.ALLOW)


def topic(operation: Operation) -> Need:
    return Need(operation, Kind.TOPIC, TOPIC)


def group(operation: Operation) -> Need:
    return Need(operation, Kind.GROUP, GROUP)


def transaction(operation: Operation) -> Need:
    return Need(operation, Kind.TRANSACTIONAL_ID, TRANSACTION)


def cluster(operation: Operation) -> Need:
    return Need(operation, Kind.CLUSTER, CLUSTER_NAME)


NEEDS: dict[ApiKey, tuple[Need, ...]] = {
    ApiKey.PRODUCE: (topic(WRITE),),
    ApiKey.FETCH: (topic(READ),),
    ApiKey.LIST_OFFSETS: (topic(DESCRIBE),),
    ApiKey.DELETE_RECORDS: (topic(DELETE),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (topic(DESCRIBE),),
    ApiKey.METADATA: (topic(DESCRIBE),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (topic(DESCRIBE),),
    ApiKey.CREATE_TOPICS: (topic(CREATE), topic(DESCRIBE_CONFIGS)),
    ApiKey.DELETE_TOPICS: (topic(DELETE),),
    ApiKey.CREATE_PARTITIONS: (topic(ALTER),),
    ApiKey.DESCRIBE_CONFIGS: (topic(DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CONFIGS: (topic(ALTER_CONFIGS),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (topic(ALTER_CONFIGS),),
    ApiKey.LIST_CONFIG_RESOURCES: (cluster(DESCRIBE_CONFIGS),),
    ApiKey.FIND_COORDINATOR: (group(DESCRIBE),),
    ApiKey.DESCRIBE_LOG_DIRS: (cluster(DESCRIBE),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (cluster(ALTER),),
    ApiKey.DESCRIBE_QUORUM: (cluster(DESCRIBE),),
    ApiKey.UPDATE_FEATURES: (cluster(ALTER),),
    ApiKey.DESCRIBE_PRODUCERS: (topic(READ),),
    ApiKey.ELECT_LEADERS: (cluster(ALTER),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (cluster(DESCRIBE),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (cluster(ALTER),),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (cluster(DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (cluster(ALTER_CONFIGS),),
    ApiKey.DESCRIBE_ACLS: (cluster(DESCRIBE),),
    ApiKey.CREATE_ACLS: (cluster(ALTER),),
    ApiKey.DELETE_ACLS: (cluster(ALTER),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (cluster(DESCRIBE),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (cluster(ALTER),),
    ApiKey.JOIN_GROUP: (group(READ),),
    ApiKey.SYNC_GROUP: (group(READ),),
    ApiKey.HEARTBEAT: (group(READ),),
    ApiKey.LEAVE_GROUP: (group(READ),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (group(READ), topic(DESCRIBE)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (group(DESCRIBE),),
    ApiKey.DESCRIBE_GROUPS: (group(DESCRIBE),),
    ApiKey.DELETE_GROUPS: (group(DELETE),),
    ApiKey.OFFSET_COMMIT: (group(READ), topic(READ)),
    ApiKey.OFFSET_FETCH: (group(DESCRIBE), topic(DESCRIBE)),
    ApiKey.OFFSET_DELETE: (group(DELETE), topic(READ)),
    ApiKey.INIT_PRODUCER_ID: (transaction(WRITE),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (cluster(ACTION), transaction(WRITE), topic(WRITE)),
    ApiKey.ADD_OFFSETS_TO_TXN: (transaction(WRITE), group(READ)),
    ApiKey.TXN_OFFSET_COMMIT: (transaction(WRITE), group(READ), topic(READ)),
    ApiKey.END_TXN: (transaction(WRITE),),
    ApiKey.WRITE_TXN_MARKERS: (cluster(ALTER),),
    ApiKey.DESCRIBE_TRANSACTIONS: (transaction(DESCRIBE),),
    ApiKey.SHARE_GROUP_HEARTBEAT: (group(READ), topic(DESCRIBE)),
    ApiKey.SHARE_GROUP_DESCRIBE: (group(DESCRIBE),),
    ApiKey.SHARE_FETCH: (group(READ),),  # and the topics': see below
    ApiKey.SHARE_ACKNOWLEDGE: (group(READ),),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (group(DESCRIBE),),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (group(READ), topic(READ)),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (group(DELETE),),
}
# What everybody may ask: what the broker speaks, where it is, and who one is. What they show depends on who asks; see below.
OPEN = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
FILTERED = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
DENIALS = {code for code in ErrorCode if code.name.endswith("_AUTHORIZATION_FAILED")}


def test_every_api_has_a_rule() -> None:
    assert handlers.served() - (OPEN & {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}) == {
        *NEEDS, *FILTERED, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER,
    }  # fmt: skip


def as_bob(scenario: Callable[[Client, BrokerCore], Awaitable[None]], *, allow_everyone: bool = False) -> None:
    async def run() -> None:
        broker = BrokerCore(
            MemoryStore(), settings=BrokerSettings(allow_everyone_if_no_acl=allow_everyone), with_messaging=False
        )
        await broker.start()
        broker.listeners["kafka"] = ("127.0.0.1", 9092)
        client = Client(broker)
        client.session.authentication.principal = BOB
        try:
            await scenario(client, broker)
        finally:
            client.session.lost()
            await broker.close()

    asyncio.run(run())


def allow(broker: BrokerCore, needs: Iterable[Need]) -> None:
    book = broker.access.book
    book.remove(list(broker.access.rules))
    book.add(need.rule for need in needs)


def request_of(key: ApiKey, version: int, broker: BrokerCore, name: str = TOPIC) -> Request:
    declared = next(each for each, found in declarations().items() if found.key == key)
    info = broker.topic(name)
    return _request(declared, version, name, UUID(int=0) if info is None else info.id)


@pytest.mark.parametrize("key", NEEDS, ids=lambda key: key.name)
def test_who_may_may_and_who_may_not_is_told_so(key: ApiKey) -> None:
    version = apis.APIS[key].max_version

    async def scenario(client: Client, broker: BrokerCore) -> None:
        if key is not ApiKey.CREATE_TOPICS:
            await broker.create_topic(TOPIC)
        for lacking in NEEDS[key]:
            allow(broker, (need for need in NEEDS[key] if need is not lacking))
            before = broker.topics()
            answer = await ask(client, request_of(key, version, broker), key, version)
            assert codes(answer) & DENIALS == {lacking.code}, (lacking, answer)
            if lacking.operation is not DESCRIBE_CONFIGS:
                assert broker.topics() == before
            else:
                await broker.delete_topic(TOPIC)
        allow(broker, NEEDS[key])
        answer = await ask(client, request_of(key, version, broker), key, version)
        assert not codes(answer) & DENIALS, answer

    as_bob(scenario)


def test_settings_of_groups_and_brokers_have_rules_of_their_own() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        for key, operation in (
            (ApiKey.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS),
            (ApiKey.ALTER_CONFIGS, ALTER_CONFIGS),
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS),
        ):
            for number, name, need in (
                (32, GROUP, group(operation)),
                (4, "1", cluster(operation)),
                (8, "1", cluster(operation)),
            ):
                version = apis.APIS[key].max_version
                request = request_of(key, version, broker, name)
                request.resources[0].resource_type = number  # type: ignore[attr-defined]
                allow(broker, ())
                assert codes(await ask(client, request, key, version)) == {need.code}
                allow(broker, (need,))
                assert not codes(await ask(client, request, key, version)) & DENIALS

    as_bob(scenario)


def test_who_may_write_anywhere_may_be_idempotent() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        )

        async def code() -> int:
            answer = await ask(client, request, InitProducerIdRequest.API_KEY, 4)
            assert isinstance(answer, InitProducerIdResponse)
            return answer.error_code

        assert await code() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for need in (topic(WRITE), cluster(Operation.IDEMPOTENT_WRITE)):
            allow(broker, (need,))
            assert await code() == ErrorCode.NONE

    as_bob(scenario)


def test_a_transactional_produce_needs_its_id() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic(TOPIC)
        allow(broker, (topic(WRITE),))
        request = produce_of(TOPIC, b"v", acks=-1)
        request.transactional_id = TRANSACTION
        for version in (9, 12):
            answer = await ask(client, request, ApiKey.PRODUCE, version)
            assert isinstance(answer, ProduceResponse)
            assert codes(answer) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

    as_bob(scenario)


def test_a_produce_without_acknowledgement_that_is_refused_ends_the_connection() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic(TOPIC)
        client.ask(produce_of(TOPIC, b"v", acks=0), 9)
        await client.until(lambda: client.closed)

    as_bob(scenario)


def test_members_of_share_groups_get_nothing_of_topics_that_they_may_not_read() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        info = await broker.create_topic(TOPIC)
        allow(broker, (group(READ), topic(DESCRIBE)))
        joined = ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id="member", member_epoch=0, subscribed_topic_names=[TOPIC]
        )
        assert not codes(await ask(client, joined, ApiKey.SHARE_GROUP_HEARTBEAT, 1))
        part = share_fetch.FetchPartition(partition_index=0)
        request = share_fetch.ShareFetchRequest(
            group_id=GROUP,
            member_id="member",
            max_bytes=1 << 20,
            max_records=10,
            batch_size=10,
            topics=[share_fetch.FetchTopic(topic_id=info.id, partitions=[part])],
        )
        assert codes(await ask(client, request, ApiKey.SHARE_FETCH, 1)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        allow(broker, (group(READ), topic(READ)))
        assert not codes(await ask(client, request, ApiKey.SHARE_FETCH, 1))

    as_bob(scenario)


def test_lists_show_what_may_be_described() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        for name in (TOPIC, "other"):
            await broker.create_topic(name)
            await broker.groups.commit(f"group-{name}", "", -1, None, [OffsetEntry(name, 0, 1, -1, "")])
            await broker.transactions.init_producer_id(f"transaction-{name}", 1000, -1, -1)
        await broker.groups.commit("group-t", "", -1, None, [OffsetEntry("other", 0, 1, -1, "")])

        async def topics() -> set[str | None]:
            answer = await ask(client, MetadataRequest(topics=None), ApiKey.METADATA, 9)
            assert isinstance(answer, MetadataResponse)
            return {each.name for each in answer.topics}

        async def groups() -> set[str]:
            answer = await ask(client, ListGroupsRequest(), ApiKey.LIST_GROUPS, 4)
            assert isinstance(answer, ListGroupsResponse)
            return {each.group_id for each in answer.groups}

        async def transactions() -> set[str]:
            answer = await ask(client, ListTransactionsRequest(), ApiKey.LIST_TRANSACTIONS, 1)
            assert isinstance(answer, ListTransactionsResponse)
            return {each.transactional_id for each in answer.transaction_states}

        assert (await topics(), await groups(), await transactions()) == (set(), set(), set())
        needs = [topic(DESCRIBE), Need(DESCRIBE, Kind.GROUP, "group-t")]
        needs.append(Need(DESCRIBE, Kind.TRANSACTIONAL_ID, "transaction-t"))
        allow(broker, needs)
        assert (await topics(), await groups(), await transactions()) == ({"t"}, {"group-t"}, {"transaction-t"})
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="group-t", topics=None)])
        answer = await ask(client, request, ApiKey.OFFSET_FETCH, 8)
        assert isinstance(answer, OffsetFetchResponse)
        assert [each.name for each in answer.groups[0].topics] == ["t"], "of the other topic nothing is said"
        allow(broker, (cluster(DESCRIBE),))
        assert await groups() == {"group-t", "group-other"}

    as_bob(scenario)


def test_a_topic_is_not_made_for_who_may_not_make_it() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        allow(broker, (Need(DESCRIBE, Kind.TOPIC, "new"),))
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
        answer = await ask(client, request, ApiKey.METADATA, 9)
        assert codes(answer) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert broker.topic("new") is None
        for rule in (Need(CREATE, Kind.TOPIC, "new"), cluster(CREATE)):
            allow(broker, (Need(DESCRIBE, Kind.TOPIC, "new"), rule))
            assert not codes(await ask(client, request, ApiKey.METADATA, 9))
            await broker.delete_topic("new")

    as_bob(scenario)


def test_what_is_allowed_is_told_to_who_asks() -> None:
    def bits(*operations: Operation) -> int:
        return sum(1 << each for each in operations)

    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic(TOPIC)
        allow(broker, (topic(READ), cluster(ALTER), group(DELETE)))
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=TOPIC)],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        answer = await ask(client, request, ApiKey.METADATA, 9)
        assert isinstance(answer, MetadataResponse)
        assert answer.topics[0].topic_authorized_operations == bits(READ, DESCRIBE)
        assert answer.cluster_authorized_operations == bits(ALTER, DESCRIBE)
        described = await ask(
            client, DescribeClusterRequest(include_cluster_authorized_operations=True), ApiKey.DESCRIBE_CLUSTER, 1
        )
        assert isinstance(described, DescribeClusterResponse)
        assert described.cluster_authorized_operations == bits(ALTER, DESCRIBE)
        found = await ask(
            client, DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True), ApiKey.DESCRIBE_GROUPS, 5
        )
        assert isinstance(found, DescribeGroupsResponse)
        assert found.groups[0].authorized_operations == bits(DELETE, DESCRIBE)
        allow(broker, (topic(READ),))
        answer = await ask(client, request, ApiKey.METADATA, 9)
        assert isinstance(answer, MetadataResponse)
        assert answer.cluster_authorized_operations == 0

    as_bob(scenario)


# -- the rules themselves ------------------------------------------------------------------------------------------------


def creation(name: str, **other: object) -> AclCreation:
    given: dict[str, object] = {
        "resource_type": 2, "resource_name": name, "resource_pattern_type": 3, "principal": "User:bob", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    return AclCreation(**{**given, **other})  # type: ignore[arg-type]


def described(**other: object) -> DescribeAclsRequest:
    given: dict[str, object] = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    return DescribeAclsRequest(**{**given, **other})  # type: ignore[arg-type]


def test_rules_are_made_found_and_removed_as_kafka_does() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        async def found(**asked: object) -> set[tuple[int, str]]:
            answer = await ask(client, described(**asked), ApiKey.DESCRIBE_ACLS, 3)
            assert isinstance(answer, DescribeAclsResponse)
            assert not answer.error_code
            return {(each.pattern_type, each.resource_name) for each in answer.resources for _ in each.acls}

        hidden = Rule(Kind.MQTT_TOPIC, Pattern.FILTER, "a/#", "User:bob", "*", READ, Effect.ALLOW)
        broker.access.book.add([hidden])
        wanted = [
            creation("orders"),
            creation("orders", operation=4),
            creation("ord", resource_pattern_type=4),
            creation("*"),
            creation("other", principal="User:alice", host="10.0.0.1", permission_type=2),
            creation(GROUP, resource_type=3),
        ]
        answer = await ask(client, CreateAclsRequest(creations=wanted), ApiKey.CREATE_ACLS, 3)
        assert isinstance(answer, CreateAclsResponse)
        assert not codes(answer)
        assert len(broker.access.rules) == len(wanted) + 1
        assert await found(resource_type_filter=2) == {(3, "orders"), (4, "ord"), (3, "*"), (3, "other")}
        assert await found(resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=2) == {
            (3, "orders"), (4, "ord"), (3, "*"),
        }  # fmt: skip
        assert await found(resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=3) == {
            (3, "orders")
        }
        assert await found(resource_name_filter="ord") == {(4, "ord")}
        assert await found(pattern_type_filter=4) == {(4, "ord")}
        assert await found(principal_filter="User:alice") == {(3, "other")}
        assert await found(host_filter="10.0.0.1") == {(3, "other")}
        assert await found(permission_type=2) == {(3, "other")}
        assert await found(operation=4) == {(3, "orders")}
        removal = DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=2, principal_filter=None,
                    host_filter=None, operation=1, permission_type=1,
                ),
                DeleteAclsFilter(
                    resource_type_filter=2, resource_name_filter="nothing", pattern_type_filter=3, principal_filter=None,
                    host_filter=None, operation=1, permission_type=1,
                ),
            ]
        )  # fmt: skip
        gone = await ask(client, removal, ApiKey.DELETE_ACLS, 3)
        assert isinstance(gone, DeleteAclsResponse)
        assert [len(each.matching_acls) for each in gone.filter_results] == [4, 0]
        assert await found() == {(3, "other"), (3, GROUP)}
        assert hidden in broker.access.rules

    as_bob(scenario, allow_everyone=True)


def test_a_rule_that_makes_no_sense_is_refused_alone() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        wanted = [
            creation("fine"),
            creation("t", resource_type=1),
            creation("t", resource_type=100),
            creation("t", resource_pattern_type=2),
            creation("t", resource_pattern_type=1),
            creation("t", operation=1),
            creation("t", operation=99),
            creation("t", permission_type=1),
            creation("t", principal="bob"),
            creation("t", host=""),
            creation(""),
            creation("elsewhere", resource_type=4),
        ]
        answer = await ask(client, CreateAclsRequest(creations=wanted), ApiKey.CREATE_ACLS, 3)
        assert isinstance(answer, CreateAclsResponse)
        assert [each.error_code for each in answer.results] == [0] + [ErrorCode.INVALID_REQUEST] * (len(wanted) - 1)
        assert all(each.error_message for each in answer.results[1:])
        assert [rule.name for rule in broker.access.rules] == ["fine"]
        for asked in (
            {"operation": 0},
            {"resource_type_filter": 0},
            {"pattern_type_filter": 9},
            {"permission_type": 0},
        ):
            found = await ask(client, described(**asked), ApiKey.DESCRIBE_ACLS, 3)
            assert codes(found) == {ErrorCode.INVALID_REQUEST}

    as_bob(scenario, allow_everyone=True)


def test_changes_are_in_the_audit_trail() -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        for key in (ApiKey.CREATE_TOPICS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DELETE_TOPICS):
            version = apis.APIS[key].max_version
            request = request_of(key, version, broker, "a")
            if key is ApiKey.INCREMENTAL_ALTER_CONFIGS:
                request.resources[0].configs[0].value = "2"  # type: ignore[attr-defined]
            await ask(client, request, key, version)
        await ask(client, CreateAclsRequest(creations=[creation("x")]), ApiKey.CREATE_ACLS, 3)
        while broker.audit._writing is not None:
            await asyncio.sleep(0)
        events = (await broker.audit.read(None, 10)).events
        assert [(each["kind"], each["user"], each["target"], str(each["text"]).split(" ")[0]) for each in events] == [
            ("change", "bob", "topic a", "created"),
            ("change", "bob", "topic a", "settings:"),
            ("change", "bob", "topic a", "deleted"),
            ("change", "bob", "rules", "added"),
        ]

    as_bob(scenario, allow_everyone=True)
