"""A queue: put, get, poll, notify, cancel.

It is declared when it is first used: with its settings if some are given, else only if it is not there. So whoever puts into a
queue need not repeat how its workers declared it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trunkline.api.callbacks import Callback
from trunkline.api.errors import BodyRefused, NoRoute
from trunkline.api.handle import Handle
from trunkline.api.intake import Intake
from trunkline.api.message import Message, MessageId
from trunkline.api.outgoing import Letter, Outgoing
from trunkline.api.receiver import Receiver
from trunkline.api.retry import Retry
from trunkline.api.wire import Wire
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkRefused
from trunkline.protocols.amqp import methods as m

T = TypeVar("T")

DELAYS = "trunkline.delay"  # the exchange for messages that wait
_DELAY_HEADER = "x-delay"
_AHEAD = 2  # messages on their way for each that a worker works on


@dataclass(frozen=True, slots=True)
class QueueSettings:
    retry: Retry | None = None
    dead_letter: str | None = None
    lease: float | None = None
    priorities: int | None = None
    ordered: bool = False

    def arguments(self) -> dict[str, FieldValue]:
        """As AMQP's declaration says it."""
        found: dict[str, FieldValue] = {}
        if self.retry is not None:
            found["x-delivery-limit"] = self.retry.times
            if self.retry.backoff:
                found["x-backoff-ms"] = round(self.retry.backoff * 1000)
                found["x-max-backoff-ms"] = round(self.retry.longest * 1000)
        if self.dead_letter is not None:
            found["x-dead-letter-exchange"] = ""
            found["x-dead-letter-routing-key"] = self.dead_letter
        if self.lease is not None:
            found["x-lease-ms"] = max(1, round(self.lease * 1000))
        if self.priorities is not None:
            found["x-max-priority"] = self.priorities
        if self.ordered:
            found["x-order-by-key"] = True
        return found


class Queue(Generic[T]):
    """`Queue[T]`: its messages' values are made a `T`, which `of` says."""

    def __init__(
        self,
        wire: Wire,
        outgoing: Outgoing,
        name: str,
        settings: QueueSettings,
        of: object = object,
        *,
        keep: Callable[[Handle], Handle],
    ) -> None:
        """`keep` is told of what goes on until it is stopped."""
        self._keep = keep
        self.name = name
        self._wire = wire
        self._outgoing = outgoing
        self._settings = settings
        self._of = of
        self._declared = False
        self._delays = False
        self._declaring = asyncio.Lock()
        self._receivers: dict[str | None, Receiver] = {}

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # -- put -----------------------------------------------------------------------------------------------------

    async def put(
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
        if not self._declared:
            await self._wire.attempt(self._declare, self._wire.deadline(timeout))
        if delay:
            headers = {**(headers or {}), _DELAY_HEADER: round(delay * 1000)}
            if not self._delays:
                await self._wire.attempt(self._prepare_delays, self._wire.deadline(timeout))
        letter = self._outgoing.letter(
            value,
            DELAYS if delay else "",
            self.name,
            key=key,
            headers=headers,
            priority=priority,
            expires=expires,
            mandatory=True,
        )
        return await self._send(letter, timeout)

    async def put_all(self, values: Iterable[object], *, timeout: float | None = None) -> list[MessageId]:
        """Many at once: all are sent before the first is confirmed."""
        if not self._declared:
            await self._wire.attempt(self._declare, self._wire.deadline(timeout))
        letters = [self._outgoing.letter(value, "", self.name, mandatory=True) for value in values]
        return list(await asyncio.gather(*[self._send(letter, timeout) for letter in letters]))

    async def _send(self, letter: Letter, timeout: float | None) -> MessageId:
        try:
            return await self._outgoing.send(letter, timeout)
        except NoRoute:
            # It was deleted, or its broker's memory was all that it was in.
            deadline = self._wire.deadline(timeout)
            await self._wire.attempt(self._declare, deadline)
            if letter.exchange:
                await self._wire.attempt(self._prepare_delays, deadline)
            return await self._outgoing.send(letter, timeout)

    # -- get -----------------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None, where: str | None = None) -> Message[T]:
        """The next message, or the next for which `where` is true. Timeout if none comes."""
        delivered, settlement = await self._receiver(where).get(timeout)
        return Message(delivered, settlement, self._of)

    async def poll(self, where: str | None = None) -> Message[T] | None:
        """What is there now, or None."""
        found = await self._receiver(where).poll()
        return None if found is None else Message(found[0], found[1], self._of)

    def _receiver(self, where: str | None) -> Receiver:
        found = self._receivers.get(where)
        if found is None:
            found = self._receivers[where] = Receiver(self._wire, self._prepare, self._consumer_arguments(where))
        return found

    async def notify(
        self,
        function: Callable[..., object],
        concurrency: int = 8,
        *,
        where: str | None = None,
        timeout: float | None = None,
    ) -> Handle:
        """Call the function for each message: acknowledged when it returns; when it raises, tried again or given up."""
        return await self.start(Callback(function), concurrency, where=where, timeout=timeout)

    async def start(
        self, callback: Callback, concurrency: int, *, where: str | None = None, timeout: float | None = None
    ) -> Handle:
        async def handle(message: Message[Any]) -> None:
            try:
                await callback(message)
            except BodyRefused:
                await message.reject()  # it will not become another body
                raise
            except Exception:
                await message.release()
                raise
            await message.ack()

        handling = Handle(handle, concurrency, no_ack=False)
        if not callback.awaited:
            handling.threads = callback.threads = ThreadPoolExecutor(concurrency, f"trunkline-{self.name}")
        intake = Intake(
            self._wire,
            self._prepare,
            handling.arrived,
            prefetch=_AHEAD * concurrency,
            arguments=self._consumer_arguments(where),
            lost=handling.lost,
        )
        return self._keep(await handling.start(intake, self._wire.deadline(timeout)))

    def _consumer_arguments(self, where: str | None) -> dict[str, FieldValue]:
        arguments: dict[str, FieldValue] = {"x-delivery-count": True}
        if where is not None:
            arguments["x-filter"] = where
        return arguments

    # -- what it is ----------------------------------------------------------------------------------------------

    async def _prepare(self, link: Link, channel: LinkChannel, timeout_s: float) -> str:
        await self._declare(link, timeout_s)
        return self.name

    async def _declare(self, link: Link, timeout_s: float) -> None:
        arguments = self._settings.arguments()
        async with self._declaring:
            if not arguments:
                channel = await link.channel(timeout_s)
                try:
                    await channel.call(_declaration(self.name, {}, passive=True), m.QueueDeclareOk, timeout_s)
                    await channel.close(timeout_s)
                    self._declared = True
                    return
                except LinkRefused as error:
                    if error.name != "NOT_FOUND":
                        raise
            channel = await link.channel(timeout_s)
            await channel.call(_declaration(self.name, arguments), m.QueueDeclareOk, timeout_s)
            if self._settings.dead_letter is not None:
                await self._declare_plain(link, self._settings.dead_letter, timeout_s)
            await channel.close(timeout_s)
            self._declared = True

    async def _declare_plain(self, link: Link, name: str, timeout_s: float) -> None:
        """A queue that may be declared already, in whichever way."""
        channel = await link.channel(timeout_s)
        try:
            await channel.call(_declaration(name, {}, passive=True), m.QueueDeclareOk, timeout_s)
        except LinkRefused as error:
            if error.name != "NOT_FOUND":
                raise
            channel = await link.channel(timeout_s)
            await channel.call(_declaration(name, {}), m.QueueDeclareOk, timeout_s)
        await channel.close(timeout_s)

    async def _prepare_delays(self, link: Link, timeout_s: float) -> None:
        channel = await link.channel(timeout_s)
        delays = m.ExchangeDeclare(
            0, DELAYS, "x-delayed-message", False, True, False, False, False, {"x-delayed-type": "direct"}
        )
        await channel.call(delays, m.ExchangeDeclareOk, timeout_s)
        await channel.call(m.QueueBind(0, self.name, DELAYS, self.name, False, {}), m.QueueBindOk, timeout_s)
        await channel.close(timeout_s)
        self._delays = True

    async def close(self) -> None:
        for receiver in self._receivers.values():
            await receiver.close()


def _declaration(name: str, arguments: dict[str, FieldValue], *, passive: bool = False) -> m.QueueDeclare:
    return m.QueueDeclare(0, name, passive, True, False, False, False, arguments)
