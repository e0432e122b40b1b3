"""A transaction: messages put and messages acknowledged, all or none, also when the broker is killed meanwhile.

Everything is collected here and goes to the broker with the commit, so a transaction that is not committed has cost nothing, and
nobody waits in it. What is acknowledged in it goes back to its queue when it is rolled back. If the connection is lost while the
broker decides, the outcome is not known to us; it is to the messages: if it was committed, they do not come again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

from trunkline.api.errors import ConnectionLost, LeaseLost, TrunklineError
from trunkline.api.filters import routing_key
from trunkline.api.message import Message, MessageId
from trunkline.api.outgoing import Letter, Outgoing
from trunkline.api.settlement import Settlement
from trunkline.api.subscription import EVENTS
from trunkline.api.wire import Wire, explained
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, LinkRefused, LinkTimeout
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import NO_PROPERTIES
from trunkline.protocols.amqp.leases import ADDRESS

Declare = Callable[[Link, str, float], Awaitable[None]]
MAX_IDLE = 16


class Transactions:
    """Those of a connection. Their channels are used again."""

    def __init__(self, wire: Wire, outgoing: Outgoing, declare: Declare) -> None:
        """`declare` makes sure that a queue is there."""
        self.wire = wire
        self.outgoing = outgoing
        self._declare = declare
        self._declared: set[str] = set()
        self._idle: list[LinkChannel] = []

    def begin(self, timeout: float | None) -> Transaction:
        return Transaction(self, timeout)

    async def prepared(self, link: Link, queues: set[str], timeout_s: float) -> LinkChannel:
        """A channel in tx mode, with these queues there."""
        for name in queues - self._declared:
            await self._declare(link, name, timeout_s)
            self._declared.add(name)
        while self._idle:
            channel = self._idle.pop()
            if channel.ended is None and channel.link is link:
                return channel
        channel = await link.channel(timeout_s)
        await channel.call(m.TxSelect(), m.TxSelectOk, timeout_s)
        return channel

    def give_back(self, channel: LinkChannel) -> None:
        if channel.ended is None and len(self._idle) < MAX_IDLE:
            self._idle.append(channel)


class Transaction:
    def __init__(self, transactions: Transactions, timeout: float | None) -> None:
        self._of = transactions
        self._timeout = timeout
        self._letters: list[Letter] = []
        self._queues: set[str] = set()
        self._acknowledged: list[Message[Any]] = []
        self.over = False

    # -- what it does: nothing of it waits ---------------------------------------------------------------------------

    def add_put(self, queue: str, value: object, **options: Any) -> MessageId:
        self._check_open()
        letter = self._of.outgoing.letter(value, "", queue, mandatory=True, **options)
        self._queues.add(queue)
        self._letters.append(letter)
        return letter.id

    def add_event(self, event: object, topic: str, headers: Mapping[str, FieldValue] | None) -> MessageId:
        self._check_open()
        letter = self._of.outgoing.letter(event, EVENTS, routing_key(topic), headers=headers)
        self._letters.append(letter)
        return letter.id

    def add_ack(self, message: Message[Any]) -> None:
        self._check_open()
        message.settlement.take(message.tag)
        self._acknowledged.append(message)

    async def put(
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
        return self.add_put(queue, value, key=key, headers=headers, priority=priority, expires=expires)

    async def publish(
        self, event: object, topic: str = "", *, headers: Mapping[str, FieldValue] | None = None
    ) -> MessageId:
        """To subscribers, with the commit."""
        return self.add_event(event, topic, headers)

    async def ack(self, message: Message[Any]) -> None:
        """Done with, if the transaction is committed; else it comes again."""
        self.add_ack(message)

    def _check_open(self) -> None:
        if self.over:
            raise TrunklineError("the transaction is over")

    # -- its end -----------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """LeaseLost if a message is not ours any more; ConnectionLost if it is not known whether it is committed."""
        self._check_open()
        self.over = True
        if not self._letters and not self._acknowledged:
            return
        wire = self._of.wire
        deadline = wire.deadline(self._timeout)
        channel = await wire.attempt(lambda link, left: self._of.prepared(link, self._queues, left), deadline)
        try:
            await self._commit(channel, wire.left(deadline))
        except LinkLost as error:
            raise ConnectionLost(f"whether the transaction is committed is not known: {error}") from None
        except LinkRefused as error:
            if "this consumer's any more" in error.text:
                raise LeaseLost(error.text) from None
            raise explained(error) from None
        except LinkTimeout as error:
            raise explained(error) from None
        self._of.give_back(channel)

    async def _commit(self, channel: LinkChannel, timeout_s: float) -> None:
        by_channel: dict[Settlement, list[int]] = {}
        for message in self._acknowledged:
            by_channel.setdefault(message.settlement, []).append(message.tag)
        for settlement in by_channel:
            if settlement.channel.ended is not None or settlement.channel.link is not channel.link:
                raise LeaseLost("the connection that a message came on was lost: it comes again")
        for settlement, tags in by_channel.items():
            taken = {"do": "take", "tags": tags, "channel": settlement.channel.number}
            channel.publish_unconfirmed("", ADDRESS, NO_PROPERTIES, json.dumps(taken).encode())
        for letter in self._letters:
            channel.publish_unconfirmed(letter.exchange, letter.routing_key, letter.properties, letter.body)
        await channel.call(m.TxCommit(), m.TxCommitOk, timeout_s)

    async def rollback(self) -> None:
        """Nothing is sent; what was acknowledged in it goes back."""
        if self.over:
            return
        self.over = True
        for message in self._acknowledged:
            try:
                message.settlement.hold(message.tag)
                await message.release(0)
            except TrunklineError:
                pass  # it comes again all the same

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.commit()
        else:
            await self.rollback()
