"""The hub: everything of MQTT that connections share, and the order in which a turn ends.

What connections read in one pass of the event loop is one turn, the same as every other protocol's (`broker.turn`). MQTT's
part of its end is, in this order:

1. every source (log partition) that got publications appends them as one batch; retained messages are set;
2. the publications are offered to the sessions that follow live, in the order in which they came, in runs (see `run`): a
   run is encoded once for all QoS 0 subscribers of one version, and once per subscriber otherwise;
3. whatever changed in sessions that are kept is written to `__sessions`, as one batch;
4. each connection's output is written, with one write, when the turn comes to output; with a store that answers late, when
   the batch of 3 has its place, since what a client has been sent must be known after a crash;
5. acknowledgements leave when everything that the turn appended is as durable as promised, turn by turn, so that they
   leave in the order of what they acknowledge [MQTT-4.6.0-2 to MQTT-4.6.0-4].

A failed append is final for that turn: the connections that wait for its acknowledgements are closed, and their clients
will send again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.mapping import Mapping
from trunkline.broker.state.retained import RetainedMessages
from trunkline.log.store import Durability
from trunkline.log.ticket import Ticket
from trunkline.protocols.mqtt.access import Access
from trunkline.protocols.mqtt.agenda import Agenda, Output
from trunkline.protocols.mqtt.exchange_bindings import ExchangeBindings
from trunkline.protocols.mqtt.feed import Feed
from trunkline.protocols.mqtt.inventory import Inventory
from trunkline.protocols.mqtt.keep_alive import KeepAlive
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.management import Management
from trunkline.protocols.mqtt.promises import Promise, Promises
from trunkline.protocols.mqtt.publishing import Publishing
from trunkline.protocols.mqtt.retention import Retention
from trunkline.protocols.mqtt.routes import Routes
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.sessions.commons import Commons
from trunkline.protocols.mqtt.sessions.journal import SessionJournal
from trunkline.protocols.mqtt.sessions.registry import Sessions
from trunkline.protocols.mqtt.source import Source
from trunkline.protocols.mqtt.sources import Sources

logger = logging.getLogger(__name__)


class Hub:
    def __init__(self, broker: BrokerCore, limits: MqttLimits, mapping: Mapping, *, anonymous: bool) -> None:
        store, clock, messaging = broker.store, broker.clock, broker.messaging
        self.clock = clock
        self.limits = limits
        self.complaints = broker.complaints
        self.space = broker.space
        self.turn = broker.turn
        self.control = broker.access
        self.limits_of_users = broker.access.book.limits
        self.access = Access(broker.logins, anonymous=anonymous)
        self.counters = broker.counters.mqtt
        self.keep_alive = KeepAlive(clock)
        self.agenda = Agenda(self.turn, self._end_turn)
        self.retained = RetainedMessages(
            store, clock, max_messages=limits.max_retained_messages, max_bytes=limits.max_retained_bytes
        )
        self.retention = Retention(self.retained, clock, self.counters, self.complaints, self.agenda)
        self.routes = Routes(mapping, limits, self.control)
        self.sources = Sources(broker, mapping, limits.max_packet_bytes, self._source_changed, self._source_dropped)
        self.journal = SessionJournal(store, clock, self.agenda)
        self.feed = Feed(store, self.routes, self.sources, self.agenda, limits)
        self._promises = Promises()
        self.publishing = Publishing(
            clock,
            self.counters,
            self.routes,
            self.sources,
            self.feed,
            self.retention,
            ExchangeBindings(messaging),
            self.agenda,
            self._promises,
            self,
            limits.max_turn_bytes,
        )
        commons = Commons(
            clock,
            limits,
            self.counters,
            self.control,
            self.routes,
            self.sources,
            self.retention,
            self.journal,
            self.agenda,
        )
        self.sessions = Sessions(commons, self.publishing, self.complaints)
        broker.administration.sessions.kept_by(Inventory(self.sessions, commons))
        self.management = Management(broker.administration, self.routes, self.feed)
        self._output: list[Output] = []
        self._waiting_output: deque[tuple[Ticket | None, list[tuple[Output, bytes]]]] = deque()
        self._short_of_space: list[tuple[Output, Callable[[], None]]] = []
        self.space.subscribe(self._space_changed)
        self.control.subscribe(self.sessions.access_changed)

    async def start(self) -> None:
        """Fold the internal topics."""
        await self.retained.start()
        await self.sessions.start()

    # -- sources -------------------------------------------------------------------------------------------------------

    def _source_changed(self, source: Source) -> None:
        self.feed.read(source)

    def _source_dropped(self, source: Source) -> None:
        self.sessions.source_dropped(source)

    # -- publications that were not stored -----------------------------------------------------------------------------

    def refused(self, run: Run, section: bytes) -> None:
        self.sessions.refused(run, section)

    def lost(self, run: Run, section: bytes) -> None:
        self.sessions.lost(run, section)

    def unplaced(self, run: Run, section: bytes) -> None:
        self.sessions.unplaced(run, section)

    # -- publications that have no place yet ---------------------------------------------------------------------------

    def under_way(self, run: Run, section: bytes) -> None:
        self.sessions.under_way(run, section)

    def landed(self, run: Run, section: bytes) -> None:
        self.sessions.landed(run, section)

    # -- space ---------------------------------------------------------------------------------------------------------

    def wait_for_space(self, connection: Output, go_on: Callable[[], None]) -> None:
        """Call `go_on` when the disk has space again."""
        self._short_of_space.append((connection, go_on))

    def _space_changed(self, reason: str | None) -> None:
        if reason is None:
            waiting, self._short_of_space = self._short_of_space, []
            for connection, go_on in waiting:
                self._guarded(connection, go_on)

    # -- the end of a turn ---------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        agenda, publishing = self.agenda, self.publishing
        waits_for_topic = False
        try:
            waits_for_topic = not publishing.ready()
            if not waits_for_topic:
                self._carry_out()
        finally:
            agenda.scheduled = False  # what was asked for meanwhile is done here, or comes next
            if not waits_for_topic and (agenda.pending or publishing.pending or self.journal.changed):
                agenda.schedule()
            publishing.resume_held()

    def _carry_out(self) -> None:
        agenda = self.agenda
        promise = Promise(agenda.take_acks(), agenda.take_then())
        try:
            if self.publishing.pending:
                self.publishing.carry_out(promise)
            # Delivering may touch connections, and pumping them may change flows: first these, then the journal, then output.
            touched = agenda.take_touched()
            for connection in touched:
                self._guarded(connection, connection.pump)
            written = self._write_sessions(promise)
            touched += agenda.take_touched()
            if self._waiting_output or (written is not None and written.place is None):
                self._put_off_output(touched, written)
            elif touched:
                if not self._output:
                    self.turn.output(self._write_output)
                self._output += touched
        except Exception:
            promise.failed = True  # nobody waits for ever, and nothing is acknowledged that may not be stored
            raise
        finally:
            self._promises.add(promise)

    def _write_sessions(self, promise: Promise) -> Ticket | None:
        journal, agenda = self.journal, self.agenda
        if journal.changed:
            inbound = journal.inbound_is_changed
            journal.put_changes()
            if inbound:
                self.sessions.mark_seen(always=True)
        self.retention.write(promise, self._promises)
        needs_disk, agenda.needs_disk = agenda.needs_disk, False
        if not journal.dirty:
            return None
        return self._promises.write(promise, lambda: journal.flush(Durability.DISK if needs_disk else Durability.OS))

    def _put_off_output(self, touched: list[Output], written: Ticket | None) -> None:
        """Write this behind what waits already, and not before the sessions have their place in the log."""
        output = [(connection, connection.take_output()) for connection in touched]
        self._waiting_output.append((written, output))
        if written is not None:
            written.when_placed(self._sessions_placed)

    def _sessions_placed(self, _: Ticket) -> None:
        waiting = self._waiting_output
        while waiting and (waiting[0][0] is None or waiting[0][0].place is not None or waiting[0][0].done()):
            for connection, data in waiting.popleft()[1]:
                if data:
                    self._guarded(connection, partial(connection.write, data))

    def later(self, connection: Output, work: Callable[[], None]) -> None:
        """Do this for a connection behind the turn that ends, or whatever else runs now."""
        asyncio.get_running_loop().call_soon(self._guarded, connection, work)

    def _write_output(self) -> None:
        output, self._output = self._output, []
        for connection in output:
            self._guarded(connection, connection.flush)

    def _guarded(self, connection: Output, work: Callable[[], None]) -> None:
        """One connection's trouble is its own: the others' output and acknowledgements must not suffer."""
        try:
            work()
        except Exception as error:
            text = f"closing the MQTT connection of {connection.client_id!r:.200}"
            self.complaints.add("failed MQTT turn", connection.peer, text, error=error)
            connection.abandon()

    async def close(self) -> None:
        await self.feed.close()
        await self.publishing.close()
        if self.publishing.pending or self.journal.dirty or self.journal.changed:
            self.agenda.schedule()
            self.turn.run()
        self.sources.close()
