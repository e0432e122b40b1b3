"""What `get` waits on: an intake that runs while somebody waits, and a little longer.

How many messages it asks for grows with how fast they are taken: the first `get` asks for one and no more; whoever comes back for
the next within a tenth of a second finds twice as many on their way, up to `MOST`. What was fetched ahead and is not asked for within
`IDLE_S` goes back to the queue as if it had not come, so that an idle consumer keeps nothing from others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from trunkline.api.errors import ConnectionLost, Timeout, TrunklineError
from trunkline.api.intake import Intake, Prepare
from trunkline.api.settlement import Settlement
from trunkline.api.wire import Wire
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.protocols.amqp.frames import Deliver

MOST = 256
IDLE_S = 0.2
_SOON_S = 0.1

Arrival = tuple[Deliver, Settlement]


class Receiver:
    def __init__(self, wire: Wire, prepare: Prepare, arguments: Mapping[str, FieldValue]) -> None:
        self._wire = wire
        self._intake = Intake(wire, prepare, self._arrived, prefetch=1, arguments=arguments, lost=self._lost)
        self._begun: asyncio.Task[None] | None = None
        self._buffer: deque[Arrival] = deque()
        self._waiting: deque[asyncio.Future[Arrival]] = deque()
        self._ahead = 1
        self._last_get = -1.0
        self._idle: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def get(self, timeout: float | None) -> Arrival:
        """Timeout when nothing comes in time."""
        buffer = self._buffer
        loop = asyncio.get_running_loop()
        if buffer:
            self._last_get = loop.time()
            return self._handed_out(buffer.popleft())
        deadline = self._wire.deadline(timeout)
        waiting: asyncio.Future[Arrival] = loop.create_future()
        self._waiting.append(waiting)
        try:
            await self._ask_for_more(loop.time(), deadline)
            async with asyncio.timeout_at(deadline):
                arrival = await waiting
        except TimeoutError:
            if waiting.done() and not waiting.cancelled():  # it came in the moment in which the time was over
                arrival = waiting.result()
            else:
                self._check_idle()
                if self._wire.current is None:
                    raise ConnectionLost("the broker cannot be reached") from None
                raise Timeout("no message came in time") from None
        except BaseException:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._buffer.appendleft(waiting.result())
            self._check_idle()
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        self._last_get = loop.time()
        return self._handed_out(arrival)

    async def poll(self) -> Arrival | None:
        """What is there now: fetched ahead, or asked for with one question."""
        if self._buffer:
            self._last_get = asyncio.get_running_loop().time()
            return self._handed_out(self._buffer.popleft())
        found = await self._wire.attempt(self._intake.get, self._wire.deadline(None))
        if found is not None:
            found[1].open.add(found[0].tag)
        return found

    def _handed_out(self, arrival: Arrival) -> Arrival:
        delivered, settlement = arrival
        settlement.open.add(delivered.tag)
        if self._ahead == 1:
            self._check_idle()
        else:
            self._arm()
        return arrival

    async def _ask_for_more(self, now: float, deadline: float) -> None:
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
        self._ahead = min(self._ahead * 2, MOST) if now - self._last_get < _SOON_S else 1
        intake = self._intake
        intake.set_prefetch(self._wanted())
        if not intake.running:
            intake.running = True
            self._begun = asyncio.get_running_loop().create_task(self._start(deadline))
        if self._begun is not None:
            # Whoever is cancelled leaves the others a consumer that is whole; it is stopped when nobody waits.
            await asyncio.shield(self._begun)

    async def _start(self, deadline: float) -> None:
        try:
            await self._intake.start(deadline)
        except BaseException:
            self._intake.running = False
            raise
        finally:
            self._begun = None

    def _wanted(self) -> int:
        """With the application, and on their way to it."""
        settlement = self._intake.settlement
        held = 0 if settlement is None else len(settlement.open)
        return min(held + max(self._ahead, len(self._waiting)), 65_535)

    def _arrived(self, delivered: Deliver, settlement: Settlement) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result((delivered, settlement))
                return
        self._buffer.append((delivered, settlement))

    def _lost(self) -> None:
        """The link is gone, and what was fetched ahead is the broker's again."""
        self._buffer.clear()

    # -- idle ----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._on_idle)

    def _on_idle(self) -> None:
        self._idle = None
        left = self._last_get + IDLE_S - asyncio.get_running_loop().time()
        if self._waiting or self._wire.closed:
            return
        if left > 0:
            self._idle = asyncio.get_running_loop().call_later(left, self._on_idle)
        else:
            self._check_idle()

    def _check_idle(self) -> None:
        """Nobody waits any more: stop, and give back what nobody looked at. What is with the application stays there."""
        intake = self._intake
        if any(not each.done() for each in self._waiting) or not intake.running or self._wire.closed:
            return
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(intake))

    async def _stop(self, intake: Intake) -> None:
        settlement = None
        try:
            if self._begun is not None:
                await asyncio.wait([self._begun])
            settlement = intake.settlement
            await intake.stop(close=False)
        except TrunklineError:
            pass  # a link that is lost takes everything with it
        finally:
            self._stopping = None
        if settlement is not None:
            settlement.give_back([delivered.tag for delivered, of in self._buffer if of is settlement])
            self._buffer.clear()

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._intake.running:
            await self._intake.stop()
