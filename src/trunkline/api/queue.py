"""A queue: put, get, poll, notify, cancel.

It is declared when it is first used: with its settings if some are given, else only if it is not there. So whoever puts into a
queue need not repeat how its workers declared it. What its delivery semantics mean is said in `delivery`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from trunkline.api.callbacks import Callback
from trunkline.api.declarations import DELAYS, declare_delays, declare_queue
from trunkline.api.delivery import TRANSACTIONAL, Delivery
from trunkline.api.errors import BodyRefused, ConnectionLost, NoRoute
from trunkline.api.handle import Handle
from trunkline.api.intake import Intake
from trunkline.api.message import Message, MessageId
from trunkline.api.once import OncePutter
from trunkline.api.outgoing import Letter, Outgoing
from trunkline.api.receiver import Receiver
from trunkline.api.retry import Retry
from trunkline.api.settlement import Settlement
from trunkline.api.transaction import Transaction
from trunkline.api.wire import Wire, explained
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, Returned
from trunkline.protocols.amqp.frames import Deliver

T = TypeVar("T")

_DELAY_HEADER = "x-delay"
_AHEAD = 2  # messages on their way for each that a worker works on


@dataclass(frozen=True, slots=True)
class QueueSettings:
    retry: Retry | None = None
    dead_letter: str | None = None
    lease: float | None = None
    priorities: int | None = None
    ordered: bool = False
    delivery: Delivery = "at-least-once"

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
        if self.priorities is not None:
            found["x-max-priority"] = self.priorities
        if self.ordered:
            found["x-order-by-key"] = True
        return found


class Owner(Protocol):
    """The connection, as its queues see it."""

    @property
    def wire(self) -> Wire: ...

    @property
    def outgoing(self) -> Outgoing: ...

    def keep(self, handle: Handle) -> Handle:
        """It is stopped with the connection."""

    def transaction(self, timeout: float | None = None) -> Transaction: ...

    async def manage(self, do: str, timeout: float | None = None, **arguments: object) -> object: ...

    def kafka(self) -> str:
        """Where the broker's Kafka listener is."""


class Queue(Generic[T]):
    """`Queue[T]`: its messages' values are made a `T`, which `of` says."""

    def __init__(self, owner: Owner, name: str, settings: QueueSettings, of: object = object) -> None:
        self.name = name
        self._owner = owner
        self._wire = owner.wire
        self._outgoing = owner.outgoing
        self._settings = settings
        self._of = of
        self._declared = False
        self._delays = False
        self._declaring = asyncio.Lock()
        self._receivers: dict[str | None, Receiver] = {}
        self._once: OncePutter | None = None

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
        if self._settings.delivery == "exactly-once" and not delay:
            putter = self._putter()
            return (await putter.put([value], key=key, headers=headers, priority=priority, expires=expires))[0]
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
        if self._settings.delivery == "exactly-once":
            return await self._putter().put(list(values))
        letters = [self._outgoing.letter(value, "", self.name, mandatory=True) for value in values]
        errors = await self._outgoing.send_all(letters, timeout)
        for place, error in errors.items():
            if isinstance(error, LinkLost) and self._settings.delivery == "at-most-once":
                raise ConnectionLost(f"whether all messages are stored is not known: {error}")
            if not isinstance(error, LinkLost | Returned):
                raise explained(error)
            await self._send(letters[place], timeout)
        return [letter.id for letter in letters]

    async def _send(self, letter: Letter, timeout: float | None) -> MessageId:
        again = self._settings.delivery != "at-most-once"
        try:
            return await self._outgoing.send(letter, timeout, again=again)
        except NoRoute:
            # It was deleted, or its broker's memory was all that it was in.
            deadline = self._wire.deadline(timeout)
            await self._wire.attempt(self._declare, deadline)
            if letter.exchange:
                await self._wire.attempt(self._prepare_delays, deadline)
            return await self._outgoing.send(letter, timeout, again=again)

    def _putter(self) -> OncePutter:
        if self._once is None:
            self._once = OncePutter(self._owner.kafka(), self.name, self._wire.timeout_s, self._outgoing.new_id)
        return self._once

    async def cancel(self, message_id: MessageId) -> bool:
        """Drop a message that was put with a delay and still waits; False if it does not."""
        answer = await self._owner.manage("cancel_message", queue=self.name, message=message_id)
        return isinstance(answer, dict) and answer.get("cancelled") is True

    # -- get -----------------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None, where: str | None = None) -> Message[T]:
        """The next message, or the next for which `where` is true. Timeout if none comes."""
        delivered, settlement = await self._receiver(where).get(timeout)
        return await self._handed_over(delivered, settlement)

    async def poll(self, where: str | None = None) -> Message[T] | None:
        """What is there now, or None."""
        found = await self._receiver(where).poll()
        return None if found is None else await self._handed_over(*found)

    async def _handed_over(self, delivered: Deliver, settlement: Settlement) -> Message[T]:
        delivery = self._settings.delivery
        if delivery == "at-most-once":
            await settlement.settle(delivered.tag)
            return Message(delivered, None, self._of)
        return Message(delivered, settlement, self._of, surely=delivery in TRANSACTIONAL)

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
        """Call the function for each message: acknowledged when it returns; when it raises, tried again or given up.

        With transactional delivery a function of two parameters gets the transaction, too, in which the message is acknowledged.
        """
        return await self.start(Callback(function), concurrency, where=where, timeout=timeout)

    async def start(
        self, callback: Callback, concurrency: int, *, where: str | None = None, timeout: float | None = None
    ) -> Handle:
        handling = Handle(self._handler(callback), concurrency, no_ack=False)
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
        return self._owner.keep(await handling.start(intake, self._wire.deadline(timeout)))

    def _handler(self, callback: Callback) -> Callable[[Message[Any]], Any]:
        delivery = self._settings.delivery

        async def at_most_once(message: Message[Any]) -> None:
            await message.settlement.settle(message.tag)
            await callback(message)

        async def acknowledged(message: Message[Any]) -> None:
            try:
                await callback(message)
            except BodyRefused:
                await message.reject()  # it will not become another body
                raise
            except Exception:
                await message.release()
                raise
            await message.ack()

        async def transactional(message: Message[Any]) -> None:
            transaction = self._owner.transaction()
            try:
                await callback(message, transaction)
            except BodyRefused:
                await transaction.rollback()
                await message.reject()
                raise
            except Exception:
                await transaction.rollback()
                await message.release()
                raise
            await transaction.ack(message)
            await transaction.commit()

        if delivery == "at-most-once":
            return at_most_once
        return transactional if delivery in TRANSACTIONAL else acknowledged

    def _consumer_arguments(self, where: str | None) -> dict[str, FieldValue]:
        arguments: dict[str, FieldValue] = {"x-delivery-count": True}
        if self._settings.lease is not None:
            arguments["x-lease-ms"] = max(1, round(self._settings.lease * 1000))
        if where is not None:
            arguments["x-filter"] = where
        return arguments

    # -- what it is ----------------------------------------------------------------------------------------------

    async def _prepare(self, link: Link, channel: LinkChannel, timeout_s: float) -> str:
        await self._declare(link, timeout_s)
        return self.name

    async def _declare(self, link: Link, timeout_s: float) -> None:
        async with self._declaring:
            if self._settings.dead_letter is not None:
                await declare_queue(link, self._settings.dead_letter, {}, timeout_s)
            await declare_queue(link, self.name, self._settings.arguments(), timeout_s)
            self._declared = True

    async def _prepare_delays(self, link: Link, timeout_s: float) -> None:
        await declare_delays(link, self.name, timeout_s)
        self._delays = True

    async def close(self) -> None:
        for receiver in self._receivers.values():
            await receiver.close()
        if self._once is not None:
            await self._once.close()
