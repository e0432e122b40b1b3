"""A channel of a link: calls answered in order, publications confirmed in bulk, deliveries handed to who consumes.

Publications of a channel in confirm mode are numbered by the broker in the order in which they are sent, so what waits for
its confirm is a line: an acknowledgement of number n completes all up to n at once. Nobody waits between two of them: as many
are under way as the caller sends.

A refusal by the broker closes the channel; everything that waits on it fails with it, and consumers are told (`on_end`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link_errors import LinkRefused, LinkTimeout, NotTaken, Returned
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import Properties, decode_properties, encode_method, encode_publish
from trunkline.protocols.amqp.errors import REPLY_NAMES
from trunkline.protocols.amqp.frames import Content, Deliver

R = TypeVar("R", bound=m.Method)

Delivered = Callable[[Deliver], None]


class Writer(Protocol):
    """The link, as its channels see it."""

    loop: asyncio.AbstractEventLoop
    frame_max_bytes: int
    blocked: str | None

    def write(self, data: bytes) -> None: ...

    def send(self, channel: int, method: m.Method) -> None: ...

    def forget(self, channel: LinkChannel) -> None: ...


class _Call(NamedTuple):
    reply: type[m.Method]
    answer: asyncio.Future[m.Method]
    deadline: float
    name: str


class Outcome(Protocol):
    """What is told of a publication: a future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class Bulk:
    """The outcome of many publications, as one future: the errors of those that failed, by their place."""

    __slots__ = ("errors", "left", "over")

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.left = count
        self.errors: dict[int, Exception] = {}
        self.over: asyncio.Future[dict[int, Exception]] = loop.create_future()

    def ended(self) -> None:
        self.left -= 1
        if not self.left and not self.over.done():
            self.over.set_result(self.errors)


class _Part:
    """One publication of a bulk."""

    __slots__ = ("_bulk", "_ended", "_place")

    def __init__(self, bulk: Bulk, place: int) -> None:
        self._bulk = bulk
        self._place = place
        self._ended = False

    def done(self) -> bool:
        return self._ended

    def set_result(self, result: None, /) -> None:
        self._ended = True
        self._bulk.ended()

    def set_exception(self, exception: Exception, /) -> None:
        self._ended = True
        self._bulk.errors[self._place] = exception
        self._bulk.ended()


class _Publication(NamedTuple):
    sequence: int
    stored: Outcome
    deadline: float
    message_id: str | None


class LinkChannel:
    def __init__(self, link: Writer, number: int) -> None:
        self.link = link
        self.number = number
        self.ended: Exception | None = None
        self.on_end: Callable[[Exception], None] | None = None
        self.on_cancel: Callable[[str], None] | None = None  # the broker took a consumer off, by its tag
        self.on_return: Callable[[Properties], None] | None = None  # a mandatory publication found no queue
        self._calls: deque[_Call] = deque()
        self._publications: deque[_Publication] = deque()
        self._sequence = 0
        self._returned: set[str] = set()
        self._consumers: dict[bytes, Delivered] = {}
        self._once: dict[str, asyncio.Future[None]] = {}  # consumers that the broker cancels by itself

    # -- calls ---------------------------------------------------------------------------------------------------

    def ask(self, method: m.Method, reply: type[R], timeout_s: float) -> asyncio.Future[R]:
        """Send a method; the future is its answer. Fails with LinkTimeout, LinkLost or LinkRefused."""
        loop = self.link.loop
        answer: asyncio.Future[m.Method] = loop.create_future()
        if self.ended is not None:
            answer.set_exception(self.ended)
        else:
            self._calls.append(_Call(reply, answer, loop.time() + timeout_s, type(method).NAME))
            self.link.write(encode_method(self.number, method))
        return answer  # type: ignore[return-value]  # `method` completes it with a `reply`

    async def call(self, method: m.Method, reply: type[R], timeout_s: float) -> R:
        return await self.ask(method, reply, timeout_s)

    def send(self, method: m.Method) -> None:
        """Send a method that is not answered."""
        if self.ended is None:
            self.link.write(encode_method(self.number, method))

    async def close(self, timeout_s: float) -> None:
        if self.ended is None:
            await self.call(m.ChannelClose(200, "Goodbye"), m.ChannelCloseOk, timeout_s)
            self.end(LinkRefused("CHANNEL_CLOSED", "the channel is closed"))
            self.link.forget(self)

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(
        self,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        timeout_s: float,
        *,
        mandatory: bool = False,
        message_id: str | None = None,
    ) -> asyncio.Future[None]:
        """Publish on a channel in confirm mode; the future completes with the confirm.

        Fails with Returned, NotTaken, LinkTimeout, LinkLost or LinkRefused. A mandatory publication is known by its id.
        """
        link = self.link
        stored: asyncio.Future[None] = link.loop.create_future()
        if self.ended is not None:
            stored.set_exception(self.ended)
            return stored
        self._sequence += 1
        self._publications.append(_Publication(self._sequence, stored, link.loop.time() + timeout_s, message_id))
        link.write(
            encode_publish(
                self.number, exchange, routing_key, properties, body, link.frame_max_bytes, mandatory=mandatory
            )
        )
        return stored

    def publish_all(
        self, letters: Sequence[tuple[str, str, bytes, bytes, str]], timeout_s: float, *, mandatory: bool = False
    ) -> asyncio.Future[dict[int, Exception]]:
        """Publish many (exchange, routing key, properties, body, message id), waited for together.

        The future is the errors of those that failed, by their place: as of `publish`.
        """
        link = self.link
        bulk = Bulk(len(letters), link.loop)
        if self.ended is not None or not letters:
            ended = self.ended
            bulk.over.set_result({} if ended is None else dict.fromkeys(range(len(letters)), ended))
            return bulk.over
        deadline = link.loop.time() + timeout_s
        sequence, line, number, frame_max = self._sequence, self._publications, self.number, link.frame_max_bytes
        frames: list[bytes] = []
        for place, (exchange, routing_key, properties, body, message_id) in enumerate(letters):
            sequence += 1
            line.append(_Publication(sequence, _Part(bulk, place), deadline, message_id))
            frames.append(
                encode_publish(number, exchange, routing_key, properties, body, frame_max, mandatory=mandatory)
            )
        self._sequence = sequence
        link.write(b"".join(frames))
        return bulk.over

    def publish_unconfirmed(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, *, mandatory: bool = False
    ) -> None:
        """Publish on a channel that is not in confirm mode."""
        if self.ended is not None:
            raise self.ended
        link = self.link
        link.write(
            encode_publish(
                self.number, exchange, routing_key, properties, body, link.frame_max_bytes, mandatory=mandatory
            )
        )

    def confirm(self, tag: int, multiple: bool, *, refused: bool) -> None:
        line = self._publications
        if multiple or not line or line[0].sequence == tag:
            while line and line[0].sequence <= tag:
                self._end_publication(line.popleft(), refused=refused)
            return
        for place, publication in enumerate(line):
            if publication.sequence == tag:
                del line[place]
                self._end_publication(publication, refused=refused)
                return

    def _end_publication(self, publication: _Publication, *, refused: bool) -> None:
        stored = publication.stored
        if stored.done():
            return
        if refused:
            stored.set_exception(NotTaken("a queue did not take the message"))
        elif self._returned and publication.message_id in self._returned:
            self._returned.discard(publication.message_id or "")
            stored.set_exception(Returned("there is no queue for the message"))
        else:
            stored.set_result(None)

    # -- consuming -----------------------------------------------------------------------------------------------

    async def consume(
        self,
        queue: str,
        tag: str,
        delivered: Delivered,
        timeout_s: float,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> None:
        self._consumers[tag.encode()] = delivered
        method = m.BasicConsume(0, queue, tag, False, no_ack, exclusive, False, dict(arguments or {}))
        try:
            await self.call(method, m.BasicConsumeOk, timeout_s)
        except BaseException:
            self._consumers.pop(tag.encode(), None)
            raise

    async def consume_once(
        self, queue: str, tag: str, timeout_s: float, arguments: Mapping[str, FieldValue]
    ) -> Deliver | None:
        """A consumer that the broker cancels when it has given it what was there (`x-get`, Trunkline's own)."""
        found: list[Deliver] = []
        over: asyncio.Future[None] = self.link.loop.create_future()
        self._once[tag] = over
        try:
            await self.consume(queue, tag, found.append, timeout_s, arguments=arguments)
            async with asyncio.timeout(timeout_s):
                await over
        except TimeoutError:
            raise LinkTimeout("the broker did not answer in time") from None
        finally:
            self._once.pop(tag, None)
        return found[0] if found else None

    def cancel(self, tag: str, timeout_s: float) -> asyncio.Future[m.BasicCancelOk]:
        """What is on its way still reaches the consumer; nothing does after the answer."""
        return self.ask(m.BasicCancel(tag, False), m.BasicCancelOk, timeout_s)

    def deliver(self, event: Deliver) -> None:
        delivered = self._consumers.get(event.consumer_tag)
        if delivered is not None:
            delivered(event)

    # -- what the broker sends -------------------------------------------------------------------------------------

    def content(self, event: Content) -> None:
        method = event.method
        if isinstance(method, m.BasicDeliver):
            tag = method.consumer_tag.encode()
            self.deliver(
                Deliver(
                    event.channel,
                    tag,
                    method.delivery_tag,
                    method.redelivered,
                    method.exchange,
                    method.routing_key,
                    event.properties,
                    event.body,
                )
            )
        elif isinstance(method, m.BasicReturn):
            returned = decode_properties(event.properties)
            if self.on_return is not None:
                self.on_return(returned)
            elif returned.message_id is not None:
                self._returned.add(returned.message_id)

    def method(self, method: m.Method) -> None:
        if isinstance(method, m.ChannelClose):
            self.link.send(self.number, m.ChannelCloseOk())
            name = REPLY_NAMES.get(method.reply_code, str(method.reply_code))
            self.link.forget(self)
            self.end(LinkRefused(name, method.reply_text.removeprefix(f"{name} - ")))
        elif isinstance(method, m.BasicCancel):
            self._consumers.pop(method.consumer_tag.encode(), None)
            once = self._once.pop(method.consumer_tag, None)
            if once is not None:
                if not once.done():
                    once.set_result(None)
            elif self.on_cancel is not None:
                self.on_cancel(method.consumer_tag)
        elif self._calls and isinstance(method, self._calls[0].reply):
            call = self._calls.popleft()
            if isinstance(method, m.BasicCancelOk):
                self._consumers.pop(method.consumer_tag.encode(), None)
            if not call.answer.done():
                call.answer.set_result(method)

    def expire(self, now: float) -> None:
        """Fail what waited too long. It stays in line: its answer may still come, and others' come after it."""
        for call in self._calls:
            if call.deadline < now and not call.answer.done():
                call.answer.set_exception(LinkTimeout(f"the broker did not answer {call.name} in time"))
        for publication in self._publications:
            if publication.deadline >= now:
                break  # nearly always in the order of their deadlines; a shorter one behind waits a little longer
            if not publication.stored.done():
                blocked = self.link.blocked
                why = "confirm the message in time" if blocked is None else f"take the message: {blocked}"
                publication.stored.set_exception(LinkTimeout(f"the broker did not {why}"))

    def end(self, why: Exception) -> None:
        if self.ended is not None:
            return
        self.ended = why
        waiting: list[asyncio.Future[m.Method] | Outcome] = [call.answer for call in self._calls]
        waiting += [publication.stored for publication in self._publications]
        waiting += self._once.values()
        for each in waiting:
            if not each.done():
                each.set_exception(why)
                if isinstance(each, asyncio.Future):
                    each.exception()  # whoever stopped waiting for it is not reported
        self._calls.clear()
        self._publications.clear()
        self._consumers.clear()
        if self.on_end is not None:
            self.on_end(why)
