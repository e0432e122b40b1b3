"""Messaging: exchanges, queues and publications as one thing, for the protocols that have them.

It puts the parts together: the topology (virtual hosts, exchanges, bindings, users), the publications of a turn, the queues
and their cursors, and publications that are all or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

from trunkline.broker.messaging.atomic_publication import AtomicPublication
from trunkline.broker.messaging.publishing import Publishing
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.queue_topics import TopicFollower
from trunkline.broker.messaging.queues import Queues
from trunkline.broker.messaging.settlements import by_cursor
from trunkline.broker.state.notifications import Notifications
from trunkline.broker.state.topology import Topology, settled
from trunkline.broker.turn import Turn
from trunkline.clock import Clock
from trunkline.cursors.queue import Delivery, Message
from trunkline.log.store import LogStore
from trunkline.log.ticket import Appended


class Messaging:
    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        turn: Turn,
        followers: TopicFollower,
    ) -> None:
        self.turn = turn
        self.topology = Topology(store, clock)
        self.publishing = Publishing(self.topology.vhosts, clock, turn)
        self.queues = Queues(
            store, clock, topology=self.topology, turn=turn, dead_letters=self.publishing, followers=followers
        )
        self.notifications = Notifications(store, clock)
        self._atomic = AtomicPublication(store)
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.topology.start()
        await self.queues.start()
        self.topology.restore_bindings()
        await self.notifications.start()

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

    # -- transactions --------------------------------------------------------------------------------------------

    async def publish_atomically(
        self, letters: Sequence[tuple[Queue, Message]], acknowledged: Sequence[Delivery] = ()
    ) -> None:
        """Append all of these or none, and wait until they are stored. See atomic_publication.

        With them, or not at all, the deliveries are acknowledged: they are settled when this returns.
        """
        by_queue: dict[Queue, list[Message]] = {}
        for queue, message in letters:
            by_queue.setdefault(queue, []).append(message)
        self.publishing.flush()
        settling = by_cursor(acknowledged)
        records = [
            (cursor, record)
            for cursor, offsets in settling.items()
            if (record := cursor.committing(offsets)) is not None
        ]
        if by_queue:
            await self._atomic.publish(by_queue, [record for _, record in records])
        for cursor, offsets in settling.items():
            cursor.acknowledge(offsets)
        if by_queue:
            for cursor, record in records:
                cursor.forget_committed(record)

    def commit_settlements(self) -> asyncio.Future[Appended] | None:
        """Completes when every settlement so far is on disk; None: it is."""
        return self.queues.runtime.journal.commit()

    async def settlements_stored(self) -> None:
        """Wait until every settlement so far is on disk."""
        await settled(self.commit_settlements())
