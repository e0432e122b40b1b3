"""Questions to the broker itself, which AMQP has no methods for: shared maps and teams.

A question is a message to an address of the broker, and the answer comes directly to the channel that asked. A lost link loses the
answer, not the question: it is asked again on the next one, so whoever asks sees to it that being asked twice does no harm.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json

from trunkline.api import bodies
from trunkline.api.errors import Refused
from trunkline.api.wire import Wire
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, LinkTimeout
from trunkline.protocols.amqp.codec import Properties, decode_properties, encode_properties
from trunkline.protocols.amqp.frames import Deliver

ADDRESS = "amq.trunkline.shared"
_REPLY_TO = "amq.rabbitmq.reply-to"
_NAMES = {"not found": "NOT_FOUND", "access refused": "ACCESS_REFUSED", "precondition failed": "PRECONDITION_FAILED"}

Json = dict[str, object]


class Asking:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._channel: LinkChannel | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[bytes]] = {}

    async def ask(self, question: Json, timeout: float | None = None, *, wait: float = 0.0) -> Json:
        """The answer. `wait` is how long the broker may take beyond what a call takes. Refused if it refuses."""
        deadline = self._wire.deadline(timeout) + wait
        answer = await self._wire.attempt(lambda link, left_s: self._ask(link, question, left_s), deadline)
        document = json.loads(answer)
        if "ok" not in document:
            reason = str(document.get("error"))
            raise Refused(_NAMES.get(reason, reason), str(document.get("text")))
        found: Json = document["ok"]
        return found

    async def _ask(self, link: Link, question: Json, timeout_s: float) -> bytes:
        channel = await self._open(link, timeout_s)
        number = str(next(self._numbers))
        properties = Properties(content_type=bodies.JSON, correlation_id=number, reply_to=_REPLY_TO)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            channel.publish_unconfirmed("", ADDRESS, encode_properties(properties), json.dumps(question).encode())
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise LinkTimeout("the broker did not answer in time") from None
        finally:
            self._waiting.pop(number, None)

    async def _open(self, link: Link, timeout_s: float) -> LinkChannel:
        async with self._opening:
            channel = self._channel
            if channel is None or channel.ended is not None or channel.link is not link:
                channel = await link.channel(timeout_s)
                channel.on_end = self._ended
                await channel.consume(_REPLY_TO, "answers", self._answered, timeout_s, no_ack=True)
                self._channel = channel
            return channel

    def _answered(self, delivered: Deliver) -> None:
        number = decode_properties(delivered.properties).correlation_id or ""
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(delivered.body)

    def _ended(self, why: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(why if isinstance(why, LinkLost) else LinkLost(str(why)))


def packed(value: object) -> tuple[str, str]:
    """A value as a question carries it: its body in base64, and its type."""
    body = bodies.encode(value)
    return base64.b64encode(body.data).decode(), body.content_type


def unpacked(value: object, kind: object, of: object = object) -> object:
    """BodyRefused if it is not of the type that is asked for."""
    return bodies.decode(base64.b64decode(str(value)), str(kind), of)
