"""The session of a client, which may outlive its connection: subscriptions, window, place in the log, will.

A session whose expiry is 0 (a clean session, in the older versions) ends with its connection and is nowhere but here. Any
other is also in `__sessions` (see `registry`): whatever changed in a turn is written at the end of that turn, before what
depends on it is sent:

- a QoS 1 or 2 publication is sent to the client after its packet identifier, its place in the log and the session's own
  place behind it were written, together; so after a crash it is sent again under that identifier, and never under two;
- PUBREL is sent after it was written that PUBREC has come; so PUBLISH is not sent again to a client that may have let
  go of the identifier;
- PUBREC is sent after the publication and its identifier are on disk; so when it comes again it is known. The identifier is
  not written before the publication has its place: a crash in between must not leave it for one that is not there. The
  other way round does no harm, since the record of a publication has its identifier, too.

`deliver` is the hot path: a run of messages of one topic, to this session, in one call.
"""

from __future__ import annotations

import logging
from collections import deque

from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.codec import NO_PROPERTIES, OutgoingPublish, encode_publishes, encode_run, publish_bytes
from trunkline.protocols.mqtt.link import Link
from trunkline.protocols.mqtt.message import Message, with_extras
from trunkline.protocols.mqtt.packets import V5, Will
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.sessions.commons import Commons
from trunkline.protocols.mqtt.sessions.follower import Follower
from trunkline.protocols.mqtt.sessions.share_group import ShareGroup
from trunkline.protocols.mqtt.sessions.subscription import Delivery, Subscription, Target, chosen, deliveries, matching
from trunkline.protocols.mqtt.sessions.window import AWAIT_PUBCOMP, UNKEPT, Inflight, Window

logger = logging.getLogger(__name__)

NEVER_EXPIRES_S = 0xFFFF_FFFF
_MAX_REMEMBERED_MATCHES = 4_096
_RESEND_READ_BYTES = 64 << 10

Match = tuple[Delivery, Delivery | None]


class Session(Follower):
    __slots__ = ("_matches", "_resend", "client_id", "created_ms", "disconnected_ms", "dropped", "expiry_s", "groups", "in_journal",
                 "inbound", "link", "retained", "subscriptions", "unplaced", "version", "waiting", "will",
                 "window")  # fmt: skip

    def __init__(self, commons: Commons, client_id: str, version: int, expiry_s: int) -> None:
        super().__init__(commons)
        self.client_id = client_id
        self.version = version
        self.expiry_s = expiry_s
        self.created_ms = commons.clock.wall_ms()
        self.disconnected_ms: int | None = None
        self.link: Link | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.window = Window(0)
        self.inbound: set[int] = set()  # packet identifiers of QoS 2 publications from the client, until PUBREL
        self.unplaced: set[int] | None = (
            None  # those of them that have no place in the log yet: to be written down later
        )
        self.retained: deque[tuple[str, Delivery, bool]] | None = None  # names yet to be sent, how, and if own ones too
        self.waiting: deque[tuple[Message, Delivery]] | None = None  # messages in no log, while the window is full
        self.groups: list[ShareGroup] = []
        self.will: Will | None = None
        self.dropped = 0
        self.in_journal = False  # whether `__sessions` has a record of it
        self._matches: dict[str, Match | None] = {}
        self._resend: list[int] = []  # packet identifiers to be sent again on this connection

    @property
    def persistent(self) -> bool:
        return self.expiry_s > 0

    # -- connection ----------------------------------------------------------------------------------------------------

    def attach(self, link: Link, window_limit: int) -> None:
        self.link = link
        self.version = link.version
        self.disconnected_ms = None
        self.window.limit = window_limit
        self._resend = list(self.window.entries)
        self._matches.clear()
        for subscription in self.subscriptions.values():
            if subscription.group is None:
                self.commons.routes.add(subscription.filter, subscription)
        for group in self.groups:
            group.member_came()

    def detach(self) -> None:
        """The connection is gone."""
        for subscription in self.subscriptions.values():
            if subscription.group is None:
                self.commons.routes.remove(subscription.filter, subscription)
        self.stop()
        self.link = None
        for group in self.groups:
            group.member_went()
        self.retained = None
        if self.waiting is not None:
            self.commons.queued_bytes -= sum(len(message.payload) for message, _ in self.waiting)
            self.waiting = None
        self._matches.clear()

    def subscriptions_changed(self) -> None:
        self._matches.clear()

    def access_changed(self) -> None:
        """What users may do has changed."""
        self._matches.clear()

    def may_get(self, topic: str) -> bool:
        link, control = self.link, self.commons.control
        if control.open or link is None:
            return True
        return control.may_get(link.principal, self.client_id, topic, self.commons.routes.log_topic(topic))

    # -- live ----------------------------------------------------------------------------------------------------------

    def deliver(self, run: Run, target: Target) -> None:
        """A run of messages of one topic, as they are published."""
        link = self.link
        if link is None or not link.ready:
            return
        if target.chosen_by is not None:
            self._deliver_chosen(run, target.chosen_by)
            return
        how = target.delivery
        if target.local is not how and run.publisher == self.client_id:
            if target.local is None:
                return
            how = target.local
        qos = min(run.qos, how.qos)
        if qos == 0:
            if link.congested():
                self.drop(len(run))
            elif how.identifiers or link.particular or run.expires_ms is not None:
                self.give(run.messages, how)
            else:
                try:
                    frames = run.shared(link.version, how.retain_as_published)
                except Exception:
                    self.give(run.messages, how)
                    return
                link.send(frames)
                link.sent_messages += len(run)
            return
        taken = 0
        if self.live and not (link.paused and run.partition is not None):
            taken = self.give_run(run, how)
        if taken < len(run):
            if run.partition is None:
                self._keep(run.messages[taken:], how)
            elif self.live:
                self.fall_behind(run.partition, run.offset + taken)

    def _deliver_chosen(self, run: Run, subscriptions: list[Subscription]) -> None:
        """One by one: what each says decides how it is delivered, and whether."""
        link = self.link
        assert link is not None
        for message in run.messages:
            how = chosen(subscriptions, message, self.client_id)
            if how is None:
                continue
            if min(message.qos, how.qos) == 0:
                if link.congested():
                    self.drop(1)
                else:
                    self.give([message], how)
                continue
            if self.live and not (link.paused and run.partition is not None) and self.give([message], how):
                continue
            if run.partition is None:
                self._keep([message], how)
            elif self.live:
                self.fall_behind(run.partition, message.offset)

    def give_run(self, run: Run, how: Delivery) -> int:
        """Send a run with QoS 1 or 2; returns how many were dealt with before the window was full."""
        link = self.link
        assert link is not None
        if how.identifiers or link.particular or run.expires_ms is not None:
            return self.give(run.messages, how)
        window = self.window
        count = min(len(run), window.room())
        if count <= 0:
            return 0
        qos = min(run.qos, how.qos)
        payloads = run.payloads if count == len(run) else run.payloads[:count]
        packet_ids = window.free_ids(count)
        retain = run.retain and how.retain_as_published
        try:
            frames = encode_run(run.topic, payloads, qos, retain, packet_ids, run.properties, link.version)
        except Exception:
            return self.give(run.messages[:count], how)
        if not self.persistent:
            window.entries.update(dict.fromkeys(packet_ids, UNKEPT[qos]))
        else:
            entries = [_entry(message, qos) for message in run.messages[:count]]
            window.entries.update(zip(packet_ids, entries, strict=True))
            self.commons.journal.flow_changed(self)
        link.send(frames)
        link.sent_messages += count
        return count

    def give(self, messages: list[Message], how: Delivery) -> int:
        """Send messages one by one; returns how many were dealt with before the window was full."""
        link = self.link
        assert link is not None
        window = self.window
        entries, limit = window.entries, window.limit
        kept = self.persistent
        with_properties = link.version == V5
        max_packet_bytes = link.client_max_packet_bytes
        out: list[OutgoingPublish] = []
        taken = len(messages)
        assigned = False
        for index, message in enumerate(messages):
            qos = message.qos if message.qos < how.qos else how.qos
            if qos and len(entries) >= limit:
                taken = index
                break
            properties = NO_PROPERTIES
            if with_properties:
                properties = message.properties
                if how.identifiers or message.expires_ms is not None:
                    left_s = message.seconds_left(self.commons.clock)
                    if left_s == 0:
                        continue
                    properties = with_extras(properties, left_s, how.identifiers)
            elif message.expires_ms is not None and message.seconds_left(self.commons.clock) == 0:
                continue
            if max_packet_bytes and (
                publish_bytes(message.topic, message.payload, qos, properties, link.version, link.aliases)
                > max_packet_bytes
            ):
                self.drop(1)  # as if it had been delivered [MQTT-3.1.2-25]
                continue
            packet_id = 0
            if qos:
                if kept:
                    assigned = True
                    packet_id = window.add(_entry(message, qos))
                else:
                    packet_id = window.add(UNKEPT[qos])
            retain = message.retain and how.retain_as_published
            out.append((message.topic, message.payload, qos, retain, False, packet_id, properties))
        if out:
            self._send(link, out)
        if assigned:
            self.commons.journal.flow_changed(self)
        return taken

    def _send(self, link: Link, out: list[OutgoingPublish]) -> None:
        """Send these; one that no packet can be made of, because of what is in its record, is dropped."""
        aliases = link.aliases
        known = 0 if aliases is None else len(aliases.known)
        try:
            frames = encode_publishes(out, link.version, aliases)
        except Exception as error:
            while aliases is not None and len(aliases.known) > known:
                aliases.known.popitem()  # which the client has not been told
            if len(out) > 1:
                for each in out:
                    self._send(link, [each])
                return
            topic, _, _, _, _, packet_id, _ = out[0]
            if packet_id:
                self.window.drop(packet_id)
                self.commons.journal.flow_changed(self)
            self.drop(1)
            if self.dropped & (self.dropped - 1) == 0:  # so that nobody can fill the broker's log
                logger.error("a message of %.100r cannot be sent to %r: %s", topic, self.client_id, error)
            return
        link.send(frames)
        link.sent_messages += len(out)

    def _keep(self, messages: list[Message], how: Delivery) -> None:
        """Messages in no log, for which there is no room: they have to be kept here."""
        if self.waiting is None:
            self.waiting = deque()
        commons, limits = self.commons, self.commons.limits
        for kept, message in enumerate(messages):
            if len(self.waiting) >= limits.max_queued_messages or commons.queued_bytes >= limits.max_queued_bytes:
                self.drop(len(messages) - kept)
                return
            self.waiting.append((message, how))
            commons.queued_bytes += len(message.payload)

    def drop(self, count: int) -> None:
        self.dropped += count
        self.commons.counters.dropped += count

    # -- what waits ----------------------------------------------------------------------------------------------------

    def waits(self) -> bool:
        """Whether there may be something to send when the window has room again."""
        return not self.live or bool(self.retained) or bool(self.waiting) or bool(self.groups)

    def pump(self) -> None:
        """Send what waits for room, and go on reading the log if this session is behind."""
        link = self.link
        if link is None:
            return
        if self.retained and not self._resend and not link.answers_due:
            self._give_retained()
        while self.waiting and not self._resend and not self.window.full() and not link.paused:
            message, how = self.waiting.popleft()
            self.commons.queued_bytes -= len(message.payload)
            self.give([message], how)
        if not self.live:
            self.wake()
        for group in self.groups:
            group.wake()

    def _give_retained(self) -> None:
        link, queue = self.link, self.retained
        assert link is not None
        assert queue is not None
        while queue and not link.paused and not self.window.full():
            # In portions, so that a slow client is noticed between them.
            portion = 0
            while queue and portion < 256 and not self.window.full():
                name, how, own_too = queue.popleft()
                message = self.commons.retention.message(name) if self.may_get(name) else None
                if message is not None and (own_too or message.publisher != self.client_id):
                    self.give([message], how)
                    portion += 1
            if self.persistent:
                break  # what was sent with QoS 1 or 2 has to be written down first: the rest in the next turn
            link.flush()
        if not queue:
            self.retained = None
        elif not link.paused and not self.window.full():
            self.commons.agenda.pump_again(link)

    # -- behind --------------------------------------------------------------------------------------------------------

    def blocked(self) -> bool:
        link = self.link
        return link is None or not link.ready or link.paused or self._unacknowledged() >= self.window.limit

    def _unacknowledged(self) -> int:
        """What this connection has been sent and has not completed: what it has not been sent again does not count."""
        return len(self.window) - len(self._resend)

    def must_prepare(self) -> bool:
        return bool(self._resend)

    async def prepare(self) -> bool:
        """Send again what the last connection left unacknowledged, in the same order [MQTT-4.4.0-1, MQTT-4.6.0-1]."""
        while self._resend:
            link = self.link
            if link is None or link.paused or self._unacknowledged() >= self.window.limit:
                return False  # the client may have come back with a smaller Receive Maximum
            packet_id = self._resend[0]
            entry = self.window.entries.get(packet_id)
            if entry is not None:
                if entry.state == AWAIT_PUBCOMP:
                    link.send_releases([packet_id])
                else:
                    message = entry.message or await self.commons.sources.message_at(entry, _RESEND_READ_BYTES)
                    if self.link is not link:
                        return False
                    self._send_again(packet_id, entry.state, message)
            self._resend.pop(0)
        self.pump()
        return True

    def _send_again(self, packet_id: int, qos: int, message: Message | None) -> None:
        link = self.link
        assert link is not None
        if packet_id not in self.window.entries:
            return  # acknowledged in the meantime
        left_s = None if message is None else message.seconds_left(self.commons.clock)
        if message is None or left_s == 0 or not self.may_get(message.topic):
            self.window.drop(packet_id)  # retention or its expiry has taken it, or it is not for this client any more
            self.commons.journal.flow_changed(self)
            return
        how = self._match(message.topic, message.partition, message.offset)
        delivery = how[0] if how is not None else Delivery(qos)
        properties = message.properties
        if delivery.identifiers or left_s is not None:
            properties = with_extras(properties, left_s, delivery.identifiers)
        if link.client_max_packet_bytes and (
            publish_bytes(message.topic, message.payload, qos, properties, link.version, link.aliases)
            > link.client_max_packet_bytes
        ):
            self.window.drop(packet_id)  # as if it had been delivered [MQTT-3.1.2-25]
            self.drop(1)
            self.commons.journal.flow_changed(self)
            return
        retain = message.retain and delivery.retain_as_published
        again: OutgoingPublish = (message.topic, message.payload, qos, retain, True, packet_id, properties)
        self._send(link, [again])

    def wants(self, topic: str) -> bool:
        if topic in self._matches:
            return self._matches[topic] is not None
        if matching(self._own(), topic) and self.may_get(topic):
            return True
        self._remember(topic, None)
        return False

    def filters(self) -> list[tuple[str, ...]]:
        return [subscription.levels for subscription in self._own()]

    def _own(self) -> list[Subscription]:
        return [subscription for subscription in self.subscriptions.values() if subscription.group is None]

    def take(self, run: Run) -> int:
        link = self.link
        if link is None or link.paused:
            return 0
        if any(subscription.content for subscription in self.subscriptions.values()):
            return self._take_chosen(run)
        match = self._match(run.topic, run.partition, run.offset)
        if run.topic not in self._matches:  # a subscription begins at some offset: each needs a look of its own
            return self._take_each(run)
        how = None if match is None else match[1 if run.publisher == self.client_id else 0]
        if how is None or run.qos == 0 or how.qos == 0:
            return len(run)  # QoS 0 went out when it came, or was not kept for who was away
        return self.give_run(run, how)

    def _take_each(self, run: Run) -> int:
        for index, message in enumerate(run.messages):
            match = self._match(message.topic, message.partition, message.offset)
            how = None if match is None else match[1 if message.publisher == self.client_id else 0]
            if how is not None and message.qos and how.qos and self.give([message], how) == 0:
                return index
        return len(run)

    def _take_chosen(self, run: Run) -> int:
        found = matching(self._own(), run.topic) if self.may_get(run.topic) else []
        partition = str(run.partition)
        for index, message in enumerate(run.messages):
            begun = [each for each in found if not each.since or message.offset >= each.since.get(partition, 0)]
            how = chosen(begun, message, self.client_id) if begun else None
            if how is not None and message.qos and how.qos and self.give([message], how) == 0:
                return index
        return len(run)

    def _match(self, topic: str, partition: TopicPartition | None, offset: int) -> Match | None:
        if topic in self._matches:
            return self._matches[topic]
        found = matching(self._own(), topic) if self.may_get(topic) else []
        if any(each.since for each in found) and partition is not None:
            name = str(partition)
            found = [each for each in found if not each.since or offset >= each.since.get(name, 0)]
            return deliveries(found) if found else None
        match = deliveries(found) if found else None
        self._remember(topic, match)
        return match

    def _remember(self, topic: str, match: Match | None) -> None:
        if len(self._matches) >= _MAX_REMEMBERED_MATCHES:
            self._matches.clear()
        self._matches[topic] = match

    def went_live(self) -> None:
        self._matches.clear()
        for subscription in self.subscriptions.values():
            subscription.since = None


def _entry(message: Message, qos: int) -> Inflight:
    if message.partition is None:
        return Inflight(qos, message=message)
    return Inflight(qos, message.partition, message.offset)
