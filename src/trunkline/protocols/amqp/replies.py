"""Direct replies: messages that go from channel to channel, through no queue. The management's answers are such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.protocols.amqp.codec import Properties, decode_properties, encode_deliveries, encode_properties
from trunkline.protocols.amqp.mapping import Envelope

if TYPE_CHECKING:
    from trunkline.protocols.amqp.channel import Channel
    from trunkline.protocols.amqp.session import Session


def deliver_reply(channel: Channel, envelope: Envelope, body: bytes) -> None:
    """Hand a reply to the channel that waits for it."""
    tag = channel.next_tag
    channel.next_tag += 1
    content = [(envelope.exchange, envelope.routing_key, False, envelope.properties, body)]
    raw_tag = (channel.reply_tag or "").encode()
    session = channel.session
    session.send(encode_deliveries(channel.number, raw_tag, tag, content, session.frame_max_bytes))


def manage(session: Session, envelope: Envelope, body: bytes) -> None:
    """A management request: its answer goes to the direct reply-to address that it names."""

    async def answer() -> None:
        reply = await session.service.management.answer(session.user, session.vhost, body)
        address = envelope.reply_to or ""
        waiting = session.replies.get(address)
        if waiting is not None and waiting.open:
            decoded = decode_properties(envelope.properties)
            properties = encode_properties(Properties("application/json", correlation_id=decoded.correlation_id))
            deliver_reply(waiting, Envelope("", address, properties), reply)

    session.service.messaging.spawn(answer())
