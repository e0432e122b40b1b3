"""BrokerCore: the one façade that every protocol calls.

It owns the store, the cursors and the transactions, and it is the only place where they meet. Its memory is a fold of
the log: `start` opens the store, then lets each part replay its internal topic; `close` goes the other way.

Exchanges and queues (`messaging`) are there when a listener of a protocol that has them is on, or when the log holds some:
messages expire and fall due whoever listens. Otherwise their code is not even loaded.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from trunkline.broker import guard
from trunkline.broker.access import AccessControl, MqttTopics
from trunkline.broker.administration.connections import Connections
from trunkline.broker.audit import Audit
from trunkline.broker.complaints import Complaints
from trunkline.broker.counters import Counters
from trunkline.broker.guard import Operation, TrimForbidden
from trunkline.broker.limits import BrokerSettings
from trunkline.broker.logins import Logins
from trunkline.broker.space import Space
from trunkline.broker.state.accounts import AccountRecords
from trunkline.broker.transactions.coordinator import TransactionCoordinator, TransactionLimits
from trunkline.broker.transactions.own import OwnTransactions
from trunkline.broker.turn import Turn
from trunkline.budget import Budget, Holder
from trunkline.clock import Clock, SystemClock
from trunkline.cursors.share import SharePartitions
from trunkline.cursors.stream import GroupCoordinator, GroupLimits
from trunkline.log.capabilities import LogDirectory
from trunkline.log.config import TOPOLOGY_CONFIG, TopicConfig
from trunkline.log.coordinated import CoordinatedStore
from trunkline.log.errors import OffsetOutOfRange, TopicExists, UnknownTopicOrPartition
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore, TopicInfo, TopicPartition

if TYPE_CHECKING:
    from trunkline.broker.administration.administration import Administration
    from trunkline.broker.messaging.messaging import Messaging
    from trunkline.broker.shared.shared_state import SharedState

logger = logging.getLogger(__name__)

TOPOLOGY = TopicPartition(TOPOLOGY_TOPIC, 0)
_QUEUE_STATE_TOPIC = "__queue_state"  # is there once `messaging` has been
_CLUSTER_KEY = b"cluster"


class BrokerCore:
    messaging: Messaging  # where there is one: see above
    administration: Administration  # likewise
    shared: SharedState  # likewise

    def __init__(
        self,
        store: LogStore,
        *,
        clock: Clock | None = None,
        settings: BrokerSettings | None = None,
        group_limits: GroupLimits | None = None,
        transaction_limits: TransactionLimits | None = None,
        with_messaging: bool = True,
    ) -> None:
        self.store = store
        self.clock: Clock = clock or SystemClock()
        self.settings = settings or BrokerSettings()
        self.limits = self.settings.limits
        self.store_defaults = TopicConfig(defaults=self.settings.topic_defaults)
        self.complaints = Complaints()
        self.audit = Audit(store, self.clock, self.settings.audit_topic)
        self.access = AccessControl(
            store,
            self.clock,
            self.audit,
            super_users=self.settings.super_users,
            allow_everyone=self.settings.allow_everyone_if_no_acl,
            mqtt_topics={
                topic: MqttTopics(filters, but) for topic, (filters, but) in self.settings.mqtt_topics.items()
            },
        )
        self.users = AccountRecords(store, self.clock)
        self.accounts = self.users.accounts
        self.logins = Logins(self.users, self.clock, self.audit, self.complaints, self.settings.logins)
        self.access.use_accounts(self.accounts)
        # What clients make the broker hold before it counts for anything.
        self.input = Budget(self.limits.max_input_bytes, self._input_let_go)
        # What clients do not take from it: see `_output_let_go`.
        self.output = Budget(self.limits.max_unsent_bytes * 5 // 4, self._output_let_go)
        self.groups = GroupCoordinator(store, self.clock, limits=group_limits or GroupLimits(), held=self.input)
        self.shares = SharePartitions(store, self.clock, self.groups.settings)
        self.transactions = TransactionCoordinator(store, self.groups, self.clock, limits=transaction_limits)
        self.turn = Turn()
        self.space = Space(store, min_free_bytes=self.limits.min_free_bytes)
        # The log as clients look at it. Bound here, so that what is asked for in every request is no call more.
        self.topics, self.topic, self.topic_by_id = store.topics, store.topic, store.topic_by_id
        self.bounds, self.append = store.bounds, store.append
        self.offset_for_time, self.max_timestamp = store.offset_for_time, store.max_timestamp
        self.producers = store.producers
        self._own_transactions = OwnTransactions(self.transactions, self.clock)
        if isinstance(store, CoordinatedStore):
            store.coordinated_by(self._own_transactions)
        self.connections = Connections()
        self._has_messaging = False
        if with_messaging:
            self._make_messaging()
        self.cluster_id = ""
        # Listener name -> the host and port that clients are told; "" for the host that their connection came in on.
        self.listeners: dict[str, tuple[str, int]] = {}
        self.counters = Counters()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.store.start()
        await self.audit.start()
        await self.groups.start()
        await self.transactions.start()
        await self.shares.start(self.groups.share_groups())
        await self._own_transactions.start()  # state may be part of a transaction: who reads it finds them ended
        topology = StateTopic(self.store, self.clock, TOPOLOGY_TOPIC, TOPOLOGY_CONFIG)
        await topology.open()
        latest = await topology.latest()
        self.cluster_id = await self._cluster_identity(topology, latest)
        self.access.book.fold(latest)
        await self.users.start(latest)
        if not self._has_messaging and self.store.topic(_QUEUE_STATE_TOPIC) is not None:
            self._make_messaging()
        if self._has_messaging:
            await self.messaging.start()
            await self.shared.start()
            self.space.start()
        self._tasks = [
            asyncio.create_task(self.groups.run_timers(), name="group timers"),
            asyncio.create_task(self.transactions.run_timers(), name="transaction timers"),
            asyncio.create_task(self.shares.run_timers(), name="share group timers"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.space.close()
        self.logins.close()
        if self._has_messaging:
            await self.shared.close()
            await self.messaging.close()
        await self.audit.close()
        await self.transactions.close()
        await self.shares.close()
        await self.groups.close()
        await self.store.close()
        self.complaints.close()

    def _make_messaging(self) -> None:
        from trunkline.broker.administration.administration import Administration
        from trunkline.broker.messaging.messaging import Messaging
        from trunkline.broker.shared.shared_state import SharedState

        self.messaging = Messaging(self.store, self.clock, self.turn, self.groups)
        self.administration = Administration(self.messaging, self.users, self.access, self.audit, self.connections)
        self.shared = SharedState(self.store, self.clock)
        self.access.use_queues(self.messaging.queues)
        self._has_messaging = True

    def _input_let_go(self, holder: Holder, held_bytes: int) -> None:
        most = self.limits.max_input_bytes
        text = f"{holder.holding} ends: it holds {held_bytes} bytes, and all together more than max_input_bytes={most}"
        self.complaints.add("input", holder.origin, text)

    def _output_let_go(self, holder: Holder, held_bytes: int) -> None:
        """Fetches get smaller and QoS 0 is dropped at `max_unsent_bytes`; what cannot be held back ends a quarter above it."""
        most = self.limits.max_unsent_bytes
        text = f"{holder.holding} ends: its client has not taken {held_bytes} bytes, and max_unsent_bytes={most} is far exceeded"
        self.complaints.add("output", holder.origin, text)

    # -- topics, as clients ask for them: the guard stands before each change ------------------------------------

    async def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> TopicInfo:
        guard.check(Operation.CREATE, name)
        count = self.settings.num_partitions if partitions is None else partitions
        info = await self.store.create_topic(name, count, config)
        self.groups.topics_changed()
        return info

    async def ensure_topic(self, name: str) -> TopicInfo:
        """The topic, created with the defaults if that is allowed and it does not exist."""
        info = self.store.topic(name)
        if info is not None:
            return info
        if not self.settings.auto_create_topics:
            raise UnknownTopicOrPartition(f"topic {name} does not exist")
        try:
            return await self.create_topic(name)
        except TopicExists:  # another client was quicker
            info = self.store.topic(name)
            if info is None:
                raise
            return info

    async def configure_topic(self, name: str, config: Mapping[str, str]) -> TopicInfo:
        guard.check(Operation.CONFIGURE, name)
        return await self.store.configure_topic(name, config)

    async def delete_topic(self, name: str) -> None:
        guard.check(Operation.DELETE, name)
        info = self.store.topic(name)
        await self.store.delete_topic(name)
        if info is not None:
            self.shares.topic_deleted(info.id)
        await self.groups.topic_deleted(name)
        self.groups.topics_changed()

    def check_growth(self, name: str) -> None:
        """Raise unless the topic may be given more partitions."""
        guard.check(Operation.GROW, name)
        if self._has_messaging:
            self.messaging.queues.topics.check_growth(name)

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        self.check_growth(name)
        with self.messaging.queues.topics.growing(name) if self._has_messaging else nullcontext():
            info = await self.store.grow_topic(name, partitions)
        self.groups.topics_changed()
        return info

    async def trim(self, tp: TopicPartition, before_offset: int) -> int:
        """Remove the records before an offset, -1 for all; returns where the partition begins then."""
        guard.check(Operation.TRIM, tp.topic)
        if before_offset < -1:
            raise OffsetOutOfRange(f"{tp}: offset {before_offset}")
        info = self.store.topic(tp.topic)
        if info is not None and not info.config.deleted:
            raise TrimForbidden(tp.topic)
        return await self.store.trim(tp, before_offset)

    async def end_transaction_of(
        self, tp: TopicPartition, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int
    ) -> None:
        """End what a producer has open in one partition, past the coordinator: an operator's remedy."""
        guard.check(Operation.WRITE, tp.topic)
        await self.store.append_marker(
            tp, producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
        )

    async def directories(self) -> Sequence[LogDirectory]:
        """Where the log lies on this machine; nothing where the store has no files of its own."""
        files = self.store.log_directories
        return () if files is None else await files.directories()

    async def delete_group(self, group_id: str) -> None:
        """Remove a group without members, and where it stands."""
        await self.groups.delete_group(group_id)
        await self.shares.delete(group_id)

    # -- identity ------------------------------------------------------------------------------------------------

    async def _cluster_identity(self, topology: StateTopic, latest: Mapping[bytes, bytes]) -> str:
        """The cluster id from `__topology`; a new one, kept there, on the first start."""
        found = latest.get(_CLUSTER_KEY)
        if found is not None:
            return str(json.loads(found)["id"])
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        value = json.dumps({"id": cluster_id}).encode()
        await topology.put([state_record(_CLUSTER_KEY, value)], Durability.DISK)
        return cluster_id
