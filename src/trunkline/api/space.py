"""A space: tuples and entries that anybody writes, and reads or takes by what they look like (Linda, JavaSpaces).

    s = t.space("s")
    await s.write(("job", 17, "new"), lease=60)
    await s.take(("job", int, "new"), timeout=5)      # exactly one taker gets it
    await s.read(("job", int, ...))                   # it stays

A space is a queue, and `take` is selective receive: the broker decides who gets a tuple, and it is gone on disk before `take`
returns. If the connection is lost in that moment, it is not known whether it was taken, and the error says so. With `timeout=0`
`read` and `take` do not wait: None if nothing matches now. `read` and `take` find the oldest match.

In a transaction (`async with s.transaction() as x`) what is written is there for others when it commits, what is taken is gone then,
and is back if it does not; it does not see its own writes.

    queue       space.<name>, durable
    exchange    space.<name>, which routes by content: to the queue, and to whoever asked to be notified
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from trunkline.api import bodies, templates
from trunkline.api.callbacks import Callback
from trunkline.api.errors import ConnectionLost, Timeout
from trunkline.api.handle import Handle
from trunkline.api.intake import Intake
from trunkline.api.message import Message
from trunkline.api.wire import Wire, explained
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, LinkRefused, LinkTimeout
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import Properties, encode_properties
from trunkline.protocols.amqp.frames import Deliver

PREFIX = "space."
_PERSISTENT = 2
_AHEAD = 256
_MOST_IDLE = 16  # channels kept for the next who takes
_tags = itertools.count(1)


class Space:
    def __init__(self, wire: Wire, name: str, *, keep: Callable[[Handle], Handle]) -> None:
        """`keep` is told of what goes on until it is stopped."""
        self.name = name
        self._address = PREFIX + name
        self._wire = wire
        self._keep = keep
        self._declared: Link | None = None
        self._declaring = asyncio.Lock()
        self._idle: list[LinkChannel] = []  # in tx mode

    def __repr__(self) -> str:
        return f"Space({self.name!r})"

    # -- write -------------------------------------------------------------------------------------------------------

    async def write(self, entry: object, *, lease: float | None = None, timeout: float | None = None) -> None:
        """Stored when it returns; gone after `lease` seconds, unless it is taken before."""
        body = templates.encoded(entry)
        properties = _properties(lease)

        async def publish(link: Link, timeout_s: float) -> None:
            await self._declare(link, timeout_s)
            channel = await self._wire.publishing(link, timeout_s)
            try:
                await channel.publish(self._address, "", properties, body, timeout_s)
            except (LinkLost, LinkTimeout) as error:
                # To write it again could be to write it twice.
                raise ConnectionLost(f"it is not known whether it was written: {error}") from None

        await self._wire.attempt(publish, self._wire.deadline(timeout))

    # -- take --------------------------------------------------------------------------------------------------------

    async def take(self, template: Any, timeout: float | None = None) -> Any:
        """The oldest that matches, which is gone then. Timeout if none comes in time; None at once if that is 0."""
        found = await self._wire.attempt(
            lambda link, left_s: self._first(link, template, timeout, left_s), self._patience(timeout)
        )
        if found is None:
            if timeout == 0:
                return None
            raise Timeout("nothing that matches came in time")
        channel, delivered = found
        channel.send(m.BasicAck(delivered.tag, False))
        try:
            await channel.call(m.TxCommit(), m.TxCommitOk, self._wire.timeout_s)
        except (LinkLost, LinkTimeout) as error:
            raise ConnectionLost(f"it is not known whether it was taken: {error}") from None
        except LinkRefused as error:
            raise explained(error) from None
        self._put_aside(channel)
        return templates.decoded(delivered.body, template)

    def _patience(self, timeout: float | None) -> float:
        """Until when a call is tried: one that need not wait for a match still has to reach the broker."""
        return self._wire.deadline(timeout) + (self._wire.timeout_s if timeout is not None else 0.0)

    async def _first(
        self, link: Link, template: object, timeout: float | None, left_s: float
    ) -> tuple[LinkChannel, Deliver] | None:
        """The first match, delivered on a transactional channel and not acknowledged yet."""
        await self._declare(link, left_s)
        channel = await self._channel(link, left_s)
        try:
            delivered = await self.first_on(channel, template, timeout)
        except BaseException:
            channel.send(m.ChannelClose(200, "Goodbye"))  # what it was given goes back
            raise
        if delivered is None:
            self._put_aside(channel)
            return None
        return channel, delivered

    async def first_on(self, channel: LinkChannel, template: object, timeout: float | None) -> Deliver | None:
        """For transactions."""
        call_s = self._wire.timeout_s
        arguments: dict[str, FieldValue] = {"x-filter": templates.filter_of(template)}
        tag = f"take-{next(_tags)}"
        if timeout == 0:
            return await channel.consume_once(self._address, tag, call_s, {**arguments, "x-get": True})
        arrived: asyncio.Future[Deliver] = asyncio.get_running_loop().create_future()

        def take(delivered: Deliver) -> None:
            if not arrived.done():
                arrived.set_result(delivered)

        def ended(why: Exception) -> None:
            if not arrived.done():
                arrived.set_exception(why)

        channel.on_end = ended
        await channel.call(m.BasicQos(0, 1, False), m.BasicQosOk, call_s)
        await channel.consume(self._address, tag, take, call_s, arguments=arguments)
        await asyncio.wait([arrived], timeout=call_s if timeout is None else timeout)
        # Nothing is delivered after the answer to this, and at most one was before: the prefetch sees to that.
        await channel.cancel(tag, call_s)
        return await arrived if arrived.done() else None

    # -- read --------------------------------------------------------------------------------------------------------

    async def read(self, template: Any, timeout: float | None = None) -> Any:
        """The oldest that matches, which stays. Timeout if none comes in time; None at once if that is 0."""
        found = await self._look(template)
        if found is None and timeout != 0:
            found = await self._wait_to_read(template, self._wire.deadline(timeout))
        if found is None:
            if timeout == 0:
                return None
            raise Timeout("nothing that matches came in time")
        return templates.decoded(found.body, template)

    async def _look(self, template: object) -> Deliver | None:
        arguments: dict[str, FieldValue] = {"x-filter": templates.filter_of(template), "x-browse": True}

        async def look(link: Link, left_s: float) -> Deliver | None:
            await self._declare(link, left_s)
            channel = await self._channel(link, left_s)
            found = await channel.consume_once(self._address, f"read-{next(_tags)}", left_s, arguments)
            self._put_aside(channel)
            return found

        return await self._wire.attempt(look, self._wire.deadline(None))

    async def _wait_to_read(self, template: object, deadline: float) -> Deliver | None:
        """Look whenever something that matches was written."""
        written = asyncio.Event()
        written.set()  # something may have been written before we were told of it

        async def told(message: Message[Any]) -> None:
            written.set()

        handle = await self._notified(template, told, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    await written.wait()
                    written.clear()
                    if (found := await self._look(template)) is not None:
                        return found
        except TimeoutError:
            return None
        finally:
            await handle.stop()

    # -- notify ------------------------------------------------------------------------------------------------------

    async def notify(self, template: Any, function: Callable[[Any], object]) -> Handle:
        """Call the function with everything that is written from now on and matches, until the handle is stopped."""
        return self._keep(await self.start(template, function, self._wire.deadline(None)))

    async def start(self, template: Any, function: Callable[[Any], object], deadline: float) -> Handle:
        callback = Callback(function)
        threads = None if callback.awaited else ThreadPoolExecutor(1, "trunkline-space")

        async def call(message: Message[Any]) -> None:
            entry = templates.decoded(message.body, template)
            if threads is not None:
                await asyncio.get_running_loop().run_in_executor(threads, function, entry)
            else:
                result: Any = function(entry)
                await result

        handle = await self._notified(template, call, deadline)
        handle.threads = threads
        return handle

    async def _notified(self, template: object, call: Callable[[Message[Any]], Any], deadline: float) -> Handle:
        queue = f"{self._address}.notify-{secrets.token_hex(8)}"
        binding: dict[str, FieldValue] = {"x-filter": templates.filter_of(template)}

        async def prepare(link: Link, channel: LinkChannel, timeout_s: float) -> str:
            await self._declare(link, timeout_s)
            declaration = m.QueueDeclare(0, queue, False, False, True, True, False, {})
            await channel.call(declaration, m.QueueDeclareOk, timeout_s)
            await channel.call(m.QueueBind(0, queue, self._address, "", False, binding), m.QueueBindOk, timeout_s)
            return queue

        handle = Handle(call, 1, no_ack=True)
        intake = Intake(self._wire, prepare, handle.arrived, prefetch=_AHEAD, no_ack=True, lost=handle.lost)
        return await handle.start(intake, deadline)

    # -- transactions ------------------------------------------------------------------------------------------------

    def transaction(self) -> SpaceTransaction:
        """`async with s.transaction() as x`: x.write, x.take; an exception rolls back."""
        return SpaceTransaction(self, self._wire, self._declare)

    # -- channels ----------------------------------------------------------------------------------------------------

    async def _declare(self, link: Link, timeout_s: float) -> None:
        if self._declared is link:
            return
        async with self._declaring:
            if self._declared is link:
                return
            channel = await link.channel(timeout_s)
            name = self._address
            exchange = m.ExchangeDeclare(0, name, "content", False, True, False, False, False, {})
            await channel.call(exchange, m.ExchangeDeclareOk, timeout_s)
            await channel.call(
                m.QueueDeclare(0, name, False, True, False, False, False, {}), m.QueueDeclareOk, timeout_s
            )
            await channel.call(m.QueueBind(0, name, name, "", False, {"x-filter": "true"}), m.QueueBindOk, timeout_s)
            await channel.close(timeout_s)
            self._declared = link

    async def _channel(self, link: Link, timeout_s: float) -> LinkChannel:
        while self._idle:
            channel = self._idle.pop()
            if channel.ended is None and channel.link is link:
                return channel
        return await transactional(link, timeout_s)

    def _put_aside(self, channel: LinkChannel) -> None:
        channel.on_end = None
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(channel)
        else:
            channel.send(m.ChannelClose(200, "Goodbye"))


class SpaceTransaction:
    def __init__(self, space: Space, wire: Wire, declare: Callable[[Link, float], Any]) -> None:
        self._space = space
        self._wire = wire
        self._declare = declare
        self._channel: LinkChannel | None = None

    async def begin(self) -> Self:
        async def open_channel(link: Link, timeout_s: float) -> LinkChannel:
            await self._declare(link, timeout_s)
            return await transactional(link, timeout_s)

        self._channel = await self._wire.attempt(open_channel, self._wire.deadline(None))
        return self

    async def write(self, entry: object, *, lease: float | None = None) -> None:
        """There for others once the transaction has committed."""
        try:
            self._opened.publish_unconfirmed(
                PREFIX + self._space.name, "", _properties(lease), templates.encoded(entry)
            )
        except (LinkLost, LinkRefused) as error:
            raise explained(error) from None

    async def take(self, template: Any, timeout: float | None = None) -> Any:
        """Hidden from others from now on, gone when the transaction commits."""
        channel = self._opened
        try:
            delivered = await self._space.first_on(channel, template, timeout)
        except (LinkLost, LinkRefused, LinkTimeout) as error:
            raise explained(error) from None
        if delivered is None:
            if timeout == 0:
                return None
            raise Timeout("nothing that matches came in time")
        channel.send(m.BasicAck(delivered.tag, False))
        return templates.decoded(delivered.body, template)

    @property
    def _opened(self) -> LinkChannel:
        if self._channel is None:
            raise ConnectionLost("the transaction is over")
        return self._channel

    async def commit(self) -> None:
        """On disk when it returns."""
        channel, self._channel = self._opened, None
        try:
            await channel.call(m.TxCommit(), m.TxCommitOk, self._wire.timeout_s)
            await channel.close(self._wire.timeout_s)
        except (LinkLost, LinkRefused, LinkTimeout) as error:
            raise explained(error) from None

    async def roll_back(self) -> None:
        """What was taken is back."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        try:
            await channel.close(self._wire.timeout_s)  # a channel that ends gives everything back
        except (LinkLost, LinkRefused, LinkTimeout):
            pass  # so does a link that is lost

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit()
        else:
            await self.roll_back()


async def transactional(link: Link, timeout_s: float) -> LinkChannel:
    channel = await link.channel(timeout_s)
    await channel.call(m.TxSelect(), m.TxSelectOk, timeout_s)
    return channel


def _properties(lease: float | None) -> bytes:
    return encode_properties(
        Properties(
            content_type=bodies.JSON,
            delivery_mode=_PERSISTENT,
            expiration=None if lease is None else str(round(lease * 1000)),
        )
    )
