"""Writes the publications of a turn to the log: one batch per source, or as many as a log topic's limit makes of it.

QoS 1 and 2 are written to be on disk, and the turn waits for that. When a batch is too large for its topic, its publications
are written one by one, so that only the one that does not fit is refused. Another failure is final for the turn.

The runs know their offsets as soon as the ticket knows the place of the batch: at once with a store in this process. With
another, whoever appended is told later (`Latecomers`), batch by batch in the order of the appends.

Whoever is not stored is reported, one by one (`Unstored`): an identifier of QoS 2 must be forgotten then, or the
publication would be taken for stored when it comes again.
"""

from __future__ import annotations

import logging
from typing import Protocol

from trunkline.log.errors import BatchTooLarge, LogError
from trunkline.log.records import LightNewRecord
from trunkline.log.store import Durability
from trunkline.log.ticket import Ticket
from trunkline.protocols.mqtt.promises import Promise, Promises
from trunkline.protocols.mqtt.routes import Route
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.source import Source

logger = logging.getLogger(__name__)

_BATCH_TARGET_BYTES = 900 << 10  # under Kafka's default of max.message.bytes; one run may be larger
_RECORD_OVERHEAD_BYTES = 32  # lengths, offset and timestamp

# A run, where it goes, and the headers of its records.
Publication = tuple[Route, Run, bytes]


class Latecomers(Protocol):
    """Who is told of publications whose place is not known at once."""

    def await_places(self, items: list[Publication]) -> None:
        """These were appended, and have no place yet."""

    def placed_late(self, source: Source, items: list[Publication], promise: Promise) -> None:
        """These were written to the source, and `promise` waits for them. Runs without an offset did not get a place."""


class Unstored(Protocol):
    """Who is told of publications that were not stored. `section` is the header section of their records."""

    def refused(self, run: Run, section: bytes) -> None:
        """The log topic does not take this publication, a run of one."""

    def lost(self, run: Run, section: bytes) -> None:
        """These could not be written, or perhaps not all of it."""

    def unplaced(self, run: Run, section: bytes) -> None:
        """There is no log topic for these, and none could be made."""


class Writer:
    def __init__(self, promises: Promises, unstored: Unstored, latecomers: Latecomers) -> None:
        self._promises = promises
        self._unstored = unstored
        self._latecomers = latecomers
        self.unplaced_bytes = 0  # of payloads that were written and have no place yet

    def append(self, publications: list[Publication], promise: Promise) -> None:
        """Write those that have a source."""
        by_source: dict[Source, list[Publication]] = {}
        for item in publications:
            source = item[0].source
            if source is not None:
                found = by_source.get(source)
                if found is None:
                    found = by_source[source] = []
                found.append(item)
        for source, items in by_source.items():
            self._append_to(source, items, promise)

    def _append_to(self, source: Source, items: list[Publication], promise: Promise) -> None:
        """Append to one source, in batches of a size that a log topic takes."""
        batch: list[Publication] = []
        size_bytes = 0
        for item in items:
            route, run, section = item
            overhead_bytes = len(route.key) + len(section) + _RECORD_OVERHEAD_BYTES
            run_bytes = run.size_bytes + len(run.payloads) * overhead_bytes
            if batch and size_bytes + run_bytes > _BATCH_TARGET_BYTES:
                self._append_batch(source, batch, promise)
                batch, size_bytes = [], 0
            batch.append(item)
            size_bytes += run_bytes
        self._append_batch(source, batch, promise)

    def _append_batch(self, source: Source, items: list[Publication], promise: Promise) -> None:
        records: list[LightNewRecord] = []
        acknowledged = exactly_once = False
        for route, run, section in items:
            key, payloads = route.key, run.payloads
            if len(payloads) == 1:
                records.append((key, payloads[0], section, -1))
            else:
                records += [(key, payload, section, -1) for payload in payloads]
            acknowledged = acknowledged or run.qos > 0
            exactly_once = exactly_once or run.qos == 2
        try:
            ticket = source.append(records, Durability.DISK if acknowledged else Durability.NONE)
        except BatchTooLarge:
            self._one_by_one(source, items, promise)
            return
        except LogError as error:
            logger.error("%s did not take %d publications: %s", source.tp, len(records), error)
            promise.failed = True
            self._lost(items)
            return
        place = ticket.place
        if place is None or source.awaits_places:
            self._await_place(source, items, promise, ticket)
            return
        _place(items, place.base_offset)
        if exactly_once:  # before the promise hears of it, which may let a client send again
            ticket.add_done_callback(lambda _: self._written(ticket, items))
        self._promises.wait_for(promise, ticket)

    def _one_by_one(self, source: Source, items: list[Publication], promise: Promise) -> None:
        """The topic does not take the batch: the others are not to suffer for the one that is too large."""
        if len(items) == 1 and len(items[0][1]) == 1:
            self._unstored.refused(items[0][1], items[0][2])
            return
        for route, run, section in items:
            run.parts = run.split()
            for part in run.parts:
                self._append_batch(source, [(route, part, section)], promise)

    def _written(self, ticket: Ticket, items: list[Publication]) -> None:
        if ticket.cancelled() or ticket.exception() is not None:
            self._lost(items)

    def _lost(self, items: list[Publication]) -> None:
        for _, run, section in items:
            self._unstored.lost(run, section)

    # -- places that come late -----------------------------------------------------------------------------------------

    def _await_place(self, source: Source, items: list[Publication], promise: Promise, ticket: Ticket) -> None:
        size_bytes = sum(sum(map(len, run.payloads)) for _, run, _ in items)
        self.unplaced_bytes += size_bytes
        promise.open += 1  # for the ticket, whatever becomes of it
        self._latecomers.await_places(items)
        source.when_placed(ticket, lambda: self._place_known(source, items, promise, ticket, size_bytes))
        ticket.add_done_callback(lambda _: self._ended(source, items, promise, ticket))

    def _place_known(
        self, source: Source, items: list[Publication], promise: Promise, ticket: Ticket, size_bytes: int
    ) -> None:
        self.unplaced_bytes -= size_bytes
        if ticket.place is not None:
            _place(items, ticket.place.base_offset)
        self._latecomers.placed_late(source, items, promise)

    def _ended(self, source: Source, items: list[Publication], promise: Promise, ticket: Ticket) -> None:
        error = None if ticket.cancelled() else ticket.exception()
        failed = ticket.cancelled() or error is not None
        if isinstance(error, BatchTooLarge):
            # What was written meanwhile stays in front of them.
            failed = False
            self._one_by_one(source, items, promise)
        elif failed:
            logger.error("%s did not store %d publications: %s", source.tp, len(items), error or "cancelled")
            self._lost(items)
        self._promises.settle(promise, failed=failed)


def _place(items: list[Publication], offset: int) -> None:
    for _, run, _ in items:
        run.offset = offset
        offset += len(run.payloads)
