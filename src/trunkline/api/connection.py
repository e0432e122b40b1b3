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
from typing import Any, Self, TypeVar, cast, overload

from trunkline.api import bodies
from trunkline.api.address import Address, parse_url
from trunkline.api.advertisement import Advertisement, described
from trunkline.api.asking import Asking
from trunkline.api.callbacks import Callback
from trunkline.api.declarations import declare_queue
from trunkline.api.delivery import DEFAULT_LEASE_S, Delivery, checked
from trunkline.api.embedded import EmbeddedBroker
from trunkline.api.errors import ConnectionLost, Refused
from trunkline.api.filters import Filter, routing_key
from trunkline.api.group import Group, Order
from trunkline.api.handle import Handle
from trunkline.api.management import Management
from trunkline.api.message import Message, MessageId
from trunkline.api.outgoing import Outgoing
from trunkline.api.queue import Queue, QueueSettings
from trunkline.api.requests import Requests
from trunkline.api.retry import Retry
from trunkline.api.service import start_service
from trunkline.api.shared_map import SharedMap
from trunkline.api.space import Space
from trunkline.api.stream import Start, Stream
from trunkline.api.subscription import EVENTS, TYPE_HEADER, Since, Subscription
from trunkline.api.transaction import Transaction, Transactions
from trunkline.api.wire import Wire
from trunkline.api.workers import Function, Workers
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link

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
        self._requests: Requests | None = None
        self._transactions: Transactions | None = None
        self._queues: list[Queue[Any]] = []
        self._streams: list[Stream[Any]] = []
        self._asking: Asking | None = None
        self._shared: list[Group | SharedMap[Any]] = []
        self._handles: dict[Handle, None] = {}
        self.workers = Workers()

    # -- life ----------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        if not self._asked.links:
            loop = asyncio.get_running_loop()
            self._embedded = await loop.run_in_executor(None, EmbeddedBroker, self._asked.directory)
            self._address = self._embedded.address
            self.url = self._embedded.url
        self._wire = Wire(self._address.links, self.timeout)
        self._outgoing = Outgoing(self._wire)
        self._requests = Requests(self._wire, self._outgoing)
        self._transactions = Transactions(self._wire, self._outgoing, _declare)
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
        for stream in self._streams:
            await stream.close()
        for shared in self._shared:
            await shared.close()
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

    # -- for the parts of the API --------------------------------------------------------------------------------

    @property
    def wire(self) -> Wire:
        if self._wire is None:
            raise ConnectionLost("the connection is not open: use `async with`, or `await connection.open()`")
        return self._wire

    @property
    def outgoing(self) -> Outgoing:
        assert self.wire is not None
        assert self._outgoing is not None
        return self._outgoing

    @property
    def requests(self) -> Requests:
        assert self.wire is not None
        assert self._requests is not None
        return self._requests

    def keep(self, handle: Handle) -> Handle:
        self._handles[handle] = None
        handle.on_stop = lambda stopped: self._handles.pop(stopped, None)
        return handle

    async def manage(self, do: str, timeout: float | None = None, **arguments: object) -> object:
        """Ask the broker's management; Refused with its reason."""
        return await Management(self.wire, self.outgoing, self.requests).ask(do, timeout, **arguments)

    def kafka(self) -> str:
        """Where the broker's Kafka listener is: as the address says, or the broker itself."""
        if self._address.kafka is not None:
            return self._address.kafka
        link = self.wire.current
        told = None if link is None else link.server_properties.get("trunkline_listeners")
        where = told.get("kafka") if isinstance(told, dict) else None
        if link is None or not isinstance(where, str):
            raise Refused(
                "NOT_IMPLEMENTED", "the broker does not say where its Kafka listener is: add ?kafka=HOST:PORT"
            )
        host, _, port = where.rpartition(":")
        return f"{host or link.address.host}:{port}"

    # -- queues --------------------------------------------------------------------------------------------------

    @overload
    def queue(
        self,
        name: str,
        of: type[T],
        *,
        delivery: Delivery = "at-least-once",
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
        delivery: Delivery = "at-least-once",
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
        delivery: Delivery = "at-least-once",
        retry: Retry | None = None,
        dead_letter: str | None = None,
        lease: float | None = None,
        priorities: int | None = None,
        ordered: bool = False,
    ) -> Queue[Any]:
        """A queue by its name, declared when it is first used. `of` is the type of its messages' values."""
        if checked(delivery) == "timeout" and lease is None:
            lease = DEFAULT_LEASE_S
        settings = QueueSettings(retry, dead_letter, lease, priorities, ordered, delivery)
        queue: Queue[Any] = Queue(self, name, settings, of)
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
        since: Since | None = None,
        timeout: float | None = None,
    ) -> Handle:
        """Call the function for each event that matches, in order, until the handle is stopped or it expires.

        `since` ("earliest", a datetime or a timedelta) begins in the past: with what was kept since somebody first asked for it,
        or advertised the same filter with `keep`.
        """
        return await self.start_subscription(filter, Callback(function), expiry=expiry, since=since, timeout=timeout)

    async def start_subscription(
        self,
        filter: Filter,
        callback: Callback,
        *,
        expiry: float | None = None,
        since: Since | None = None,
        timeout: float | None = None,
    ) -> Handle:
        async def handle(message: Message[Any]) -> None:
            try:
                await callback(message)
            finally:
                await message.ack()

        handling = Handle(handle, 1, no_ack=False)
        if not callback.awaited:
            handling.threads = callback.threads = ThreadPoolExecutor(1, "trunkline-subscription")
        await Subscription(self.wire, filter, since).start(handling, self.wire.deadline(timeout))
        if expiry is not None:
            handling.expire_in(expiry)
        return self.keep(handling)

    # -- streams -------------------------------------------------------------------------------------------------

    @overload
    def stream(self, name: str, of: type[T], *, group: str | None = None, start: Start = "earliest") -> Stream[T]: ...

    @overload
    def stream(self, name: str, *, group: str | None = None, start: Start = "earliest") -> Stream[Any]: ...

    def stream(
        self, name: str, of: Any = object, *, group: str | None = None, start: Start = "earliest"
    ) -> Stream[Any]:
        """The records of a topic: `async for record in t.stream("orders", group="g")`. `start` is earliest, latest or a time."""
        if isinstance(start, str) and start not in {"earliest", "latest"}:
            raise ValueError(f"start is 'earliest', 'latest' or a datetime, not {start!r}")
        stream: Stream[Any] = Stream(self.kafka(), name, group, start, of, self.timeout)
        self._streams.append(stream)
        return stream

    # -- requests ------------------------------------------------------------------------------------------------

    async def request(
        self,
        service: str,
        value: object,
        timeout: float | None = None,
        *,
        headers: Mapping[str, FieldValue] | None = None,
        of: object = object,
    ) -> Message[Any]:
        """The reply of a service. NoRoute if nobody ever served it, RequestFailed if it raised, Timeout."""
        return await self.requests.request(service, value, timeout, headers=headers, into=of)

    async def serve(
        self, service: str, function: Callable[..., object], concurrency: int = 8, *, timeout: float | None = None
    ) -> Handle:
        """Answer requests with what the function returns."""
        return await self.start_serving(service, Callback(function), concurrency, timeout=timeout)

    async def start_serving(
        self, service: str, callback: Callback, concurrency: int, *, timeout: float | None = None
    ) -> Handle:
        deadline = self.wire.deadline(timeout)
        return self.keep(await start_service(self.wire, self.outgoing, service, callback, concurrency, deadline))

    # -- transactions --------------------------------------------------------------------------------------------

    def transaction(self, timeout: float | None = None) -> Transaction:
        """`async with t.transaction() as x`: committed at the end of the block, rolled back if it raises."""
        assert self.wire is not None
        assert self._transactions is not None
        return self._transactions.begin(timeout)

    # -- functions that are run by `trunkline work`, or by `start` ---------------------------------------------------

    def worker(
        self,
        queue: str,
        *,
        concurrency: int = 8,
        where: str | None = None,
        delivery: Delivery = "at-least-once",
        retry: Retry | None = None,
        dead_letter: str | None = None,
        lease: float | None = None,
    ) -> Callable[[Function], Function]:
        """`@t.worker("jobs")`: the function handles the messages of a queue, once it is started."""

        async def begin(callback: Callback) -> Handle:
            found = self.queue(queue, delivery=delivery, retry=retry, dead_letter=dead_letter, lease=lease)
            return await found.start(callback, concurrency, where=where)

        return self.workers.registers(f"worker of {queue}", begin)

    def subscriber(self, filter: Filter) -> Callable[[Function], Function]:
        """`@t.subscriber(Topic("a/+"))`: the function gets these events, once it is started."""
        return self.workers.registers(
            f"subscriber to {filter}", lambda callback: self.start_subscription(filter, callback)
        )

    async def start(self) -> list[Handle]:
        """Start the functions that were decorated."""
        return await self.workers.start(Callback)

    async def advertise(
        self, filter: Filter, *, keep: float | None = None, timeout: float | None = None
    ) -> Advertisement:
        """Say what will be published, until the advertisement is stopped or the connection closed.

        With `keep` it is kept for so many seconds, for those who subscribe with `since`.
        """
        deadline = self.wire.deadline(timeout)
        if keep is not None:
            kept = Subscription(self.wire, filter, "earliest")
            await self.wire.attempt(lambda link, left: kept.keep(link, left, keep), deadline)
        advertisement = Advertisement(self.wire, filter)
        await advertisement.start(deadline)
        return advertisement

    async def advertised(self, filter: Filter, *, timeout: float | None = None) -> int:
        """Does anyone publish this? How many have advertised what may match."""
        found = await self._asked_broker.ask({"do": "advertised", **described(filter)}, timeout)
        return len(cast("list[object]", found["advertisements"]))

    # -- shared state --------------------------------------------------------------------------------------------

    def space(self, name: str) -> Space:
        """A space of tuples and entries by its name, made when it is first used."""
        return Space(self.wire, name, keep=self.keep)

    def shared_map(self, name: str, of: Any = object) -> SharedMap[Any]:
        """A map by its name, made when it is first used. `of` is the type of its values."""
        shared_map: SharedMap[Any] = SharedMap(self._asked_broker, name, of)
        self._shared.append(shared_map)
        return shared_map

    def group(
        self, name: str, *, order: Order = "total", lease: float = 5.0, closed: bool = True, of: Any = object
    ) -> Group:
        """A group of processes by its name; `join` it when its callbacks are set. `of` is the type of its messages."""
        group = Group(self._asked_broker, name, order=order, lease=lease, closed=closed, of=of)
        self._shared.append(group)
        return group

    @property
    def _asked_broker(self) -> Asking:
        if self._asking is None:
            self._asking = Asking(self.wire)
        return self._asking


async def _declare(link: Link, name: str, timeout_s: float) -> None:
    await declare_queue(link, name, {}, timeout_s)


def connect(url: str = "trunkline://127.0.0.1", *, timeout: float = 5.0) -> Connection:
    """A connection, opened by `async with` or `await connection.open()`. `timeout` is each call's, in seconds."""
    return Connection(url, timeout)
