"""The hub: where the publications of a turn meet the log and the subscriptions.

What connections read in one pass of the event loop is one turn. It ends with the last read, if that is the last thing to
do in the pass, or else behind it. At its end (`_flush`), in this order:

1. every source (log partition) that got publications appends them as one batch; retained messages are set;
2. the publications are offered to the sessions that follow live, in the order in which they came, in runs (see `run`): a
   run is encoded once for all QoS 0 subscribers of one version, and once per subscriber otherwise;
3. whatever changed in sessions that are kept is written to `__sessions`, as one batch;
4. each connection's output is written, with one write;
5. acknowledgements leave when everything that the turn appended is as durable as promised, turn by turn, so that they
   leave in the order of what they acknowledge [MQTT-4.6.0-2 to MQTT-4.6.0-4].

A turn whose log topic does not exist yet waits until it is created; meanwhile connections are not read once
`max_turn_bytes` are waiting.

A failed append is final for that turn: the connections that wait for its acknowledgements are closed, and their clients
will send again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from trunkline.broker.complaints import Complaints
from trunkline.broker.state.retained import RetainedFull, RetainedMessages
from trunkline.clock import Clock
from trunkline.log.errors import LogError
from trunkline.log.store import Durability, LogStore
from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.counters import Counters
from trunkline.protocols.mqtt.keep_alive import KeepAlive
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.management import Management
from trunkline.protocols.mqtt.message import Message, header_section, message_of, wire_properties
from trunkline.protocols.mqtt.packets import Will
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.subscription import Route, Routes
from trunkline.protocols.mqtt.turns import Turn, Turns
from trunkline.protocols.mqtt.writer import Publication, Writer

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.access import Access
    from trunkline.protocols.mqtt.exchange_bindings import ExchangeBindings
    from trunkline.protocols.mqtt.link import Link
    from trunkline.protocols.mqtt.session import Session
    from trunkline.protocols.mqtt.session_journal import SessionJournal
    from trunkline.protocols.mqtt.sessions import Sessions
    from trunkline.protocols.mqtt.share_group import ShareGroup
    from trunkline.protocols.mqtt.source import Source
    from trunkline.protocols.mqtt.sources import Sources
    from trunkline.protocols.mqtt.state import SessionState

logger = logging.getLogger(__name__)


class Hub:
    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        limits: MqttLimits,
        routes: Routes,
        sources: Sources,
        retained: RetainedMessages,
        journal: SessionJournal,
        bindings: ExchangeBindings,
        access: Access,
        complaints: Complaints,
    ) -> None:
        self.sessions: Sessions  # set by Sessions itself
        self.store = store
        self.clock = clock
        self.limits = limits
        self.routes = routes
        self.sources = sources
        self.retained = retained
        self.journal = journal
        self.bindings = bindings
        self.counters = Counters()
        self.queued_bytes = 0  # kept by the sessions: messages in no log that wait for room in a window
        self.keep_alive = KeepAlive(clock)
        self.access = access
        self.complaints = complaints
        self.management = Management(self)
        # The turn that is being collected.
        self._publications: list[Publication] = []
        self.pending_bytes = 0
        self._acks: list[Link] = []
        self._then: list[Callable[[bool], None]] = []
        self._needs_disk = False
        self._retained_need_disk = False
        self._touched: list[Link] = []
        self._again: list[Link] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = False
        self._scheduled = False  # whether a flush is due
        self._queued = False  # whether the loop knows
        self._put_off = False  # whether it waits for the next read
        self._waiting_for_topic = False
        self._turns = Turns()
        self._writer = Writer(self._turns, self)
        self._changed_flows: dict[SessionState, None] = {}
        self._changed_inbound: dict[SessionState, None] = {}
        self._changed_groups: dict[ShareGroup, None] = {}
        self._held: list[Session] = []
        self._background: set[asyncio.Task[None]] = set()

    # -- collecting ----------------------------------------------------------------------------------------------------

    def publish(self, route: Route, run: Run, section: bytes) -> None:
        """Take publications into this turn. `section` is their records' headers."""
        self._publications.append((route, run, section))
        payloads = run.payloads
        run.size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        self.pending_bytes += run.size_bytes
        if not self._scheduled:
            self.schedule()

    def schedule(self) -> None:
        self._scheduled = True
        if not self._queued and not self._reading:
            self._queue()

    def _queue(self) -> None:
        self._queued = True
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._flush)

    def read_begins(self) -> None:
        """Until `read_ends`, only collect."""
        self._reading = True

    def read_ends(self, *, in_packet: bool = False) -> None:
        """End the turn now if the loop has nothing else to do in this pass, else at the end of the pass.

        A read that ends within a packet is about to be followed by another: one turn, and one commit, for both.
        """
        self._reading = False
        if not self._scheduled or self._queued:
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._put_off:
            return
        if in_packet:
            self._put_off = True
            # The next pass reads, and the turn ends behind it.
            self._loop.call_soon(self._loop.call_soon, self._take_up)
            return
        # What asyncio's own loops have yet to run in this pass; another loop's turn ends in the next pass.
        if getattr(self._loop, "_ready", True):
            self._queue()
        else:
            self._flush()

    def _take_up(self) -> None:
        """End the turn that was put off, if nothing else has."""
        self._put_off = False
        if self._scheduled and not self._queued:
            self._flush()

    def touch(self, session: Link) -> None:
        """The session has output, or something that waits and may go on."""
        self._touched.append(session)
        if not self._scheduled:
            self.schedule()

    def pump_again(self, session: Link) -> None:
        """The session has more to send in the next turn."""
        self._again.append(session)

    def acknowledge_later(self, session: Link) -> None:
        """The session has acknowledgements that must wait for this turn's appends."""
        self._acks.append(session)
        if not self._scheduled:
            self.schedule()

    def after_stored(self, then: Callable[[bool], None]) -> None:
        """Call when everything that this turn writes is on disk, with whether that went well."""
        self._then.append(then)
        self._needs_disk = True
        self.schedule()

    def need_disk(self) -> None:
        """What this turn writes to `__sessions` must be on disk before the turn's acknowledgements leave."""
        self._needs_disk = True

    def inbound_changed(self, state: SessionState) -> None:
        """The packet identifiers of a kept session's QoS 2 publications changed: on disk before it is acknowledged."""
        self._changed_inbound[state] = None
        self._needs_disk = True

    def flow_changed(self, state: SessionState) -> None:
        self._changed_flows[state] = None
        if not self._scheduled:
            self.schedule()

    def group_changed(self, group: ShareGroup) -> None:
        if group.persistent or group.in_journal:
            self._changed_groups[group] = None
            self.schedule()

    def congested(self) -> bool:
        return self.pending_bytes > self.limits.max_turn_bytes

    def hold(self, session: Session) -> None:
        """Tell the session (`resume`) when the turn has room again."""
        self._held.append(session)

    # -- the end of a turn ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._queued = True  # what is scheduled meanwhile is for this flush, or the next
        try:
            if not self._waiting_for_topic:
                self._end_turn()
        except Exception:
            logger.exception("the end of a turn failed")
        finally:
            self._scheduled = self._queued = False
        if not self._waiting_for_topic and self._more_to_do():
            self.schedule()
        if self._held and not self.congested():
            held, self._held = self._held, []
            for session in held:
                session.resume()

    def _more_to_do(self) -> bool:
        """Whether ending the turn has brought up what belongs to the next."""
        return bool(
            self._touched
            or self._publications
            or self._acks
            or self._then
            or self._changed_flows
            or self._changed_groups
            or self._changed_inbound
        )

    def _end_turn(self) -> None:
        if self._publications:
            missing = self._bind_sources()
            if missing:
                self._waiting_for_topic = True
                self._run_in_background(self._create(missing))
                return
        turn = Turn([(session, session.take_acks()) for session in self._acks], self._then)
        self._acks, self._then = [], []
        try:
            self._carry_out(turn)
        except Exception:
            turn.failed = True  # nobody waits for ever, and nothing is acknowledged that may not be stored
            raise
        finally:
            self._turns.add(turn)

    def _carry_out(self, turn: Turn) -> None:
        if self._publications:
            self._store_and_deliver(turn)
        # Delivering may touch sessions, and pumping them may touch flows: sessions first, then the journal, then output.
        touched, self._touched = self._touched, []
        for session in touched:
            self._guarded(session, session.pump)
        self._write_sessions(turn)
        touched += self._touched
        self._touched = []
        for session in touched:
            self._guarded(session, session.flush)
        again, self._again = self._again, []
        self._touched += again

    def _guarded(self, session: Link, work: Callable[[], None]) -> None:
        """One session's trouble is its own: the others' output and acknowledgements must not suffer."""
        try:
            work()
        except Exception as error:
            text = f"closing the MQTT connection of {session.client_id!r:.200}"
            self.complaints.add("failed MQTT turn", session.peer, text, error=error)
            session.abandon()

    def _bind_sources(self) -> set[str]:
        """Find the source of each publication; returns the log topics that do not exist yet."""
        missing: set[str] = set()
        last: Route | None = None
        for route, run, _ in self._publications:
            if route is not last:
                last = route
                if route.source is None and route.mapped is not None:
                    route.source = self.sources.find(route.mapped)
                    if route.source is None:
                        missing.add(route.mapped.topic)
            run.source = route.source
        return missing

    async def _create(self, names: set[str]) -> None:
        failed: set[str] = set()
        for name in names:
            try:
                await self.sources.create(name)
            except LogError as error:
                logger.error("cannot create topic %s; what was published to it is refused: %s", name, error)
                failed.add(name)
        if failed:
            kept = []
            for item in self._publications:
                if item[0].mapped is not None and item[0].mapped.topic in failed:
                    self.sessions.unplaced(item[1], item[2])
                else:
                    kept.append(item)
            self._publications = kept
        self._waiting_for_topic = False
        self.schedule()

    def _store_and_deliver(self, turn: Turn) -> None:
        publications, self._publications = self._publications, []
        self.pending_bytes = 0
        self._append(publications, turn)
        self._deliver(publications)
        waiting, stored = self.bindings.flush()
        turn.failed = turn.failed or not stored
        for future in waiting:
            self._turns.wait_for(turn, future)

    def _deliver(self, publications: list[Publication]) -> None:
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
                self.offer(route, run.joined([each for _, each, _ in publications[position:end]]))
            else:
                for part in run.parts or (run,):
                    self.offer(route, part)
            if self.bindings.bound(route):
                for _, each, section in publications[position:end]:
                    for part in each.parts or (each,):
                        self.bindings.forward(route, part, section)
            position = end

    def offer(self, route: Route, run: Run) -> None:
        """Hand a run to those who follow live."""
        source = run.source
        if source is not None and (source.behind or run.offset < 0):
            return  # it is read from the log, behind what others appended; or it could not be stored
        for target in route.targets:
            target.state.deliver(run, target)
        for group in route.groups:
            group.deliver(run)
        if source is not None:
            source.delivered(route.topic, run.offset + len(run) - 1)

    def _append(self, publications: list[Publication], turn: Turn) -> None:
        for _, run, section in publications:
            if run.retain:
                for payload in run.payloads:
                    self._retain(run.topic, payload, section, reserved=run.qos > 0)
                self._retained_need_disk = self._retained_need_disk or run.qos > 0
        self.retained.end_reservations()
        self._writer.append(publications, turn)

    def refused(self, run: Run, section: bytes) -> None:
        self.sessions.refused(run, section)

    def lost(self, run: Run, section: bytes) -> None:
        self.sessions.lost(run, section)

    def _write_sessions(self, turn: Turn) -> None:
        for state in self._changed_flows:
            self.journal.put_flow(state)
        for group in self._changed_groups:
            self.journal.put_group(group)
        if self._changed_inbound:
            for state in self._changed_inbound:
                if state.in_journal:
                    self.journal.put_inbound(state)
            self._changed_inbound.clear()
            self.sessions.mark_seen(always=True)
        self._changed_flows.clear()
        self._changed_groups.clear()
        if self.retained.dirty:
            durability = Durability.DISK if self._retained_need_disk else Durability.OS
            self._retained_need_disk = False
            self._turns.wait(turn, lambda: self.retained.flush(durability))
        needs_disk, self._needs_disk = self._needs_disk, False
        if self.journal.dirty:
            wanted = Durability.DISK if needs_disk else Durability.OS
            self._turns.wait(turn, lambda: self.journal.flush(wanted))

    # -- retained ------------------------------------------------------------------------------------------------------

    def _retain(self, topic: str, payload: bytes, section: bytes, *, reserved: bool) -> None:
        try:
            if payload:
                self.retained.put(topic, payload, section, reserved=reserved)
            else:
                self.retained.clear(topic)
        except RetainedFull as error:
            self.counters.retained_refused += 1
            self.complaints.add("retained message", "MQTT", f"a retained message was not kept: {error}")

    def retained_message(self, name: str) -> Message | None:
        """The retained message of a name, as it goes to a new subscription: with the retain flag [MQTT-3.3.1-8]."""
        found = self.retained.get(name)
        if found is None:
            return None
        message = message_of((-1, found.timestamp_ms, name.encode(), found.payload, found.headers), None, name)
        message.topic = name
        message.retain = True
        if self.seconds_left(message) == 0:
            self.retained.clear(name)
            self.schedule()
            return None
        return message

    # -- what someone else appended ------------------------------------------------------------------------------------

    def source_changed(self, source: Source) -> None:
        """A source is behind: read what was appended to it, and offer that in its order."""
        if source not in self.sources.reading:
            self.sources.reading.add(source)
            self._run_in_background(self._read_source(source))

    async def _read_source(self, source: Source) -> None:
        try:
            while source.behind:
                runs, following = await source.read(source.delivered_to, self.limits.catch_up_read_bytes)
                bounds = self.store.bounds(source.tp)
                if following == source.delivered_to and bounds.last_stable_offset <= following:
                    # An open transaction may hold up what follows it; its end wakes us again.
                    source.behind = bounds.high_watermark > following
                    break
                self._offer_read(source, runs, following)
                await asyncio.sleep(0)
        except LogError as error:
            logger.warning("%s cannot be read: %s", source.tp, error)
            self.sources.drop(source)
            self.routes.known.clear()
        finally:
            self.sources.reading.discard(source)

    def _offer_read(self, source: Source, runs: list[Run], following: int) -> None:
        source.behind = False  # `offer` is to take these; nothing else runs meanwhile
        for run in runs:
            try:
                self.offer(self.routes.route(run.topic), run)
            except Exception as error:
                source.undeliverable(run.offset, error)
        source.delivered_to = following
        source.behind = True
        self.schedule()

    # -- wills ---------------------------------------------------------------------------------------------------------

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
        route = self.routes.route(topic)
        if route.refusal:
            self.counters.refused += 1
            return
        if retain and qos and not self.retained.reserve(topic, len(payload)):
            self.counters.retained_refused += 1
            retain = False
        expires_ms = None
        if properties is not None and properties.message_expiry_interval is not None:
            expires_ms = self.clock.wall_ms() + properties.message_expiry_interval * 1000
        section = header_section(
            qos=qos, retain=retain, publisher=publisher, properties=properties, topic=None if route.named else topic
        )
        run = Run(topic, [payload], qos, retain, wire_properties(properties), expires_ms, publisher)
        self.publish(route, run, section)

    def watch_keep_alive(self, session: Session) -> None:
        self.keep_alive.add(session)

    # -- small things --------------------------------------------------------------------------------------------------

    def seconds_left(self, message: Message) -> int | None:
        """Until the message expires: 0 when it has, None when it never does."""
        if message.expires_ms is None:
            return None
        left_ms = message.expires_ms - self.clock.wall_ms()
        return 0 if left_ms <= 0 else -(-left_ms // 1000)

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._publications or self.journal.dirty:
            self._flush()
