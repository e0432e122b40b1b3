"""Consuming one queue, over whichever link there is.

On each link an intake has a channel of its own: it prepares what it consumes (`prepare`, which declares and binds), says how many
messages it takes at a time, and consumes. When the link is lost so is what was delivered on it and not settled; the broker
delivers that again. A queue that is deleted is prepared anew.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping

from trunkline.api.errors import TrunklineError
from trunkline.api.settlement import Settlement
from trunkline.api.wire import Wire, explained
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.link import Link
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, LinkRefused, LinkTimeout
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.frames import Deliver

logger = logging.getLogger(__name__)

_tags = itertools.count(1)
_AGAIN_S = 0.2

Prepare = Callable[[Link, LinkChannel, float], Awaitable[str]]
Arrived = Callable[[Deliver, Settlement], None]


class Intake:
    def __init__(
        self,
        wire: Wire,
        prepare: Prepare,
        arrived: Arrived,
        *,
        prefetch: int,
        no_ack: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
        lost: Callable[[], None] | None = None,
        per_consumer: bool = False,
    ) -> None:
        """`prepare` gives the queue's name. `lost` is called when what was delivered so far is no longer ours.

        `per_consumer`: the prefetch is said as streams want it, and cannot be changed.
        """
        self._global = not per_consumer
        self._wire = wire
        self._prepare = prepare
        self._arrived = arrived
        self._prefetch = prefetch
        self._no_ack = no_ack
        self.arguments = dict(arguments or {})
        self._on_lost = lost
        self._tag = f"api-{next(_tags)}"
        self._queue = ""
        self.settlement: Settlement | None = None
        self._asked: asyncio.Task[None] | None = None
        self.running = False

    async def start(self, deadline: float) -> None:
        """Consume. Refused if the broker does not let us."""
        self.running = True
        await self._wire.attempt(self._begin, deadline)
        self._wire.add(self)

    async def _open(self, link: Link, timeout_s: float) -> Settlement:
        """The channel on this link, made if it is not there."""
        settlement = self.settlement
        if settlement is None or settlement.channel.ended is not None or settlement.channel.link is not link:
            channel = await link.channel(timeout_s)
            channel.on_end = self._ended
            channel.on_cancel = self._cancelled
            self._queue = await self._prepare(link, channel, timeout_s)
            if not self._no_ack:
                await channel.call(m.ConfirmSelect(False), m.ConfirmSelectOk, timeout_s)
            self.settlement = settlement = Settlement(channel, self._wire.timeout_s)
        return settlement

    async def _begin(self, link: Link, timeout_s: float) -> None:
        settlement = await self._open(link, timeout_s)
        channel = settlement.channel
        if not self._no_ack:
            await channel.call(m.BasicQos(0, self._prefetch, self._global), m.BasicQosOk, timeout_s)

        def arrived(delivered: Deliver) -> None:
            self._arrived(delivered, settlement)

        await channel.consume(self._queue, self._tag, arrived, timeout_s, no_ack=self._no_ack, arguments=self.arguments)

    async def get(self, link: Link, timeout_s: float) -> tuple[Deliver, Settlement] | None:
        """What is there now, without consuming: with arguments, this is what a consumer with `x-get` is for."""
        settlement = await self._open(link, timeout_s)
        delivered = await settlement.channel.consume_once(
            self._queue, f"{self._tag}-{next(_tags)}", timeout_s, {**self.arguments, "x-get": True}
        )
        return None if delivered is None else (delivered, settlement)

    async def resume(self, link: Link) -> None:
        try:
            await self._begin(link, self._wire.timeout_s)
        except LinkTimeout as error:
            raise LinkLost(str(error)) from None
        except LinkRefused as error:
            # The others go on; this one is tried again, as what it consumes may be declared anew.
            logger.warning("consuming could not be resumed and is tried again: %s", error)
            self._begin_again()

    def set_prefetch(self, prefetch: int) -> None:
        if prefetch == self._prefetch:
            return
        self._prefetch = prefetch
        if self.settlement is not None and not self._no_ack:
            answer = self.settlement.channel.ask(m.BasicQos(0, prefetch, True), m.BasicQosOk, self._wire.timeout_s)
            answer.add_done_callback(_ignore)

    def _ended(self, why: Exception) -> None:
        self.settlement = None
        if self._on_lost is not None:
            self._on_lost()
        if isinstance(why, LinkRefused) and self.running and why.name != "CHANNEL_CLOSED":
            self._begin_again()

    def _cancelled(self, tag: str) -> None:
        """The queue was deleted."""
        self.settlement = None
        if self.running and tag == self._tag:
            self._begin_again()

    def _begin_again(self) -> None:
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().create_task(self._try_again())

    async def _try_again(self) -> None:
        while self.running and not self._wire.closed:
            await asyncio.sleep(_AGAIN_S)
            link = self._wire.current
            if link is None:
                return  # the wire resumes everything on the next one
            try:
                await self._begin(link, self._wire.timeout_s)
                return
            except (LinkRefused, LinkTimeout, TrunklineError) as error:
                logger.warning("consuming could not be resumed and is tried again: %s", error)
            except LinkLost:
                return

    async def stop(self, *, close: bool = True) -> None:
        """Take nothing more. With `close` what is not settled goes back to the queue; else `start` goes on with it."""
        self.running = False
        self._wire.remove(self)
        if self._asked is not None:
            self._asked.cancel()
        settlement = self.settlement
        if settlement is None or settlement.channel.ended is not None:
            return
        try:
            await settlement.channel.cancel(self._tag, self._wire.timeout_s)
            if close:
                await settlement.channel.close(self._wire.timeout_s)
        except (LinkLost, LinkRefused):
            pass
        except LinkTimeout as error:
            raise explained(error) from None


def _ignore(future: asyncio.Future[m.BasicQosOk]) -> None:
    if not future.cancelled():
        future.exception()
