"""Direct replies: messages that go from channel to channel, through no queue. The management's answers are such."""

from __future__ import annotations

from typing import Protocol

from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.protocols.amqp.codec import Properties, decode_properties, encode_properties
from trunkline.protocols.amqp.management import Management
from trunkline.protocols.amqp.mapping import Envelope
from trunkline.security.principal import Principal


class ReplyTaker(Protocol):
    """A channel that consumes direct replies, under the tag `reply_tag`."""

    @property
    def open(self) -> bool: ...

    @property
    def reply_tag(self) -> str | None: ...

    def deliver_reply(self, envelope: Envelope, body: bytes) -> None: ...


Replies = dict[str, ReplyTaker]  # an address, and who waits there


async def answer_request(
    management: Management, replies: Replies, principal: Principal, vhost: VirtualHost, envelope: Envelope, body: bytes
) -> None:
    """A management request: its answer goes to the direct reply-to address that it names."""
    reply = await management.answer(principal, vhost, body)
    address = envelope.reply_to or ""
    waiting = replies.get(address)
    if waiting is not None and waiting.open:
        decoded = decode_properties(envelope.properties)
        properties = encode_properties(Properties("application/json", correlation_id=decoded.correlation_id))
        waiting.deliver_reply(Envelope("", address, properties), reply)
