"""Which broker to ask, and asking again when the answer was "not me" or "not yet".

A `Client` knows its bootstrap addresses and, after the first metadata response, the cluster's brokers. Connections are
opened when first needed and kept, one per address. Group coordinators are looked up once and remembered.

`retrying` is the one retry loop: after an error that may pass (`ClientError.retriable`), what is remembered about the
cluster is dropped and the request is tried again with back-off until `timeout_ms` has passed. A bootstrap address that
never answered is not retried: the likely cause is that no broker runs there, and a person is waiting. Whoever knows from
elsewhere that one runs there says so (`known_to_run`); then a broker that does not answer is one that restarts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from trunkline.client.connection import KafkaConnection, R, join_address, split_addresses
from trunkline.client.errors import CONNECTION_FAILED, DISCONNECTED, ClientError, check
from trunkline.client.login import NOBODY, Login
from trunkline.clock import Clock, SystemClock
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from trunkline.protocols.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from trunkline.protocols.kafka.wire import Message

FIRST_BACKOFF_MS = 50
MAX_BACKOFF_MS = 1_000
_GROUP, _TRANSACTION = 0, 1  # the coordinator types of FindCoordinator
_FIND_ONE_VERSION = 3  # the last version of FindCoordinator that asks for a single key

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partition:
    index: int
    leader: int  # -1 while there is none
    replicas: Sequence[int]
    in_sync: Sequence[int]


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    internal: bool
    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class Cluster:
    id: str | None
    controller: int
    brokers: dict[int, tuple[str, int]]
    topics: dict[str, Topic]


class Client:
    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "trunkline",
        timeout_ms: int = 30_000,
        known_to_run: bool = False,
        login: Login = NOBODY,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bootstrap = split_addresses(bootstrap)
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.clock = clock or SystemClock()
        self._sleep = sleep
        self._connections: dict[tuple[str, int], KafkaConnection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._controller = -1
        self._coordinators: dict[tuple[int, str], tuple[str, int]] = {}
        self._topics: dict[str, Topic] = {}
        self._reached = known_to_run
        self._login = login

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- connections ---------------------------------------------------------------------------------------------

    def any_broker(self) -> KafkaConnection:
        """A connection to whichever broker answers first: an open one, a known one, a bootstrap address."""
        for address, connection in self._connections.items():
            if connection.is_open and (address in self._brokers.values() or address in self.bootstrap):
                return connection
        last: ClientError | None = None
        for address in dict.fromkeys([*self._brokers.values(), *self.bootstrap]):
            try:
                return self._connect(address)
            except ClientError as error:
                last = error
        names = ", ".join(join_address(host, port) for host, port in self.bootstrap)
        if self._reached:
            raise ClientError(DISCONNECTED, f"lost the connection to {names}: {last}")
        if last is not None and last.name != CONNECTION_FAILED:
            raise last
        raise ClientError(CONNECTION_FAILED, f"no broker answers at {names}")

    def broker(self, node_id: int) -> KafkaConnection:
        if node_id not in self._brokers:
            self.metadata([])
        if node_id not in self._brokers:
            raise ClientError("BROKER_NOT_AVAILABLE", f"broker {node_id} is not in the cluster at the moment")
        return self._connect(self._brokers[node_id])

    def brokers(self) -> list[KafkaConnection]:
        """A connection to every broker of the cluster."""
        return [self._connect(address) for address in self.metadata([]).brokers.values()]

    def controller(self) -> KafkaConnection:
        if self._controller < 0:
            self.metadata([])
        return self.broker(self._controller) if self._controller >= 0 else self.any_broker()

    def coordinator(self, group: str) -> KafkaConnection:
        return self._coordinator(_GROUP, group, f"coordinator of group {group}")

    def transaction_coordinator(self, transactional_id: str) -> KafkaConnection:
        return self._coordinator(_TRANSACTION, transactional_id, f"coordinator of transactions of {transactional_id}")

    def _coordinator(self, kind: int, key: str, subject: str) -> KafkaConnection:
        address = self._coordinators.get((kind, key))
        if address is None:
            request = FindCoordinatorRequest(key=key, key_type=kind)
            found = self.any_broker().request(request, FindCoordinatorResponse, max_version=_FIND_ONE_VERSION)
            check(found.error_code, subject, found.error_message)
            address = self._coordinators[kind, key] = (found.host, found.port)
        return self._connect(address)

    def _connect(self, address: tuple[str, int]) -> KafkaConnection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = KafkaConnection(
                *address, client_id=self.client_id, timeout_ms=self.timeout_ms, login=self._login
            )
            try:
                connection.open()
            except ClientError as error:
                if self._reached and error.name == CONNECTION_FAILED:
                    raise ClientError(DISCONNECTED, str(error)) from None
                raise
            self._connections[address] = connection
            self._reached = True
        return connection

    # -- retries -------------------------------------------------------------------------------------------------

    def retrying(self, attempt: Callable[[], T], timeout_ms: int | None = None) -> T:
        """Call `attempt` until it succeeds, fails for good, or time is up."""
        deadline_ms = self.clock.monotonic_ms() + (self.timeout_ms if timeout_ms is None else timeout_ms)
        backoff_ms = FIRST_BACKOFF_MS
        while True:
            try:
                return attempt()
            except ClientError as error:
                if not error.retriable or self.clock.monotonic_ms() + backoff_ms >= deadline_ms:
                    raise
            self.forget()
            self.pause(backoff_ms)
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)

    def forget(self) -> None:
        """Drop what is remembered about the cluster; the next request learns it anew."""
        self._coordinators.clear()
        self._topics.clear()
        self._controller = -1

    def pause(self, duration_ms: float) -> None:
        self._sleep(duration_ms / 1000)

    def ask_controller(self, request: Message, response_type: type[R]) -> R:
        return self.retrying(lambda: self.controller().request(request, response_type))

    # -- metadata ------------------------------------------------------------------------------------------------

    def metadata(self, topics: Sequence[str] | None = None, *, create: bool = False) -> Cluster:
        """The cluster with the topics asked for (None: all). Topics that do not exist are left out."""
        return self.retrying(lambda: self._metadata(topics, create))

    def topic(self, name: str, *, create: bool = False) -> Topic:
        """One topic, with a leader for each partition; remembered until something goes wrong."""
        found = self._topics.get(name)
        if found is None:
            found = self.retrying(lambda: self._topic(name, create))
            self._topics[name] = found
        return found

    def leaders(self, name: str) -> dict[int, int]:
        return {partition.index: partition.leader for partition in self.topic(name).partitions}

    def _topic(self, name: str, create: bool) -> Topic:
        topics = self._metadata([name], create, missing=True).topics
        for partition in topics[name].partitions:
            if partition.leader < 0:
                raise ClientError("LEADER_NOT_AVAILABLE", f"{name}-{partition.index} has no leader at the moment")
        return topics[name]

    def _metadata(self, topics: Sequence[str] | None, create: bool, *, missing: bool = False) -> Cluster:
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
        response = self.any_broker().request(request, MetadataResponse)
        self._brokers = {item.node_id: (item.host, item.port) for item in response.brokers}
        self._controller = response.controller_id
        found = {}
        for item in response.topics:
            if item.name is None:
                continue
            if item.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not missing:
                continue
            if item.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and create:
                # The first answer to a request that creates a topic may still say that there is none.
                raise ClientError("LEADER_NOT_AVAILABLE", f"topic {item.name} is not created yet")
            check(item.error_code, f"topic {item.name}")
            found[item.name] = _topic(item, item.name)
        return Cluster(response.cluster_id, response.controller_id, dict(self._brokers), found)


def _topic(item: MetadataResponseTopic, name: str) -> Topic:
    partitions = sorted(item.partitions, key=lambda partition: partition.partition_index)
    return Topic(
        name,
        item.topic_id,
        item.is_internal,
        [Partition(each.partition_index, each.leader_id, each.replica_nodes, each.isr_nodes) for each in partitions],
    )
