"""Messaging: exchanges, queues and publications as one thing, for the protocols that have them.

It puts the parts together: the topology (virtual hosts, exchanges, bindings, users), the queues and their cursors, the
publications of a turn, and the turn itself. Protocols declare and delete through it, so that a queue is always in the
routes of its virtual host and in the registry, or in neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trunkline.broker.guard import TopicForbidden
from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.atomic_publication import AtomicPublication
from trunkline.broker.messaging.publishing import Publishing
from trunkline.broker.messaging.queues import DeclaredQueue, Queues
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.arguments import Arguments, table_from_json, to_json
from trunkline.broker.state.topology import Topology, settled
from trunkline.broker.state.virtual_host import Queue, VirtualHost
from trunkline.broker.transactions.coordinator import TransactionCoordinator
from trunkline.broker.turn import Turn
from trunkline.clock import Clock
from trunkline.cursors.queue import Message, QueueSettings
from trunkline.cursors.queue.errors import QueueInUse, QueueLocked, QueueNotEmpty, QueueTopicRefused, TooManyQueues
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.log.store import LogStore
from trunkline.log.ticket import Appended

logger = logging.getLogger(__name__)

# What declarations of one queue must agree on, beside its flags. RabbitMQ compares these arguments and no others.
_COMPARED = (
    "x-expires",
    "x-message-ttl",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-queue-type",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-retain",
    "x-order-by-key",
)


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    name: str
    settings: QueueSettings
    durable: bool = True
    auto_delete: bool = False
    exclusive_owner: object | None = None
    arguments: Arguments | None = None


class Messaging:
    def __init__(self, store: LogStore, clock: Clock, transactions: TransactionCoordinator) -> None:
        self.queues = Queues(store, clock)
        self.turn = Turn(self.queues.runtime.run_turn)
        self.queues.runtime.ask = self.turn.ask_to_deal
        self.queues.runtime.put_off = self.turn.put_off
        self.topology = Topology(store, clock)
        self.publishing = Publishing(self.topology.vhosts, clock, self.turn)
        self._atomic = AtomicPublication(store, transactions, clock)
        self.queues.runtime.dead_letter = self.publishing.dead_letter
        self.queues.on_deleted = self._on_deleted
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._atomic.start()
        await self.topology.start()
        await self.queues.start()
        for declared in self.queues:
            vhost = self.topology.vhosts.get(declared.vhost)
            if vhost is not None:
                self._add(vhost, declared, declared_durable=True)
        self.topology.restore_bindings()

    async def close(self) -> None:
        self.turn.run()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.queues.close()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Carry on with something in the background; `close` ends it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- queues --------------------------------------------------------------------------------------------------

    def _add(self, vhost: VirtualHost, declared: DeclaredQueue, *, declared_durable: bool) -> Queue:
        queue = Queue(
            declared.name,
            declared.vhost,
            declared.cursor,
            durable=declared.durable,
            declared_durable=declared_durable,
            auto_delete=declared.auto_delete,
            exclusive_owner=declared.exclusive_owner,
            arguments=table_from_json(declared.arguments),
        )
        vhost.add_queue(queue)
        self.publishing.by_cursor[declared.cursor] = queue
        return queue

    async def declare_queue(self, vhost: VirtualHost, wish: QueueDeclaration, owner: object) -> Queue:
        """The queue, made if it is not there; Refused if it is there otherwise."""
        existing = vhost.queues.get(wish.name)
        if existing is not None:
            self.check_equivalent(existing, wish, owner)
            return existing
        with _refusals_of(wish.name, vhost):
            declared = await self.queues.declare(
                wish.name,
                wish.settings,
                vhost=vhost.name,
                durable=wish.durable,
                exclusive_owner=wish.exclusive_owner,
                auto_delete=wish.auto_delete,
                arguments={name: to_json(value) for name, value in (wish.arguments or {}).items()},
            )
        existing = vhost.queues.get(wish.name)
        if existing is not None:  # another connection declared it meanwhile
            self.check_equivalent(existing, wish, owner)
            return existing
        return self._add(vhost, declared, declared_durable=wish.durable)

    def check_openable(self, vhost: VirtualHost, name: str) -> None:
        """Refused unless a topic of that name, which is no queue's yet, can be worked off as a queue."""
        with _refusals_of(name, vhost):
            if not self.queues.may_open(name, vhost.name):
                raise refusals.not_found("queue", name, vhost.name)

    async def open_queue(self, vhost: VirtualHost, name: str) -> Queue:
        """The queue on a topic that another protocol made. Its records stay in the topic when they are settled."""
        self.check_openable(vhost, name)
        with _refusals_of(name, vhost):
            declared = await self.queues.open_topic_as_queue(name)
        found = vhost.queues.get(name)  # another connection may have opened it meanwhile
        return found if found is not None else self._add(vhost, declared, declared_durable=True)

    def check_owner(self, queue: Queue, owner: object) -> None:
        if queue.exclusive_owner is not None and queue.exclusive_owner is not owner:
            raise refusals.locked(queue.name, queue.vhost)

    def check_equivalent(self, existing: Queue, wish: QueueDeclaration, owner: object) -> None:
        """Refused unless a queue is declared again just as it is."""
        self.check_owner(existing, owner)
        for argument, received, current in (
            ("durable", wish.durable, existing.declared_durable),
            ("auto_delete", wish.auto_delete, existing.auto_delete),
        ):
            if received != current:
                shown = (f"'{str(received).lower()}'", f"'{str(current).lower()}'")
                raise refusals.inequivalent(argument, "queue", wish.name, existing.vhost, *shown)
        if (wish.exclusive_owner is not None) != existing.exclusive:
            raise refusals.locked(existing.name, existing.vhost)
        given, held = wish.arguments or {}, existing.arguments
        for argument in _COMPARED:
            default = "classic" if argument == "x-queue-type" else None
            value, other = given.get(argument, default), held.get(argument, default)
            if value != other or (value is None and argument in given):
                shown = (refusals.shown(value, other), refusals.shown(other, value))
                raise refusals.inequivalent(argument, "queue", wish.name, existing.vhost, *shown)

    async def delete_queue(
        self, vhost: VirtualHost, queue: Queue, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        try:
            return await self.queues.delete(queue.name, vhost.name, if_unused=if_unused, if_empty=if_empty)
        except QueueInUse:
            raise refusals.precondition(f"queue '{queue.name}' in vhost '{vhost.name}' in use") from None
        except QueueNotEmpty:
            raise refusals.precondition(f"queue '{queue.name}' in vhost '{vhost.name}' not empty") from None

    def delete_owned(self, owner: object) -> None:
        """The owner of exclusive queues is gone: so are they."""
        self.spawn(self.queues.drop_owner(owner))

    def _on_deleted(self, declared: DeclaredQueue) -> None:
        """A queue went: deleted, expired, unused, or its topic was."""
        queue = self.publishing.by_cursor.pop(declared.cursor, None)
        vhost = self.topology.vhosts.get(declared.vhost)
        if queue is None or vhost is None:
            return
        try:
            recorded = self.topology.forget_queue(vhost, queue)
        except LogError as error:
            logger.error("the bindings of queue %s are not removed from the log: %s", queue.name, error)
            return
        if recorded is not None:
            self.spawn(_reported(recorded, queue.name))

    # -- transactions --------------------------------------------------------------------------------------------

    async def publish_atomically(self, letters: Sequence[tuple[Queue, Message]]) -> None:
        """Append all of these or none, and wait until they are stored. See atomic_publication."""
        by_queue: dict[Queue, list[Message]] = {}
        for queue, message in letters:
            by_queue.setdefault(queue, []).append(message)
        self.publishing.flush()
        if by_queue:
            await self._atomic.publish(by_queue)

    async def settlements_stored(self) -> None:
        """Wait until every settlement so far is on disk."""
        await settled(self.queues.runtime.journal.commit())


@contextmanager
def _refusals_of(name: str, vhost: VirtualHost) -> Iterator[None]:
    """What the registry of queues refuses, as a refusal that protocols can tell."""
    try:
        yield
    except QueueLocked:
        raise refusals.locked(name, vhost.name) from None
    except QueueTopicRefused as error:
        raise refusals.precondition(str(error)) from None
    except TopicForbidden as error:
        raise refusals.access_refused(str(error)) from None
    except UnknownTopicOrPartition:
        raise refusals.not_found("queue", name, vhost.name) from None
    except TooManyQueues as error:
        raise Refused(Reason.RESOURCE_ERROR, str(error)) from None


async def _reported(recorded: asyncio.Future[Appended], name: str) -> None:
    try:
        await recorded
    except LogError as error:
        logger.error("the bindings of queue %s are not removed from the log: %s", name, error)
