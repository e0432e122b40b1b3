"""The flow of a connection: whether it is read, and what its client is told of that.

A connection that publishes is not read while the broker is short of space (connection.blocked), and none is while more of
its publications than `max_unconfirmed_bytes` wait to be stored.
"""

from __future__ import annotations

from typing import Protocol

from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.failures import short_text
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.service import Service


class Read(Protocol):
    """What a flow asks of the connection that it is of."""

    service: Service
    limits: AmqpLimits
    notify_blocked: bool

    def send_method(self, channel: int, method: m.Method) -> None: ...

    def read_on(self) -> None:
        """Something that kept this connection from being read has ended."""


class Flow:
    __slots__ = ("_full", "_session", "_told_blocked", "publishes", "unconfirmed_bytes")

    def __init__(self, session: Read) -> None:
        self._session = session
        self.publishes = False
        self.unconfirmed_bytes = 0
        self._full = False
        self._told_blocked = False

    @property
    def open(self) -> bool:
        return not self._full and not (self.publishes and self._session.service.blocked is not None)

    def note_unconfirmed(self, more_bytes: int) -> None:
        """So many bytes more, or fewer, of this connection's publications wait to be stored."""
        self.unconfirmed_bytes += more_bytes
        full = self.unconfirmed_bytes > self._session.limits.max_unconfirmed_bytes
        if full != self._full:
            self._full = full
            if not full:
                self._session.read_on()

    def tell_blocked(self, reason: str | None) -> None:
        """The broker is short of space, or (None) has enough again."""
        if reason is None:
            if self._told_blocked:
                self._told_blocked = False
                self._session.send_method(0, m.ConnectionUnblocked())
            self._session.read_on()
        elif self._session.notify_blocked and not self._told_blocked:
            self._told_blocked = True
            self._session.send_method(0, m.ConnectionBlocked(short_text(reason)))
