"""The feed: what is in the log, offered to everyone who follows live, in the order of each source.

A publication of this broker is offered from memory as soon as its place is known, if that place is the next one. Where
somebody else's records lie in front of it, they are read from the log, and it with them (`Source.behind`).
"""

from __future__ import annotations

import asyncio
import logging

from trunkline.log.errors import LogError
from trunkline.log.store import LogStore
from trunkline.protocols.mqtt.agenda import Agenda
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.routes import Route, Routes
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.source import Source
from trunkline.protocols.mqtt.sources import Sources
from trunkline.protocols.mqtt.writer import Publication

logger = logging.getLogger(__name__)


class Feed:
    def __init__(self, store: LogStore, routes: Routes, sources: Sources, agenda: Agenda, limits: MqttLimits) -> None:
        self._store = store
        self._routes = routes
        self._sources = sources
        self._agenda = agenda
        self._limits = limits
        self._reading: set[Source] = set()  # those that someone reads because they are behind
        self._tasks: set[asyncio.Task[None]] = set()

    def offer_all(self, publications: list[Publication]) -> None:
        """Offer the publications in their order, those of several publishers together where it makes no difference."""
        position, count = 0, len(publications)
        while position < count:
            route, run, _ = publications[position]
            end = position + 1
            if not route.knows_publishers:
                following = run.offset + len(run.payloads)
                while end < count:
                    next_route, next_run, _ = publications[end]
                    if next_route is not route or not run.goes_with(next_run, following):
                        break
                    following += len(next_run.payloads)
                    end += 1
            if end > position + 1:
                self.offer(route, run.joined([each for _, each, _ in publications[position:end]]), route.source)
            else:
                for part in run.parts or (run,):
                    self.offer(route, part, route.source)
            position = end

    def offer(self, route: Route, run: Run, source: Source | None = None) -> None:
        """Hand a run to those who follow live. `source` is where it is stored; without one it is not to be."""
        if source is not None and (source.behind or run.offset != source.delivered_to):
            # It is read from the log, behind what others appended, or has been; or it is not stored, or has no place yet.
            if run.offset > source.delivered_to and not source.behind:
                source.fall_behind()
            return
        for target in route.targets:
            target.session.deliver(run, target)
        for group in route.groups:
            group.deliver(run)
        if source is not None:
            source.delivered(route.topic, run.offset + len(run) - 1)

    # -- what someone else appended ------------------------------------------------------------------------------------

    def read(self, source: Source) -> None:
        """A source is behind: read what was appended to it, and offer that in its order."""
        if source not in self._reading:
            self._reading.add(source)
            task = asyncio.get_running_loop().create_task(self._read(source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read(self, source: Source) -> None:
        try:
            while source.behind:
                source.news = False
                runs, following = await source.read(source.delivered_to, self._limits.catch_up_read_bytes)
                bounds = self._store.bounds(source.tp)
                if following == source.delivered_to and bounds.last_stable_offset <= following and not source.news:
                    # An open transaction may hold up what follows it; its end wakes us again.
                    source.behind = bounds.high_watermark > following
                    break
                self._offer_read(source, runs, following)
                await asyncio.sleep(0)
        except LogError as error:
            logger.warning("%s cannot be read: %s", source.tp, error)
            self._sources.drop(source)
            self._routes.known.clear()
        finally:
            self._reading.discard(source)

    def _offer_read(self, source: Source, runs: list[Run], following: int) -> None:
        for run in runs:
            source.behind = False  # `offer` is to take this; nothing else runs meanwhile
            source.delivered_to = run.offset  # what was left out of the reading is no publication
            try:
                self.offer(self._routes.route(run.topic), run, source)
            except Exception as error:
                source.undeliverable(run.offset, error)
        source.delivered_to = following
        source.behind = True
        self._agenda.schedule()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
