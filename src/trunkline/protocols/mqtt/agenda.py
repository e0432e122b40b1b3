"""The agenda: what MQTT has to do at the end of the broker's turn (see `broker.turn`), as connections and sessions ask for it.

It is collected here and carried out by the hub, once per turn, however often it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from trunkline.broker.turn import Turn
from trunkline.protocols.mqtt.promises import Acknowledging, Acks


class Output(Acknowledging, Protocol):
    """A connection, as far as the end of a turn goes."""

    client_id: str
    peer: str

    def pump(self) -> None:
        """Send what has waited for room."""

    def flush(self) -> None:
        """Write what was sent."""

    def take_output(self) -> bytes:
        """What was sent and is not written."""

    def write(self, data: bytes) -> None: ...

    def abandon(self) -> None: ...


class Agenda:
    def __init__(self, turn: Turn, end: Callable[[], None]) -> None:
        """`end` carries it out."""
        self._turn = turn
        self._end = end
        self.scheduled = False  # read directly by the hot path
        self.touched: list[Output] = []
        self._acks: list[Output] = []
        self._then: list[Callable[[bool], None]] = []
        self.needs_disk = False  # whether what is written to `__sessions` must be on disk

    def schedule(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self._turn.collect(self._end)

    @property
    def pending(self) -> bool:
        return bool(self.touched or self._acks or self._then)

    def touch(self, connection: Output) -> None:
        """The connection has output, or something that waits and may go on."""
        self.touched.append(connection)
        if not self.scheduled:
            self.schedule()

    def pump_again(self, connection: Output) -> None:
        """The connection has more to send when others have had their turn."""
        asyncio.get_running_loop().call_soon(self.touch, connection)

    def acknowledge_later(self, connection: Output) -> None:
        """The connection has acknowledgements that must wait for this turn's appends."""
        self._acks.append(connection)
        if not self.scheduled:
            self.schedule()

    def after_stored(self, then: Callable[[bool], None]) -> None:
        """Call when everything that this turn writes is on disk, with whether that went well."""
        self._then.append(then)
        self.needs_disk = True
        self.schedule()

    def take_acks(self) -> list[tuple[Acknowledging, list[Acks]]]:
        acks, self._acks = self._acks, []
        return [(connection, connection.take_acks()) for connection in acks]

    def take_then(self) -> list[Callable[[bool], None]]:
        then, self._then = self._then, []
        return then

    def take_touched(self) -> list[Output]:
        touched, self.touched = self.touched, []
        return touched
