"""The broker's own transactions: those that a store has the broker's coordinator end (see `log.coordinated`).

Each is one of a transactional id of ours, which is used again, under a new epoch, when it has ended. At most
`MAX_CONCURRENT` are open at a time; others wait. `start` ends what the last run left open: else whoever reads these
partitions would wait for the time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from trunkline.broker.transactions.coordinator import TransactionCoordinator
from trunkline.broker.transactions.errors import TransactionError, TransactionErrorName
from trunkline.broker.transactions.state import ProducerIdentity
from trunkline.clock import Clock
from trunkline.log.coordinated import TransactionalProducer
from trunkline.log.errors import LogError, OutcomeUnknown, TransactionRefused, UnknownTopicOrPartition
from trunkline.log.store import TopicPartition

_log = logging.getLogger(__name__)

MAX_CONCURRENT: Final = 64
ID_PREFIX: Final = "trunkline.queues."
_TIMEOUT_MS: Final = 60_000


class OwnTransactions:
    def __init__(self, coordinator: TransactionCoordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._idle: dict[str, ProducerIdentity] = {}
        self._made = 0
        self._places = asyncio.Semaphore(MAX_CONCURRENT)

    async def start(self) -> None:
        """After the coordinator's: abort what was not decided."""
        for listing in self._coordinator.list():
            if listing.transactional_id.startswith(ID_PREFIX):
                try:
                    identity = await self._coordinator.init_producer_id(listing.transactional_id, _TIMEOUT_MS)
                except (TransactionError, LogError) as error:
                    _log.error("transaction %s could not be ended: %s", listing.transactional_id, error)
                else:
                    self._idle[listing.transactional_id] = identity
                number = listing.transactional_id.removeprefix(ID_PREFIX)
                self._made = max(self._made, int(number) + 1 if number.isdecimal() else 0)

    @asynccontextmanager
    async def transaction(self, partitions: Collection[TopicPartition]) -> AsyncIterator[TransactionalProducer]:
        async with self._places:
            try:
                name, identity = await self._take_identity()
            except TransactionError as error:
                raise TransactionRefused(str(error)) from error
            try:
                await self._add(name, identity, partitions)
                yield TransactionalProducer(identity.producer_id, identity.producer_epoch, self._clock.wall_ms())
            except BaseException:
                await self._abort(name, identity)
                raise
            try:
                self._idle[name] = await self._end(name, identity, commit=True)
            except (TransactionError, LogError) as error:
                raise OutcomeUnknown(f"whether transaction {name} is committed is not known: {error}") from error

    async def _take_identity(self) -> tuple[str, ProducerIdentity]:
        if self._idle:
            return self._idle.popitem()
        name = f"{ID_PREFIX}{self._made}"
        self._made += 1
        return name, await self._coordinator.init_producer_id(name, _TIMEOUT_MS)

    async def _add(self, name: str, identity: ProducerIdentity, partitions: Collection[TopicPartition]) -> None:
        try:
            added = await self._coordinator.add_partitions(
                name, identity.producer_id, identity.producer_epoch, partitions
            )
        except TransactionError as error:
            raise TransactionRefused(str(error)) from error
        for tp, error_name in added.items():
            if error_name is TransactionErrorName.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopicOrPartition(f"there is no {tp}")

    async def _abort(self, name: str, identity: ProducerIdentity) -> None:
        try:
            self._idle[name] = await self._end(name, identity, commit=False)
        except (TransactionError, LogError) as error:
            _log.error("transaction %s was not aborted and will time out: %s", name, error)

    async def _end(self, name: str, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        producer_id, producer_epoch = identity.producer_id, identity.producer_epoch
        return await self._coordinator.end(name, producer_id, producer_epoch, commit, bump_epoch=True)
