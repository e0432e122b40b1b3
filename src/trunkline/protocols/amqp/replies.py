"""Direct replies: messages that go from channel to channel, through no queue. The broker's own answers are such."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from trunkline.protocols.amqp.codec import Properties, decode_properties, encode_properties
from trunkline.protocols.amqp.mapping import Envelope


class ReplyTaker(Protocol):
    """A channel that consumes direct replies, under the tag `reply_tag`."""

    @property
    def open(self) -> bool: ...

    @property
    def reply_tag(self) -> str | None: ...

    def deliver_reply(self, envelope: Envelope, body: bytes) -> None: ...


Replies = dict[str, ReplyTaker]  # an address, and who waits there


async def answer_request(reply_to: Awaitable[bytes], replies: Replies, envelope: Envelope) -> None:
    """A request to the broker itself: its answer goes to the direct reply-to address that it names."""
    reply = await reply_to
    address = envelope.reply_to or ""
    waiting = replies.get(address)
    if waiting is not None and waiting.open:
        decoded = decode_properties(envelope.properties)
        properties = encode_properties(Properties("application/json", correlation_id=decoded.correlation_id))
        waiting.deliver_reply(Envelope("", address, properties), reply)
