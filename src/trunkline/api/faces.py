"""The API for code that is not asynchronous: the same names, without `await`.

Each class here is a face of one of the asynchronous ones, which do the work, on the connection's own loop (`portal`). Functions
that are given to `notify` and `subscribe` run in threads, and may block and call `t`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from trunkline.api import connection as core
from trunkline.api import group as core_group
from trunkline.api import handle as core_handle
from trunkline.api import message as core_message
from trunkline.api import queue as core_queue
from trunkline.api import stream as core_stream
from trunkline.api import transaction as core_transaction
from trunkline.api.callbacks import Callback
from trunkline.api.delivery import Delivery
from trunkline.api.filters import Filter
from trunkline.api.group import Order
from trunkline.api.message import MessageId
from trunkline.api.portal import Portal
from trunkline.api.retry import Retry
from trunkline.api.shared_faces import Group, SharedMap, Space, Stoppable
from trunkline.api.subscription import Since
from trunkline.api.workers import Function
from trunkline.broker.messaging.typed_values import FieldValue

T = TypeVar("T")


class Message(Generic[T]):
    """A message in the hands of a consumer. It is settled once."""

    __slots__ = ("_portal", "core")

    def __init__(self, portal: Portal, message: core_message.Message[T]) -> None:
        self._portal = portal
        self.core = message

    def __repr__(self) -> str:
        return repr(self.core)

    @property
    def value(self) -> T:
        """The body as the type that was asked for; BodyRefused if it is not of it."""
        return self.core.value

    @property
    def body(self) -> bytes:
        return self.core.body

    @property
    def id(self) -> MessageId:
        return self.core.id

    @property
    def key(self) -> str | None:
        return self.core.key

    @property
    def headers(self) -> Mapping[str, FieldValue]:
        return self.core.headers

    @property
    def type(self) -> str | None:
        """The name of the class that the sender's value was of."""
        return self.core.type

    @property
    def topic(self) -> str:
        return self.core.topic

    @property
    def attempt(self) -> int:
        """1 the first time."""
        return self.core.attempt

    @property
    def redelivered(self) -> bool:
        return self.core.redelivered

    def ack(self) -> None:
        """It is done with, and gone."""
        self._portal.call(self.core.ack())

    def release(self, delay: float | None = None) -> None:
        """Back into the queue, for another try after so many seconds; None: after the queue's back-off."""
        self._portal.call(self.core.release(delay))

    def reject(self) -> None:
        """Not to be tried again: to the queue's dead letters, if it has them."""
        self._portal.call(self.core.reject())

    def extend(self, seconds: float) -> None:
        """Let the lease end so long from now. LeaseLost if it has ended already."""
        self._portal.call(self.core.extend(seconds))


class Handle:
    """Something that goes on until it is stopped, by `stop` or at the end of its block."""

    def __init__(self, portal: Portal, handle: core_handle.Handle) -> None:
        self._portal = portal
        self.core = handle

    @property
    def handled(self) -> int:
        return self.core.handled

    @property
    def failed(self) -> int:
        return self.core.failed

    @property
    def stopped(self) -> bool:
        return self.core.stopped

    def stop(self, timeout: float | None = None) -> None:
        """Take nothing more, wait for what runs, give the rest back."""
        self._portal.call(self.core.stop(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Queue(Generic[T]):
    def __init__(self, portal: Portal, queue: core_queue.Queue[T]) -> None:
        self._portal = portal
        self.core = queue
        self.name = queue.name

    def __repr__(self) -> str:
        return repr(self.core)

    def put(
        self,
        value: object,
        *,
        key: str | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        delay: float = 0,
        priority: int = 0,
        expires: float | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """Stored when it returns. `delay` and `expires` are seconds; messages of one `key` can be kept in order."""
        return self._portal.call(
            self.core.put(
                value, key=key, headers=headers, delay=delay, priority=priority, expires=expires, timeout=timeout
            )
        )

    def put_all(self, values: Iterable[object], *, timeout: float | None = None) -> list[MessageId]:
        """Many at once: all are sent before the first is confirmed."""
        return self._portal.call(self.core.put_all(list(values), timeout=timeout))

    def cancel(self, message_id: MessageId) -> bool:
        """Drop a message that was put with a delay and still waits; False if it does not."""
        return self._portal.call(self.core.cancel(message_id))

    def get(self, timeout: float | None = None, where: str | None = None) -> Message[T]:
        """The next message, or the next for which `where` is true. Timeout if none comes."""
        return Message(self._portal, self._portal.call(self.core.get(timeout, where)))

    def poll(self, where: str | None = None) -> Message[T] | None:
        """What is there now, or None."""
        found = self._portal.call(self.core.poll(where))
        return None if found is None else Message(self._portal, found)

    def notify(
        self,
        function: Callable[..., object],
        concurrency: int = 8,
        *,
        where: str | None = None,
        timeout: float | None = None,
    ) -> Handle:
        """Call the function for each message: acknowledged when it returns; when it raises, tried again or given up."""
        callback = callback_of(self._portal, function)
        return Handle(
            self._portal, self._portal.call(self.core.start(callback, concurrency, where=where, timeout=timeout))
        )


class Record(Generic[T]):
    """A record of a stream."""

    __slots__ = ("_portal", "core")

    def __init__(self, portal: Portal, record: core_stream.Record[T]) -> None:
        self._portal = portal
        self.core = record

    def __repr__(self) -> str:
        return repr(self.core)

    @property
    def topic(self) -> str:
        return self.core.topic

    @property
    def partition(self) -> int:
        return self.core.partition

    @property
    def offset(self) -> int:
        return self.core.offset

    @property
    def timestamp(self) -> float:
        return self.core.timestamp

    @property
    def key(self) -> str | None:
        return self.core.key

    @property
    def body(self) -> bytes:
        return self.core.body

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        return self.core.headers

    @property
    def value(self) -> T:
        return self.core.value

    def commit(self) -> None:
        """This record and those before it in its partition are done with: the group goes on behind it."""
        self._portal.call(self.core.commit())


class Stream(Generic[T]):
    """The records of a topic, one by one, without end."""

    def __init__(self, portal: Portal, stream: core_stream.Stream[T]) -> None:
        self._portal = portal
        self.core = stream
        self.topic = stream.topic

    def append(self, value: object, *, key: str | None = None, headers: Mapping[str, bytes] | None = None) -> None:
        """Stored when it returns, once, however often it had to be sent. Records of one key stay in one order."""
        self._portal.call(self.core.append(value, key=key, headers=headers))

    def next(self, timeout: float | None = None) -> Record[T]:
        """The next record. Timeout if none comes."""
        return Record(self._portal, self._portal.call(self.core.next(timeout))[0])

    def __iter__(self) -> Iterator[Record[T]]:
        while True:
            yield self.next()

    def close(self) -> None:
        """Leave the group; another member goes on from what was committed."""
        self._portal.call(self.core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transaction:
    """Messages put and messages acknowledged, all or none."""

    def __init__(self, portal: Portal, transaction: core_transaction.Transaction) -> None:
        self._portal = portal
        self.core = transaction

    def put(
        self,
        queue: str,
        value: object,
        *,
        key: str | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        priority: int = 0,
        expires: float | None = None,
    ) -> MessageId:
        """Into a queue, with the commit."""
        return self.core.add_put(queue, value, key=key, headers=headers, priority=priority, expires=expires)

    def publish(self, event: object, topic: str = "", *, headers: Mapping[str, FieldValue] | None = None) -> MessageId:
        """To subscribers, with the commit."""
        return self.core.add_event(event, topic, headers)

    def ack(self, message: Message[Any]) -> None:
        """Done with, if the transaction is committed; else it comes again."""
        self._portal.call(self.core.ack(message.core))

    def commit(self) -> None:
        """LeaseLost if a message is not ours any more; ConnectionLost if it is not known whether it is committed."""
        self._portal.call(self.core.commit())

    def rollback(self) -> None:
        """Nothing is sent; what was acknowledged in it goes back."""
        self._portal.call(self.core.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.rollback()


class Connection:
    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self._portal = Portal()
        self.core = core.Connection(url, timeout)
        try:
            self._portal.call(self.core.open())
        except BaseException:
            self._portal.close()
            raise

    @property
    def url(self) -> str:
        """Where others find the same broker."""
        return self.core.url

    @property
    def timeout(self) -> float:
        return self.core.timeout

    @property
    def portal(self) -> Portal:
        """For the parts of the API."""
        return self._portal

    def manage(self, do: str, timeout: float | None = None, **arguments: object) -> Any:
        """Ask the broker's management; Refused with its reason."""
        return self._portal.call(self.core.manage(do, timeout, **arguments))

    def close(self) -> None:
        """Stop what runs, and go."""
        if self._portal.closed:
            return
        try:
            self._portal.call(self.core.close())
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        return Queue(
            self._portal,
            self.core.queue(
                name,
                of,
                delivery=delivery,
                retry=retry,
                dead_letter=dead_letter,
                lease=lease,
                priorities=priorities,
                ordered=ordered,
            ),
        )

    # -- publish and subscribe -----------------------------------------------------------------------------------

    def publish(
        self,
        event: object,
        topic: str = "",
        *,
        headers: Mapping[str, FieldValue] | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """To whoever has subscribed to its topic, its content or its type; to nobody, if nobody has."""
        return self._portal.call(self.core.publish(event, topic, headers=headers, timeout=timeout))

    def subscribe(
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
        callback = callback_of(self._portal, function)
        started = self.core.start_subscription(filter, callback, expiry=expiry, since=since, timeout=timeout)
        return Handle(self._portal, self._portal.call(started))

    # -- streams -------------------------------------------------------------------------------------------------

    @overload
    def stream(
        self, name: str, of: type[T], *, group: str | None = None, start: core_stream.Start = "earliest"
    ) -> Stream[T]: ...

    @overload
    def stream(self, name: str, *, group: str | None = None, start: core_stream.Start = "earliest") -> Stream[Any]: ...

    def stream(
        self, name: str, of: Any = object, *, group: str | None = None, start: core_stream.Start = "earliest"
    ) -> Stream[Any]:
        """The records of a topic: `for record in t.stream("orders", group="g")`. `start` is earliest, latest or a time."""

        async def make() -> core_stream.Stream[Any]:
            return self.core.stream(name, of, group=group, start=start)

        return Stream(self._portal, self._portal.call(make()))

    # -- requests ------------------------------------------------------------------------------------------------

    def request(
        self,
        service: str,
        value: object,
        timeout: float | None = None,
        *,
        headers: Mapping[str, FieldValue] | None = None,
        of: object = object,
    ) -> Message[Any]:
        """The reply of a service. NoRoute if nobody ever served it, RequestFailed if it raised, Timeout."""
        asked = self.core.request(service, value, timeout, headers=headers, of=of)
        return Message(self._portal, self._portal.call(asked))

    def serve(
        self, service: str, function: Callable[..., object], concurrency: int = 8, *, timeout: float | None = None
    ) -> Handle:
        """Answer requests with what the function returns."""
        callback = callback_of(self._portal, function)
        started = self.core.start_serving(service, callback, concurrency, timeout=timeout)
        return Handle(self._portal, self._portal.call(started))

    # -- transactions --------------------------------------------------------------------------------------------

    def transaction(self, timeout: float | None = None) -> Transaction:
        """`with t.transaction() as x`: committed at the end of the block, rolled back if it raises."""
        return Transaction(self._portal, self.core.transaction(timeout))

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
        return self.core.worker(
            queue,
            concurrency=concurrency,
            where=where,
            delivery=delivery,
            retry=retry,
            dead_letter=dead_letter,
            lease=lease,
        )

    def subscriber(self, filter: Filter) -> Callable[[Function], Function]:
        """`@t.subscriber(Topic("a/+"))`: the function gets these events, once it is started."""
        return self.core.subscriber(filter)

    def start(self) -> list[Handle]:
        """Start the functions that were decorated."""
        started = self._portal.call(self.core.workers.start(partial(callback_of, self._portal)))
        return [Handle(self._portal, handle) for handle in started]

    def advertise(self, filter: Filter, *, keep: float | None = None, timeout: float | None = None) -> Stoppable:
        """Say what will be published, until the advertisement is stopped or the connection closed.

        With `keep` it is kept for so many seconds, for those who subscribe with `since`.
        """
        return Stoppable(self._portal, self._portal.call(self.core.advertise(filter, keep=keep, timeout=timeout)))

    def advertised(self, filter: Filter, *, timeout: float | None = None) -> int:
        """Does anyone publish this? How many have advertised what may match."""
        return self._portal.call(self.core.advertised(filter, timeout=timeout))

    # -- shared state --------------------------------------------------------------------------------------------

    def space(self, name: str) -> Space:
        """A space of tuples and entries by its name, made when it is first used."""
        return Space(self._portal, self.core.space(name))

    def shared_map(self, name: str, of: Any = object) -> SharedMap[Any]:
        """A map by its name, made when it is first used. `of` is the type of its values."""
        return SharedMap(self._portal, self.core.shared_map(name, of))

    def group(
        self, name: str, *, order: Order = "total", lease: float = 5.0, closed: bool = True, of: Any = object
    ) -> Group:
        """A group of processes by its name; `join` it when its callbacks are set. `of` is the type of its messages."""

        async def made() -> core_group.Group:
            return self.core.group(name, order=order, lease=lease, closed=closed, of=of)

        return Group(self._portal, self._portal.call(made()))


def callback_of(portal: Portal, function: Callable[..., object]) -> Callback:
    """A user's function, which knows messages and transactions by their faces."""

    def face(given: object) -> object:
        if isinstance(given, core_message.Message):
            return Message(portal, given)
        return Transaction(portal, given) if isinstance(given, core_transaction.Transaction) else given

    return Callback(function, wrap=face)


def connect(url: str = "trunkline://127.0.0.1", *, timeout: float = 5.0) -> Connection:
    """Connect to a broker; `memory:` and a directory are one in this process. `timeout` is each call's, in seconds."""
    return Connection(url, timeout)
