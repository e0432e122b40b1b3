"""Publications on their way: a value as a message with its properties, sent, and confirmed.

Most messages of a program have the same properties but for their id, so the bytes before and behind the id are remembered.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from trunkline.api import bodies
from trunkline.api.errors import ConnectionLost
from trunkline.api.message import KEY_HEADER, MessageId
from trunkline.api.wire import Wire, explained
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_errors import LinkLost, LinkRefused, LinkTimeout, NotTaken, Returned
from trunkline.protocols.amqp.codec import Properties, encode_properties
from trunkline.protocols.amqp.properties import MESSAGE_ID

_PERSISTENT, _TRANSIENT = 2, 1
_PORTION = 5_000  # messages that are under way at once


class Letter:
    """A message that is to be sent."""

    __slots__ = ("body", "exchange", "id", "mandatory", "properties", "routing_key")

    def __init__(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, message_id: str, *, mandatory: bool
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body
        self.id = MessageId(message_id)
        self.mandatory = mandatory


class Outgoing:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._prefix = secrets.token_hex(6)
        self._count = 0

    def new_id(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def letter(
        self,
        value: object,
        exchange: str,
        routing_key: str,
        *,
        key: str | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        priority: int = 0,
        expires: float | None = None,
        persistent: bool = True,
        mandatory: bool = False,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
    ) -> Letter:
        """BodyRefused if the value cannot be a body."""
        body, content_type, type_name = bodies.encode(value)
        if message_id is None:
            self._count += 1
            message_id = f"{self._prefix}-{self._count}"
        mode = _PERSISTENT if persistent else _TRANSIENT
        if key is None and not headers and not priority and expires is None and correlation_id is None:
            before, behind = _around_id(content_type, type_name, mode)
            raw = message_id.encode()
            section = b"%b%c%b%b" % (before, len(raw), raw, behind)
        else:
            table: dict[str, FieldValue] = dict(headers or {})
            if key is not None:
                table[KEY_HEADER] = key
            section = encode_properties(
                Properties(
                    content_type=content_type,
                    headers=table or None,
                    delivery_mode=mode,
                    priority=priority or None,
                    correlation_id=correlation_id,
                    reply_to=reply_to,
                    expiration=None if expires is None else str(round(expires * 1000)),
                    message_id=message_id,
                    type=type_name,
                )
            )
        return Letter(exchange, routing_key, section, body, message_id, mandatory=mandatory)

    async def send(self, letter: Letter, timeout: float | None, *, again: bool = True) -> MessageId:
        """Returns when the broker has stored it.

        If the link is lost before it says so, it is sent again on the next one; without `again`, ConnectionLost says that it may
        or may not be stored.
        """
        channel = self._wire.publishing_now()
        if channel is not None and channel.link.blocked is None:
            try:
                await channel.publish(
                    letter.exchange,
                    letter.routing_key,
                    letter.properties,
                    letter.body,
                    self._wire.timeout_s if timeout is None else timeout,
                    mandatory=letter.mandatory,
                    message_id=letter.id,
                )
                return letter.id
            except LinkLost as error:
                if not again:
                    raise ConnectionLost(f"whether the message is stored is not known: {error}") from None
            except (LinkRefused, LinkTimeout, Returned, NotTaken) as error:
                raise explained(error) from None
        await self._wire.attempt(lambda link, left: self._send(link, letter, left), self._wire.deadline(timeout))
        return letter.id

    async def send_all(self, letters: Sequence[Letter], timeout: float | None) -> dict[int, Exception]:
        """Many at once; the errors of those that were not stored, by their place. Nothing is sent again."""
        deadline = self._wire.deadline(timeout)
        channel = self._wire.publishing_now()
        if channel is None:
            channel = await self._wire.attempt(self._wire.publishing, deadline)
        errors: dict[int, Exception] = {}
        for start in range(0, len(letters), _PORTION):
            portion = letters[start : start + _PORTION]
            told = await channel.publish_all(
                [(each.exchange, each.routing_key, each.properties, each.body, each.id) for each in portion],
                self._wire.left(deadline),
                mandatory=True,
            )
            errors.update({start + place: error for place, error in told.items()})
        return errors

    async def _send(self, link: Link, letter: Letter, timeout_s: float) -> None:
        channel = await self._wire.publishing(link, timeout_s)
        if not link.writable.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await link.writable.wait()
            except TimeoutError:
                raise LinkTimeout("the broker takes nothing more at the moment") from None
        await channel.publish(
            letter.exchange,
            letter.routing_key,
            letter.properties,
            letter.body,
            timeout_s,
            mandatory=letter.mandatory,
            message_id=letter.id,
        )


@lru_cache(1024)
def _around_id(content_type: str, type_name: str | None, mode: int) -> tuple[bytes, bytes]:
    """The property section before the length of the message id, and behind its bytes."""
    without = encode_properties(Properties(content_type=content_type, delivery_mode=mode))
    behind = b"" if type_name is None else encode_properties(Properties(type=type_name))[2:]
    flags = int.from_bytes(without[:2], "big") | MESSAGE_ID
    if type_name is not None:
        flags |= int.from_bytes(encode_properties(Properties(type=type_name))[:2], "big")
    return flags.to_bytes(2, "big") + without[2:], behind
