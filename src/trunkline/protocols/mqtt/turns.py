"""Turns that wait to be stored: acknowledgements leave turn by turn, when everything that a turn wrote is stored.

A turn whose writes complete early waits for those before it, so acknowledgements leave in the order of what they
acknowledge. When one write of a turn fails, everyone who waits for that turn is told so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from trunkline.log.errors import LogError
from trunkline.log.ticket import Appended

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.link import Acks, Link

logger = logging.getLogger(__name__)


class Turn:
    """What waits for the writes of one turn."""

    __slots__ = ("acks", "failed", "open", "then")

    def __init__(self, acks: list[tuple[Link, list[Acks]]], then: list[Callable[[bool], None]]) -> None:
        self.acks = acks
        self.then = then
        self.open = 0  # writes that are not stored yet
        self.failed = False


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[Turn] = deque()

    def add(self, turn: Turn) -> None:
        """The turn is over: its acknowledgements leave as soon as they may."""
        if turn.acks or turn.then:
            self._waiting.append(turn)
            if turn.open == 0:
                self._release()

    def wait(self, turn: Turn, write: Callable[[], asyncio.Future[Appended]]) -> None:
        """Make a write that the turn has to wait for."""
        try:
            future = write()
        except LogError as error:
            logger.error("the state of sessions could not be written: %s", error)
            turn.failed = True
            return
        self.wait_for(turn, future)

    def wait_for(self, turn: Turn, future: asyncio.Future[Appended]) -> None:
        if not future.done():
            turn.open += 1
            future.add_done_callback(lambda done: self._stored(turn, done))
        elif future.cancelled() or future.exception() is not None:
            turn.failed = True

    def _stored(self, turn: Turn, future: asyncio.Future[Appended]) -> None:
        turn.open -= 1
        if future.cancelled() or future.exception() is not None:
            turn.failed = True
            logger.error("publications are not stored: %s", "cancelled" if future.cancelled() else future.exception())
        if turn.open == 0:
            self._release()

    def _release(self) -> None:
        """Let acknowledgements go, oldest turn first, as far as the turns are stored."""
        waiting = self._waiting
        while waiting and waiting[0].open == 0:
            turn = waiting.popleft()
            for session, acks in turn.acks:
                if turn.failed:
                    session.storage_failed()
                else:
                    session.send_acks(acks)
            for then in turn.then:
                then(not turn.failed)
