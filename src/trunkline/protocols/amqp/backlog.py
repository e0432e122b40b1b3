"""The backlog of a connection: events that wait for a method that is being carried out."""

from __future__ import annotations

from collections.abc import Iterable

from trunkline.protocols.amqp.frames import Content, Publish
from trunkline.protocols.amqp.parser import ParserEvent


class Backlog:
    __slots__ = ("_events", "size_bytes")

    def __init__(self) -> None:
        self._events: list[ParserEvent] = []
        self.size_bytes = 0  # of the messages in it

    def add(self, events: Iterable[ParserEvent]) -> None:
        for event in events:
            self._events.append(event)
            if isinstance(event, Publish | Content):
                self.size_bytes += len(event.body) + len(event.properties)

    def take(self) -> list[ParserEvent]:
        """All of it, which is then no longer here."""
        events, self._events = self._events, []
        self.size_bytes = 0
        return events
