"""A protocol's server: its listeners, its connections, its clock. What every protocol's needs, written once.

A protocol says how a session is made, and what is particular to it: see `kafka/server.py` for the least that it takes.

Closing: every session is told and says so to its client; the clients have `_CLOSE_S` to hang up, then they are cut off.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic

from trunkline.protocols.listener.accepting import Listener, Secured
from trunkline.protocols.listener.connection import ServedConnection
from trunkline.protocols.listener.session import S, Wire

if TYPE_CHECKING:
    from trunkline.broker.core import BrokerCore

logger = logging.getLogger(__name__)

_SCRATCH_BYTES = 256 * 1024
_CLOSE_S = 2.0
_LOOK_S = 0.01


class Server(ABC, Generic[S]):
    """`holding` is what a connection is called, for people; `limit` is the setting that `max_connections` comes from."""

    def __init__(
        self,
        broker: BrokerCore,
        holding: str,
        *,
        max_connections: int,
        limit: str = "max_connections",
        high_water_bytes: int = 1 << 20,
        tick_ms: float = 1_000,
    ) -> None:
        self.broker = broker
        self.high_water_bytes = high_water_bytes
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.connections: set[ServedConnection[S]] = set()
        self.arriving = 0  # connections that are accepted, and not yet made
        self.refused = 0
        self.holding = holding
        self._max_connections = max_connections
        self._limit = limit
        self._tick_s = tick_ms / 1000
        self._listeners: list[Listener[S]] = []
        self._ticker: asyncio.TimerHandle | None = None
        broker.connections.include(self)

    async def start(self) -> None:
        """What has to be done before the first listener; it may be called again."""

    async def listen(self, host: str, port: int, listener: str, *, tls: Secured | None = None) -> tuple[str, int]:
        """Listen on one more address; returns the one that clients connect to. Sessions know `listener`, its name."""
        await self.start()
        accepting = Listener(self, self.make_session, listener, tls)
        self._listeners.append(accepting)
        bound = await accepting.start(host, port)
        self.start_ticking()
        return bound

    @abstractmethod
    def make_session(self, wire: Wire) -> S:
        """For a connection that has been accepted; `wire.listener` says by which listener."""

    def live_connections(self) -> Iterable[ServedConnection[S]]:
        return self.connections

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.shut_down()
        await self._all_gone()
        for connection in list(self.connections):
            connection.abort()
        await self._all_gone()

    async def _all_gone(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _CLOSE_S
        await asyncio.sleep(0)
        while self.connections and loop.time() < deadline_s:
            await asyncio.sleep(_LOOK_S)

    # -- time ----------------------------------------------------------------------------------------------------

    def start_ticking(self) -> None:
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        try:
            self.tick()
        except Exception:
            logger.exception("a look at all connections of a kind failed (%s)", self.holding)

    @abstractmethod
    def tick(self) -> None:
        """Look at what has to be looked at from time to time: time-outs."""

    # -- connections ---------------------------------------------------------------------------------------------

    def all_sessions(self) -> list[S]:
        return [each.session for each in self.connections if each.session is not None]

    def refusal(self) -> str:
        """Why no more connections are taken; nothing, if they are."""
        if len(self.connections) + self.arriving < self._max_connections:
            return ""
        return f"{self._limit}={self._max_connections} is reached"

    def add(self, connection: ServedConnection[S]) -> None:
        self.connections.add(connection)

    def remove(self, connection: ServedConnection[S]) -> None:
        self.connections.discard(connection)

    def failed(self, connection: ServedConnection[S], error: Exception) -> None:
        """A session has failed over what a client sent: a fault of ours, and the end of that connection."""
        text = f"closing {self.holding}: its session failed"
        self.broker.complaints.add(f"failure of {self.holding}", connection.host, text, error=error)
