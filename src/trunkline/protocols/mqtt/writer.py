"""Writes the publications of a turn to the log: one batch per source, or as many as a log topic's limit makes of it.

QoS 1 and 2 are written to be on disk, and the turn waits for that. When a batch is too large for its topic, its publications
are written one by one, so that only the one that does not fit is refused. Another failure is final for the turn.

Whoever is not stored is reported, one by one (`Unstored`): an identifier of QoS 2 must be forgotten then, or the
publication would be taken for stored when it comes again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from trunkline.log.errors import BatchTooLarge, LogError
from trunkline.log.records import LightNewRecord
from trunkline.log.store import Durability
from trunkline.log.ticket import Appended
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.subscription import Route
from trunkline.protocols.mqtt.turns import Turn, Turns

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.source import Source

logger = logging.getLogger(__name__)

_BATCH_TARGET_BYTES = 900 << 10  # under Kafka's default of max.message.bytes; one run may be larger
_RECORD_OVERHEAD_BYTES = 32  # lengths, offset and timestamp

# A run, where it goes, and the headers of its records.
Publication = tuple[Route, Run, bytes]


class Unstored(Protocol):
    """Who is told of publications that were not stored. `section` is the header section of their records."""

    def refused(self, run: Run, section: bytes) -> None:
        """The log topic does not take this publication, a run of one."""

    def lost(self, run: Run, section: bytes) -> None:
        """These could not be written, or perhaps not all of it."""


class Writer:
    def __init__(self, turns: Turns, unstored: Unstored) -> None:
        self._turns = turns
        self._unstored = unstored

    def append(self, publications: list[Publication], turn: Turn) -> None:
        """Write those that have a source; their runs then know their offsets."""
        by_source: dict[Source, list[Publication]] = {}
        for item in publications:
            source = item[1].source
            if source is not None:
                found = by_source.get(source)
                if found is None:
                    found = by_source[source] = []
                found.append(item)
        for source, items in by_source.items():
            self._append_to(source, items, turn)

    def _append_to(self, source: Source, items: list[Publication], turn: Turn) -> None:
        """Append to one source, in batches of a size that a log topic takes."""
        batch: list[Publication] = []
        size_bytes = 0
        for item in items:
            route, run, section = item
            overhead_bytes = len(route.key) + len(section) + _RECORD_OVERHEAD_BYTES
            run_bytes = run.size_bytes + len(run.payloads) * overhead_bytes
            if batch and size_bytes + run_bytes > _BATCH_TARGET_BYTES:
                self._append_batch(source, batch, turn)
                batch, size_bytes = [], 0
            batch.append(item)
            size_bytes += run_bytes
        self._append_batch(source, batch, turn)

    def _append_batch(self, source: Source, items: list[Publication], turn: Turn) -> None:
        records: list[LightNewRecord] = []
        acknowledged = False
        for route, run, section in items:
            key, payloads = route.key, run.payloads
            if len(payloads) == 1:
                records.append((key, payloads[0], section, -1))
            else:
                records += [(key, payload, section, -1) for payload in payloads]
            acknowledged = acknowledged or run.qos > 0
        try:
            offset, future = source.append(records, Durability.DISK if acknowledged else Durability.NONE)
        except BatchTooLarge:
            if len(records) == 1:
                self._unstored.refused(items[0][1], items[0][2])
                return
            for route, run, section in items:  # one is too large for the topic: the others are not to suffer for it
                run.parts = run.split()
                for part in run.parts:
                    self._append_batch(source, [(route, part, section)], turn)
            return
        except LogError as error:
            logger.error("%s did not take %d publications: %s", source.tp, len(records), error)
            turn.failed = True
            self._lost(items)
            return
        exactly_once = False
        for _, run, _ in items:
            run.offset = offset
            offset += len(run.payloads)
            exactly_once = exactly_once or run.qos == 2
        if exactly_once:  # before the turn hears of it, which may let a client send again
            future.add_done_callback(lambda done: self._written(done, items))
        self._turns.wait_for(turn, future)

    def _written(self, future: asyncio.Future[Appended], items: list[Publication]) -> None:
        if future.cancelled() or future.exception() is not None:
            self._lost(items)

    def _lost(self, items: list[Publication]) -> None:
        for _, run, section in items:
            self._unstored.lost(run, section)
