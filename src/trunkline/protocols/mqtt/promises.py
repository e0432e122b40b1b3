"""Promises: acknowledgements that leave when everything is stored that was written in their turn.

A turn whose writes complete early waits for those before it, so acknowledgements leave in the order of what they
acknowledge. When one write of a turn fails, everyone who waits for that turn is told so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from trunkline.log.errors import LogError
from trunkline.log.ticket import Appended, Ticket

logger = logging.getLogger(__name__)

# A kind with the packet identifiers of consecutive publications, or a packet that says more.
Acks = tuple[int, list[int]] | bytes


class Acknowledging(Protocol):
    """A connection, as far as acknowledgements go."""

    def take_acks(self) -> list[Acks]: ...

    def send_acks(self, acks: list[Acks]) -> None: ...

    def storage_failed(self) -> None: ...


class Promise:
    """What waits for the writes of one turn."""

    __slots__ = ("acks", "failed", "open", "then")

    def __init__(self, acks: list[tuple[Acknowledging, list[Acks]]], then: list[Callable[[bool], None]]) -> None:
        self.acks = acks
        self.then = then
        self.open = 0  # writes that are not stored yet
        self.failed = False


class Promises:
    def __init__(self) -> None:
        self._waiting: deque[Promise] = deque()

    def add(self, promise: Promise) -> None:
        """The turn is over: its acknowledgements leave as soon as they may."""
        if promise.acks or promise.then:
            self._waiting.append(promise)
            if promise.open == 0:
                self._release()

    def write(self, promise: Promise, write: Callable[[], Ticket]) -> Ticket | None:
        """Make a write that the promise has to wait for; None if it failed at once."""
        try:
            ticket = write()
        except LogError as error:
            logger.error("the state of sessions could not be written: %s", error)
            promise.failed = True
            return None
        self.wait_for(promise, ticket)
        return ticket

    def wait_for(self, promise: Promise, future: asyncio.Future[Appended]) -> None:
        if not future.done():
            promise.open += 1
            future.add_done_callback(lambda done: self._stored(promise, done))
        elif future.cancelled() or future.exception() is not None:
            promise.failed = True

    def _stored(self, promise: Promise, future: asyncio.Future[Appended]) -> None:
        failed = future.cancelled() or future.exception() is not None
        if failed:
            logger.error("publications are not stored: %s", "cancelled" if future.cancelled() else future.exception())
        self.settle(promise, failed=failed)

    def settle(self, promise: Promise, *, failed: bool) -> None:
        """One of the writes has ended."""
        promise.open -= 1
        promise.failed = promise.failed or failed
        if promise.open == 0:
            self._release()

    def _release(self) -> None:
        """Let acknowledgements go, oldest turn first, as far as the turns are stored."""
        waiting = self._waiting
        while waiting and waiting[0].open == 0:
            promise = waiting.popleft()
            for connection, acks in promise.acks:
                if promise.failed:
                    connection.storage_failed()
                else:
                    connection.send_acks(acks)
            for then in promise.then:
                then(not promise.failed)
