"""`t`: the asynchronous connection, from which everything else is had.

    async with trunkline.aio.connect("trunkline://127.0.0.1") as t:
        await t.queue("jobs").put({"n": 1})

It is closed with its block: what it consumes is stopped, what is with the application goes back to its queue. Queues,
subscriptions and services share its one link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from trunkline.api import bodies
from trunkline.api.address import Address, parse_url
from trunkline.api.callbacks import Callback
from trunkline.api.embedded import EmbeddedBroker
from trunkline.api.errors import ConnectionLost
from trunkline.api.filters import Filter, routing_key
from trunkline.api.handle import Handle
from trunkline.api.message import Message, MessageId
from trunkline.api.outgoing import Outgoing
from trunkline.api.queue import Queue, QueueSettings
from trunkline.api.retry import Retry
from trunkline.api.subscription import EVENTS, TYPE_HEADER, Subscription
from trunkline.api.wire import Wire
from trunkline.broker.messaging.typed_values import FieldValue

T = TypeVar("T")


class Connection:
    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self._asked = parse_url(url)
        self.url = url
        self.timeout = timeout
        self._embedded: EmbeddedBroker | None = None
        self._address: Address = self._asked
        self._wire: Wire | None = None
        self._outgoing: Outgoing | None = None
        self._queues: list[Queue[Any]] = []
        self._handles: dict[Handle, None] = {}

    # -- life ----------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        if not self._asked.links:
            loop = asyncio.get_running_loop()
            self._embedded = await loop.run_in_executor(None, EmbeddedBroker, self._asked.directory)
            self._address = self._embedded.address
            self.url = self._embedded.url
        self._wire = Wire(self._address.links, self.timeout)
        self._outgoing = Outgoing(self._wire)
        try:
            await self._wire.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Stop what runs, and go."""
        for handle in list(self._handles):
            await handle.stop(self.timeout)
        for queue in self._queues:
            await queue.close()
        if self._wire is not None:
            await self._wire.close()
        if self._embedded is not None:
            embedded, self._embedded = self._embedded, None
            await asyncio.get_running_loop().run_in_executor(None, embedded.close)

    async def __aenter__(self) -> Self:
        return self if self._wire is not None else await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def wire(self) -> Wire:
        """For the parts of the API."""
        if self._wire is None:
            raise ConnectionLost("the connection is not open: use `async with`, or `await connection.open()`")
        return self._wire

    @property
    def outgoing(self) -> Outgoing:
        """For the parts of the API."""
        assert self.wire is not None
        assert self._outgoing is not None
        return self._outgoing

    def keep(self, handle: Handle) -> Handle:
        """It is stopped with the connection, unless it was before."""
        self._handles[handle] = None
        handle.on_stop = lambda stopped: self._handles.pop(stopped, None)
        return handle

    # -- queues --------------------------------------------------------------------------------------------------

    @overload
    def queue(
        self,
        name: str,
        of: type[T],
        *,
        retry: Retry | None = None,
        dead_letter: str | None = None,
        lease: float | None = None,
        priorities: int | None = None,
        ordered: bool = False,
    ) -> Queue[T]: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        retry: Retry | None = None,
        dead_letter: str | None = None,
        lease: float | None = None,
        priorities: int | None = None,
        ordered: bool = False,
    ) -> Queue[Any]: ...

    def queue(
        self,
        name: str,
        of: Any = object,
        *,
        retry: Retry | None = None,
        dead_letter: str | None = None,
        lease: float | None = None,
        priorities: int | None = None,
        ordered: bool = False,
    ) -> Queue[Any]:
        """A queue by its name, declared when it is first used. `of` is the type of its messages' values."""
        settings = QueueSettings(retry, dead_letter, lease, priorities, ordered)
        queue: Queue[Any] = Queue(self.wire, self.outgoing, name, settings, of, keep=self.keep)
        self._queues.append(queue)
        return queue

    # -- publish and subscribe -----------------------------------------------------------------------------------

    async def publish(
        self,
        event: object,
        topic: str = "",
        *,
        headers: Mapping[str, FieldValue] | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """To whoever has subscribed to its topic, its content or its type; to nobody, if nobody has."""
        table = dict(headers or {})
        if not isinstance(event, bytes | str | int | float | list | dict | tuple | None):
            table.update({TYPE_HEADER + name: True for name in bodies.type_names(type(event))})
        letter = self.outgoing.letter(event, EVENTS, routing_key(topic), headers=table)
        return await self.outgoing.send(letter, timeout)

    async def subscribe(
        self,
        filter: Filter,
        function: Callable[..., object],
        *,
        expiry: float | None = None,
        timeout: float | None = None,
    ) -> Handle:
        """Call the function for each event that matches, in order, until the handle is stopped or it expires."""
        return await self.start_subscription(filter, Callback(function), expiry=expiry, timeout=timeout)

    async def start_subscription(
        self, filter: Filter, callback: Callback, *, expiry: float | None, timeout: float | None
    ) -> Handle:
        async def handle(message: Message[Any]) -> None:
            try:
                await callback(message)
            finally:
                await message.ack()

        handling = Handle(handle, 1, no_ack=False)
        if not callback.awaited:
            handling.threads = callback.threads = ThreadPoolExecutor(1, "trunkline-subscription")
        await Subscription(self.wire, filter).start(handling, self.wire.deadline(timeout))
        if expiry is not None:
            handling.expire_in(expiry)
        return self.keep(handling)


def connect(url: str = "trunkline://127.0.0.1", *, timeout: float = 5.0) -> Connection:
    """A connection, opened by `async with` or `await connection.open()`. `timeout` is each call's, in seconds."""
    return Connection(url, timeout)
