"""Publications: collected during a turn, written and offered at its end.

A turn whose log topic does not exist yet waits until it is created. Connections are not read once `max_turn_bytes` wait to
be written, or to be told their place in the log.

With a store that knows places at once, a publication is offered in the turn in which it is written; with any other, as
soon as its place is known. It is retained at that moment, too; who subscribes meanwhile waits for that (see `under_way`), so
that it is a new subscriber's once, and as a retained message.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from trunkline.broker.counters import MqttCounters
from trunkline.broker.messaging.queue import Queue
from trunkline.clock import Clock
from trunkline.log.errors import LogError
from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.agenda import Agenda
from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.exchange_bindings import ExchangeBindings
from trunkline.protocols.mqtt.feed import Feed
from trunkline.protocols.mqtt.message import header_section, wire_properties
from trunkline.protocols.mqtt.packets import Will
from trunkline.protocols.mqtt.promises import Promise, Promises
from trunkline.protocols.mqtt.retention import Retention
from trunkline.protocols.mqtt.routes import Route, Routes
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.source import Source
from trunkline.protocols.mqtt.sources import Sources
from trunkline.protocols.mqtt.writer import Publication, Unstored, Writer

logger = logging.getLogger(__name__)


class Paused(Protocol):
    """A connection that is not read."""

    def resume(self) -> None: ...


class Publishers(Unstored, Protocol):
    """Who is told what becomes of publications. `section` is the header section of their records."""

    def under_way(self, run: Run, section: bytes) -> None:
        """These were sent to the store, which has not told their place."""

    def landed(self, run: Run, section: bytes) -> None:
        """These were under way, and have their place, or will not have one."""


class Publishing:
    def __init__(
        self,
        clock: Clock,
        counters: MqttCounters,
        routes: Routes,
        sources: Sources,
        feed: Feed,
        retention: Retention,
        bindings: ExchangeBindings,
        agenda: Agenda,
        promises: Promises,
        publishers: Publishers,
        max_turn_bytes: int,
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._routes = routes
        self._sources = sources
        self._feed = feed
        self._retention = retention
        self._bindings = bindings
        self._agenda = agenda
        self._promises = promises
        self._publishers = publishers
        self._writer = Writer(promises, publishers, self)
        self._max_turn_bytes = max_turn_bytes
        self._publications: list[Publication] = []
        self._pending_bytes = 0
        self._held: list[Paused] = []
        self._creation: asyncio.Task[None] | None = None
        self._unplaced: set[Run] | None = None  # of the turn that is being written; with retained ones only

    # -- collecting ----------------------------------------------------------------------------------------------------

    def publish(self, route: Route, run: Run, section: bytes) -> None:
        """Take publications into this turn. `section` is their records' headers."""
        self._publications.append((route, run, section))
        payloads = run.payloads
        run.size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        self._pending_bytes += run.size_bytes
        if run.retain:
            self._retention.under_way.come(run.topic)
        if not self._agenda.scheduled:
            self._agenda.schedule()

    def publish_will(self, will: Will, publisher: str) -> None:
        """Publish a will as if its client had just published it [MQTT-3.1.2-8]."""
        properties = will.properties
        if properties is not None:
            properties.will_delay_interval = None
        self.publish_as(publisher, will.topic, will.payload, qos=will.qos, retain=will.retain, properties=properties)

    def publish_as(
        self,
        publisher: str,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish without a connection, so that nobody can be told what is refused."""
        route = self._routes.route(topic)
        if route.refusal:
            self._counters.refused += 1
            return
        if retain and qos and not self._retention.messages.reserve(topic, len(payload)):
            self._counters.retained_refused += 1
            retain = False
        expires_ms = None
        if properties is not None and properties.message_expiry_interval is not None:
            expires_ms = self._clock.wall_ms() + properties.message_expiry_interval * 1000
        section = header_section(
            qos=qos, retain=retain, publisher=publisher, properties=properties, topic=None if route.named else topic
        )
        run = Run(topic, [payload], qos, retain, wire_properties(properties), expires_ms, publisher)
        self.publish(route, run, section)

    def queues_of(self, route: Route) -> tuple[Queue, ...]:
        """The queues of AMQP that get this topic's publications."""
        return route.queues if self._bindings.bound(route) else ()

    def congested(self) -> bool:
        return self._pending_bytes + self._writer.unplaced_bytes > self._max_turn_bytes

    def hold(self, connection: Paused) -> None:
        """Tell the connection (`resume`) when there is room again."""
        self._held.append(connection)

    def resume_held(self) -> None:
        if self._held and not self.congested():
            held, self._held = self._held, []
            for connection in held:
                connection.resume()

    # -- the end of a turn ---------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return bool(self._publications)

    def ready(self) -> bool:
        """Whether the turn can end; if not, it is asked to again when the log topics are there that it needs."""
        if self._creation is not None:
            return False
        if self._publications:
            missing = self._bind_sources()
            if missing:
                self._creation = asyncio.get_running_loop().create_task(self._create(missing))
                return False
        return True

    def _bind_sources(self) -> set[str]:
        """Find the source of each publication; returns the log topics that do not exist yet."""
        missing: set[str] = set()
        last: Route | None = None
        partition: TopicPartition | None = None
        for route, run, _ in self._publications:
            if route is not last:
                last = route
                if route.source is None and route.mapped is not None:
                    route.source = self._sources.find(route.mapped)
                    if route.source is None:
                        missing.add(route.mapped.topic)
                partition = route.source.tp if route.source is not None else None
            run.partition = partition
        return missing

    async def _create(self, names: set[str]) -> None:
        failed: set[str] = set()
        for name in names:
            try:
                await self._sources.create(name)
            except LogError as error:
                logger.error("cannot create topic %s; what was published to it is refused: %s", name, error)
                failed.add(name)
        if failed:
            kept = []
            for item in self._publications:
                if item[0].mapped is not None and item[0].mapped.topic in failed:
                    self._publishers.unplaced(item[1], item[2])
                    if item[1].retain:
                        self._retention.under_way.landed(item[1].topic)
                else:
                    kept.append(item)
            self._publications = kept
            self._retention.under_way.let_go()
        self._creation = None
        self._agenda.schedule()

    def carry_out(self, promise: Promise) -> None:
        """Write and offer the publications of the turn."""
        publications, self._publications = self._publications, []
        self._pending_bytes = 0
        unplaced: set[Run] = set()
        self._unplaced = unplaced
        try:
            self._writer.append(publications, promise)
        finally:
            self._unplaced = None
            for _, run, _ in publications:
                if run.retain:
                    self._written(run, sum(part in unplaced for part in run.parts or (run,)))
        for _, run, section in publications:
            if run.retain:
                for part in run.parts or (run,):
                    if part.partition is None or part.offset >= 0:
                        self._retention.retain(part, section)
        self._retention.messages.end_reservations()
        self._feed.offer_all(publications)
        self._forward(publications, promise)
        self._retention.under_way.let_go()

    def _written(self, run: Run, unplaced: int) -> None:
        """A retained publication was written, or not; so many parts of it have no place yet."""
        if not unplaced:
            self._retention.under_way.landed(run.topic)
        for _ in range(unplaced - 1):
            self._retention.under_way.come(run.topic)

    def _forward(self, publications: list[Publication], promise: Promise) -> None:
        """To queues of AMQP that are bound to the topics."""
        bindings = self._bindings
        last: Route | None = None
        bound = False
        for route, run, section in publications:
            if route is not last:
                last, bound = route, bindings.bound(route)
            if bound:
                for part in run.parts or (run,):
                    bindings.forward(route, part, section)
        waiting, stored = bindings.flush()
        promise.failed = promise.failed or not stored
        for future in waiting:
            self._promises.wait_for(promise, future)

    # -- places that come late -----------------------------------------------------------------------------------------

    def await_places(self, items: list[Publication]) -> None:
        for _, run, section in items:
            self._publishers.under_way(run, section)
        retained = [run for _, run, _ in items if run.retain]
        if self._unplaced is not None:
            self._unplaced.update(retained)
            return
        for run in retained:  # it was refused late, and is written again
            self._retention.under_way.come(run.topic)

    def placed_late(self, source: Source, items: list[Publication], promise: Promise) -> None:
        """Publications of an earlier turn have their places, or none: those that have are offered now."""
        placed = [item for item in items if item[1].offset >= 0]
        for _, run, section in items:
            self._publishers.landed(run, section)
            if run.retain:
                self._retention.under_way.landed(run.topic)
        for _, run, section in placed:
            if run.retain:
                self._retention.retain(run, section)
        self._retention.write(promise, self._promises)
        if placed and source.open:
            if source.behind:
                source.fall_behind()  # who reads it must know of these
            else:
                self._feed.offer_all([(self._route_now(route, source), run, section) for route, run, section in placed])
        self._retention.under_way.let_go()
        self.resume_held()

    def _route_now(self, route: Route, source: Source) -> Route:
        """Whom the topic reaches by now: subscriptions may have come and gone since the publication."""
        found = self._routes.route(route.topic)
        if found.source is None:
            found.source = source
        return found

    async def close(self) -> None:
        if self._creation is not None:
            self._creation.cancel()
            await asyncio.gather(self._creation, return_exceptions=True)
