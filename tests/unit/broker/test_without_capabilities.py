"""A broker on a store that can do what every store must, and nothing else: it does without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerLimits, BrokerSettings
from trunkline.broker.messaging.queue import QueueDeclaration
from trunkline.cursors.queue import Message, QueueSettings
from trunkline.log.memory.store import MemoryStore
from trunkline.log.store import Durability


class BareStore(MemoryStore):
    ephemeral_topics = None  # type: ignore[assignment]
    client_watches = None
    log_directories = None


def run(scenario: Callable[[BrokerCore], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        core = BrokerCore(BareStore(), settings=BrokerSettings(limits=BrokerLimits(min_free_bytes=1 << 60)))
        await core.start()
        await scenario(core)
        await core.close()

    asyncio.run(main())


def test_a_queue_that_is_not_durable_has_an_ordinary_topic_that_goes_with_it() -> None:
    async def scenario(core: BrokerCore) -> None:
        vhost = core.messaging.topology.vhosts["/"]
        queue = await core.messaging.queues.declare(
            vhost, QueueDeclaration("reply", QueueSettings(), durable=False), None
        )
        info = core.store.topic("reply")
        assert info is not None
        assert not info.ephemeral
        await queue.cursor.put([Message(b"x")], Durability.NONE)
        assert queue.cursor.ready == 1
        await core.messaging.queues.delete(queue)
        assert core.store.topic("reply") is None

    run(scenario)


def test_names_that_collide_are_avoided_where_an_ordinary_topic_would_be_refused() -> None:
    async def scenario(core: BrokerCore) -> None:
        await core.create_topic("re.ply", 1)
        vhost = core.messaging.topology.vhosts["/"]
        await core.messaging.queues.declare(vhost, QueueDeclaration("re_ply", QueueSettings(), durable=False), None)
        assert core.store.topic("re_ply") is None
        assert len([name for name in core.store.topics() if not name.startswith("__")]) == 2

    run(scenario)


def test_nobody_waits_for_space_that_cannot_be_told() -> None:
    async def scenario(core: BrokerCore) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert core.space.blocked is None
        assert await core.directories() == ()

    run(scenario)
