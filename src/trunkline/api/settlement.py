"""Settling messages on the channel that they came on.

Acknowledgements and rejections are AMQP's own, and wait for nobody: the broker carries them out in the order in which they are
sent. What AMQP has no method for (a delay, a longer lease) is an instruction to the broker, published on the same channel and
confirmed when it is carried out: see protocols/amqp/leases.
"""

from __future__ import annotations

import asyncio
import json

from trunkline.api.errors import ConnectionLost, LeaseLost
from trunkline.api.wire import explained
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, LinkRefused, LinkTimeout, NotTaken
from trunkline.protocols.amqp.codec import NO_PROPERTIES, encode_confirm
from trunkline.protocols.amqp.leases import ADDRESS


class Settlement:
    """One channel's, with the messages that are with the application."""

    __slots__ = ("channel", "open", "timeout_s")

    def __init__(self, channel: LinkChannel, timeout_s: float) -> None:
        self.channel = channel
        self.timeout_s = timeout_s
        self.open: set[int] = set()

    def hold(self, tag: int) -> None:
        """With the application from now on."""
        self.open.add(tag)

    def check(self, tag: int) -> None:
        """LeaseLost unless the message is still its consumer's."""
        if tag not in self.open:
            raise LeaseLost("the message is settled already")
        if self.channel.ended is not None:
            raise LeaseLost("the connection that the message came on was lost: it comes again")

    def take(self, tag: int) -> None:
        self.check(tag)
        self.open.discard(tag)

    def ack(self, tag: int) -> None:
        self.take(tag)
        self.channel.link.write(encode_confirm(self.channel.number, tag, False))

    def reply(self, address: str, properties: bytes, body: bytes) -> None:
        """To who waits at a direct reply's address; to nobody, if he does not any more."""
        self.channel.publish("", address, properties, body, self.timeout_s).add_done_callback(_ignore)

    def reject(self, tag: int) -> None:
        self.take(tag)
        self.channel.link.write(encode_confirm(self.channel.number, tag, False, nack=True))

    async def release(self, tag: int, delay: float | None) -> None:
        self.take(tag)
        await self._carried_out(self._instruct("release", [tag], delay))

    async def settle(self, tag: int) -> None:
        """Acknowledge, and wait until that is on disk."""
        self.take(tag)
        await self._carried_out(self._instruct("settle", [tag], None))

    async def extend(self, tag: int, seconds: float) -> None:
        self.check(tag)
        await self._carried_out(self._instruct("extend", [tag], seconds))

    def give_back(self, tags: list[int]) -> None:
        """Those that nobody looked at, as if they had not come."""
        if tags and self.channel.ended is None:
            self.open.difference_update(tags)
            self._instruct("unseen", tags, None).add_done_callback(_ignore)

    def _instruct(self, do: str, tags: list[int], seconds: float | None) -> asyncio.Future[None]:
        asked: dict[str, object] = {"do": do, "tags": tags}
        if seconds is not None:
            asked["ms"] = max(0, round(seconds * 1000))
        return self.channel.publish("", ADDRESS, NO_PROPERTIES, json.dumps(asked).encode(), self.timeout_s)

    async def _carried_out(self, told: asyncio.Future[None]) -> None:
        try:
            await told
        except NotTaken:
            raise LeaseLost("the lease is over: the message is somebody else's") from None
        except LinkLost as error:
            raise ConnectionLost(str(error)) from None
        except (LinkRefused, LinkTimeout) as error:
            raise explained(error) from None


def _ignore(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
