"""Administration without a protocol: what is listed, moved and defined, and who may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from trunkline.broker.administration.administration import Administration
from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.cursors.queue import Message, Overflow, QueueFull, QueueSettings
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.security.principal import Principal


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[BrokerCore]:
    core = BrokerCore(EmbeddedStore(directory))
    await core.start()
    try:
        yield core
    finally:
        await core.close()


async def declare(core: BrokerCore, name: str, settings: QueueSettings | None = None) -> Queue:
    wish = QueueDeclaration(name, settings or QueueSettings())
    return await core.messaging.queues.declare(core.messaging.topology.vhosts["/"], wish)


@contextmanager
def refused(reason: Reason) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.reason is reason


def may(administration: Administration, principal: Principal, *, change: bool) -> bool:
    try:
        administration.check_may(principal, change=change)
    except Refused:
        return False
    return True


def test_only_administrators_change_and_only_who_is_tagged_looks(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            for tag, looks, changes in (
                ("administrator", True, True),
                ("monitoring", True, False),
                ("management", True, False),
                ("policymaker", True, False),
                ("another", False, False),
            ):
                principal = Principal("somebody", tags=(tag,))
                assert may(core.administration, principal, change=False) == looks
                assert may(core.administration, principal, change=True) == changes

    asyncio.run(test())


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            administration = core.administration
            for listing in (administration.queues, administration.exchanges, administration.bindings):
                with refused(Reason.NOT_FOUND):
                    listing("nowhere")
            with refused(Reason.NOT_FOUND):
                administration.queue("/", "nothing")
            with refused(Reason.NOT_FOUND):
                await administration.peek("/", "nothing", 1)
            with refused(Reason.NOT_FOUND):
                await administration.delete_user("nobody")
            with refused(Reason.NOT_FOUND):
                await administration.put_permission("guest", "nowhere", configure="", write="", read="")
            with refused(Reason.PRECONDITION_FAILED):
                await administration.put_permission("nobody", "/", configure="", write="", read="")
            with refused(Reason.PRECONDITION_FAILED):
                await administration.put_permission("guest", "/", configure="(", write="", read="")

    asyncio.run(test())


def test_a_move_settles_nothing_that_its_destination_does_not_take(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as core:
            source = await declare(core, "source")
            await declare(core, "full", QueueSettings(max_length=0, overflow=Overflow.REJECT_PUBLISH))
            await declare(core, "target")
            await source.cursor.put([Message(b"%d" % number, timestamp_ms=1) for number in range(3)])
            with pytest.raises(QueueFull):
                await core.administration.move("/", "source", "full")
            assert source.cursor.ready == 3
            with refused(Reason.PRECONDITION_FAILED):
                await core.administration.move("/", "source", "source")
            assert await core.administration.move("/", "source", "target", 2) == 2
            peeked = await core.administration.peek("/", "target", 9)
            assert [entry["body"] for entry in peeked] == ["MA==", "MQ=="]
            listed = core.administration.queues("/")
            assert {str(each["name"]): each["ready"] for each in listed} == {"source": 1, "full": 0, "target": 2}

    asyncio.run(test())


def test_definitions_make_the_same_broker_elsewhere(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "one") as core:
            await core.administration.put_vhost("v")
            await core.administration.put_user("worker", "w", ["management"])
            await core.administration.put_permission("worker", "v", configure="^a", write="^b", read="^c")
            await declare(core, "q")
            vhost = core.messaging.topology.vhosts["/"]
            core.messaging.topology.bind(vhost, "amq.topic", "q", "a.#", {"n": 1})
            exported = core.administration.export_definitions()
        async with opened(tmp_path / "two") as core:
            await core.administration.import_definitions(exported)
            assert core.administration.export_definitions() == exported
            assert core.accounts.users["worker"].accepts(b"w")

    asyncio.run(test())
