"""A connection that comes back: one link at a time, and after it is lost another, until the connection is closed.

Whoever waits for an answer on a lost link is told so, and asks again on the next one until his deadline: `attempt` is that
loop, once for all calls. What consumes (an `Intake`) is resumed on every new link before anybody else gets it.

A broker that cannot be reached is tried again after 50 ms, then ever more slowly, up to once a second, in the order of the
addresses: so a gateway that dies is left for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from trunkline.api.errors import ConnectionLost, NoRoute, QueueFull, Refused, Timeout, TrunklineError
from trunkline.client.link import Link, LinkAddress
from trunkline.client.link_channel import LinkChannel
from trunkline.client.link_errors import LinkLost, LinkRefused, LinkTimeout, NotTaken, Returned
from trunkline.protocols.amqp import methods as m

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
_CONNECT_S = 5.0
_LATELY_S = 5.0

T = TypeVar("T")


class Resumable(Protocol):
    async def resume(self, link: Link) -> None:
        """Go on, on a new link. May raise LinkLost: then there will be another."""


class Wire:
    def __init__(self, addresses: Sequence[LinkAddress], timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._addresses = list(addresses)
        self._link: Link | None = None
        self._ready = asyncio.Event()  # set while there is a link on which everything is resumed
        self._publishing: LinkChannel | None = None
        self._opening = asyncio.Lock()
        self._parts: dict[Resumable, None] = {}
        self._reconnecting: asyncio.Task[None] | None = None
        self._why: Exception = LinkLost("not connected yet")
        self.closed = False
        self.reconnections = 0
        self._reconnected_at = 0.0

    # -- life ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """The first link. ConnectionLost or Refused if there is none in time."""
        deadline = self.deadline(None)
        while True:
            try:
                await self._connect(self.left(deadline))
                return
            except LinkRefused as error:
                raise Refused(error.name, error.text) from None
            except LinkLost as error:
                # Nobody listens there: most likely nobody will in the next second, and a person waits.
                raise ConnectionLost(str(error)) from None

    async def close(self) -> None:
        self.closed = True
        self._ready.set()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if self._link is not None:
            await self._link.close()

    async def _connect(self, timeout_s: float) -> None:
        why: Exception = LinkLost("no address is given")
        for address in list(self._addresses):
            try:
                link = await Link.open(address, min(timeout_s, _CONNECT_S))
            except LinkLost as error:
                why = error
                self._addresses.append(self._addresses.pop(0))  # the next time begin with another
                continue
            self._link = link
            self._publishing = None
            link.on_lost = partial(self._lost, link)
            for part in list(self._parts):
                await part.resume(link)
            if link.lost is not None:
                raise link.lost
            self._ready.set()
            return
        raise why

    def _lost(self, link: Link, why: Exception) -> None:
        if self._link is not link:
            return
        self._link = None
        self._publishing = None
        self._why = why
        if not self.closed:
            self._ready.clear()
            if self._reconnecting is None or self._reconnecting.done():
                self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        pause = FIRST_PAUSE_S
        while not self.closed:
            try:
                await self._connect(_CONNECT_S)
                self.reconnections += 1
                self._reconnected_at = asyncio.get_running_loop().time()
                return
            except (LinkLost, LinkTimeout, LinkRefused, TrunklineError) as error:
                self._why = error
                if self._link is not None:  # it was there, but not everything could be resumed on it
                    link, self._link = self._link, None
                    link.abort(LinkLost(str(error)))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    @property
    def lately_reconnected(self) -> bool:
        """Others may not be back yet."""
        return self.reconnections > 0 and asyncio.get_running_loop().time() - self._reconnected_at < _LATELY_S

    def add(self, part: Resumable) -> None:
        self._parts[part] = None

    def remove(self, part: Resumable) -> None:
        self._parts.pop(part, None)

    # -- time ----------------------------------------------------------------------------------------------------

    def deadline(self, timeout_s: float | None) -> float:
        return asyncio.get_running_loop().time() + (self.timeout_s if timeout_s is None else timeout_s)

    def left(self, deadline: float) -> float:
        return max(deadline - asyncio.get_running_loop().time(), 0.0)

    # -- calls ---------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Link | None:
        """The link, if everything goes on it at the moment."""
        return self._link if self._ready.is_set() else None

    async def link(self, deadline: float) -> Link:
        while True:
            if self.closed:
                raise ConnectionLost("the connection is closed")
            if self._link is not None and self._ready.is_set():
                return self._link
            try:
                async with asyncio.timeout(self.left(deadline)):
                    await self._ready.wait()
            except TimeoutError:
                raise ConnectionLost(f"the broker cannot be reached: {self._why}") from None

    async def attempt(self, work: Callable[[Link, float], Awaitable[T]], deadline: float) -> T:
        """Do something on the link; on the next one, if this one is lost meanwhile. `work` is told how long it has."""
        while True:
            link = await self.link(deadline)
            try:
                return await work(link, self.left(deadline))
            except LinkLost as error:
                self._why = error
                if self.left(deadline) <= 0:
                    raise ConnectionLost(f"the broker cannot be reached: {error}") from None
                await asyncio.sleep(0)
            except (LinkRefused, LinkTimeout, Returned, NotTaken) as error:
                raise explained(error) from None

    def publishing_now(self) -> LinkChannel | None:
        """The channel for publications, if it is open."""
        channel = self._publishing
        return channel if channel is not None and channel.ended is None and self._ready.is_set() else None

    async def publishing(self, link: Link, timeout_s: float) -> LinkChannel:
        """The channel for publications, in confirm mode."""
        async with self._opening:
            channel = self._publishing
            if channel is None or channel.ended is not None or channel.link is not link:
                channel = await link.channel(timeout_s)
                await channel.call(m.ConfirmSelect(False), m.ConfirmSelectOk, timeout_s)
                self._publishing = channel
            return channel


def explained(error: Exception) -> TrunklineError:
    """What ended a call on a link, in the API's terms."""
    if isinstance(error, LinkRefused):
        return Refused(error.name, error.text)
    if isinstance(error, LinkTimeout):
        return Timeout(str(error))
    if isinstance(error, Returned):
        return NoRoute(str(error))
    if isinstance(error, NotTaken):
        return QueueFull(str(error))
    return ConnectionLost(str(error))
