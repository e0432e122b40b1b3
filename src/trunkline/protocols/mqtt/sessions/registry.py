"""All sessions: opened by CONNECT, taken over, closed, expired; their wills; their subscriptions. A fold of `__sessions`.

At start-up every kept session is back, without a connection. One that had a connection when the broker died lost it then:
its will is due as after any lost connection. QoS 2 publications that reached the log, but whose packet identifier did not
reach `__sessions` any more, are found by reading the log from where `seen:` says, so that they are known when the
client sends them again; `mark_seen` keeps that stretch short. Anybody can write the headers of such a publication, by
copying a topic for instance; so only batches count that bear the broker's own mark, which the log takes from nobody else.

Deadlines (session expiry, will delay) are in one heap, by wall time, and are looked at by `expire`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from trunkline.broker.complaints import Complaints
from trunkline.deadlines import Deadlines
from trunkline.log.batch import BatchHeader
from trunkline.log.errors import LogError
from trunkline.protocols.mqtt.content import fields_of
from trunkline.protocols.mqtt.errors import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    QUOTA_EXCEEDED,
    TOPIC_FILTER_INVALID,
    UNSPECIFIED_ERROR,
)
from trunkline.protocols.mqtt.link import Link
from trunkline.protocols.mqtt.message import traits_of
from trunkline.protocols.mqtt.packets import Subscription as RequestedSubscription
from trunkline.protocols.mqtt.packets import Will
from trunkline.protocols.mqtt.publishing import Publishing
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.sessions.commons import Commons
from trunkline.protocols.mqtt.sessions.follower import Follower
from trunkline.protocols.mqtt.sessions.journal import Places, StoredSession
from trunkline.protocols.mqtt.sessions.session import NEVER_EXPIRES_S, Session
from trunkline.protocols.mqtt.sessions.share_group import ShareGroup
from trunkline.protocols.mqtt.sessions.subscription import Delivery, Subscription
from trunkline.protocols.mqtt.source import Source
from trunkline.routing.covering import covers
from trunkline.routing.dialect import MQTT
from trunkline.routing.errors import InvalidFilter, InvalidPattern
from trunkline.routing.filter import Filter
from trunkline.security.rules import Operation

logger = logging.getLogger(__name__)

_MARK_EVERY_RECORDS = 10_000


class SessionRefused(Exception):
    def __init__(self, reason_code: int) -> None:
        super().__init__(reason_code)
        self.reason_code = reason_code


def _own(header: BatchHeader) -> bool:
    return header.brokers_own


class Sessions:
    def __init__(self, commons: Commons, publishing: Publishing, complaints: Complaints) -> None:
        self._commons = commons
        self._publishing = publishing
        self._complaints = complaints
        self.by_client: dict[str, Session] = {}
        self.groups: dict[str, ShareGroup] = {}
        self.subscription_count = 0
        # By the wall clock: both outlive a restart.
        self._ends: Deadlines[Session] = Deadlines()
        self._wills_due: Deadlines[Session] = Deadlines()
        self._seen: Places = {}

    # -- start ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        commons = self._commons
        stored, groups, seen = await commons.journal.load()
        self._seen = seen.places
        commons.sources.discover()
        for client_id, record in stored.items():
            self._restore(client_id, record)
        for name, group in self.groups.items():
            if name in groups:
                group.restore(groups[name])
                group.in_journal = True
        await self._find_unrecorded(marked=seen.marked)
        self.mark_seen(always=True)
        now_ms = commons.clock.wall_ms()
        for session in list(self.by_client.values()):
            if session.disconnected_ms is None:
                session.disconnected_ms = now_ms
                self._connection_lost(session)
            elif session.will is not None:
                self._schedule_will(session, session.disconnected_ms)
            self._schedule_expiry(session)
        self.expire()

    def _restore(self, client_id: str, record: StoredSession) -> None:
        session = Session(self._commons, client_id, record.version, record.expiry_s)
        session.created_ms = record.created_ms
        session.disconnected_ms = record.disconnected_ms
        session.will = record.will
        session.inbound = record.inbound
        session.window.entries = record.window
        session.in_journal = True
        session.restore(record.places)
        self.by_client[client_id] = session
        for name, options in record.subscriptions.items():
            qos, no_local, retain_as_published, retain_handling, identifier, since = options[:6]
            content, expires_ms = options[6:8] if len(options) > 6 else (None, None)  # an earlier version had no more
            subscription = Subscription(
                session,
                name,
                int(str(qos)),
                no_local=bool(no_local),
                retain_as_published=bool(retain_as_published),
                retain_handling=int(str(retain_handling)),
                identifier=int(str(identifier)),
            )
            if isinstance(since, dict):
                subscription.since = since
            if isinstance(content, str):
                subscription.content = Filter(content)
            self._place(session, subscription)
            if isinstance(expires_ms, int):
                self._expire_at(session, subscription, expires_ms)

    async def _find_unrecorded(self, *, marked: bool) -> None:
        """Take note of QoS 2 publications that were appended in the last moments before a crash.

        A version that did not mark its batches may have left some: then, once, the headers are believed.
        """
        commons = self._commons
        wanted = _own if marked else None
        changed: set[Session] = set()
        for source in commons.sources.all:
            offset = self._seen.get(source.tp, 0)
            try:
                while offset < source.delivered_to:
                    records, following = await source.read_records(offset, commons.limits.catch_up_read_bytes, wanted)
                    for record in records:
                        traits = traits_of(record[4])
                        session = self.by_client.get(traits.publisher) if traits.packet_id else None
                        if session is not None and session.persistent:
                            session.inbound.add(traits.packet_id)
                            changed.add(session)
                    if following <= offset:
                        break
                    offset = following
            except LogError as error:
                logger.warning("%s could not be searched for unrecorded publications: %s", source.tp, error)
        for session in changed:
            commons.journal.put_inbound(session)

    def mark_seen(self, *, always: bool = False) -> None:
        """Write down how far `in:` records cover the log, if that is far from what was written last."""
        places = {source.tp: source.end_offset() for source in self._commons.sources.all}
        if always or any(end - self._seen.get(tp, 0) >= _MARK_EVERY_RECORDS for tp, end in places.items()):
            self._seen = places
            self._commons.journal.put_seen(places)
            self._commons.agenda.schedule()

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(
        self,
        link: Link,
        client_id: str,
        *,
        clean_start: bool,
        expiry_s: int,
        will: Will | None,
        window_limit: int,
    ) -> tuple[Session, bool]:
        """The session for a connection, and whether it is an old one. Takes it over from another connection."""
        commons = self._commons
        session = self.by_client.get(client_id)
        if session is not None and session.link is not None:
            commons.counters.taken_over += 1
            session.link.taken_over()
            session = self.by_client.get(client_id)
        if session is not None and (clean_start or self._expired(session)):
            self.end(session)
            session = None
        present = session is not None
        if session is None:
            if len(self.by_client) >= commons.limits.max_sessions:
                commons.counters.refused += 1
                raise SessionRefused(QUOTA_EXCEEDED)
            session = self.by_client[client_id] = Session(commons, client_id, link.version, expiry_s)
            session.start_here()
        self._wills_due.cancel(session)  # it is not sent when the client is back in time [MQTT-3.1.3-9]
        session.expiry_s = expiry_s
        session.will = will
        session.attach(link, window_limit)
        if session.persistent or will is not None or session.in_journal:
            commons.journal.put_session(session)
            commons.journal.flow_changed(session)
        return session, present

    def close(self, session: Session, *, send_will: bool) -> None:
        """The connection is gone. Without `send_will` the will is gone with it."""
        session.detach()
        session.disconnected_ms = self._commons.clock.wall_ms()
        if not send_will:
            session.will = None
        self._connection_lost(session)

    def _connection_lost(self, session: Session) -> None:
        commons = self._commons
        if session.will is not None:
            self._schedule_will(session, session.disconnected_ms or commons.clock.wall_ms())
        if not session.persistent:
            self.end(session)
            return
        self._schedule_expiry(session)
        commons.journal.put_session(session)
        commons.journal.flow_changed(session)

    def end(self, session: Session) -> None:
        """The session is over: its will is due at the latest now [MQTT-3.1.2-8]."""
        self._wills_due.cancel(session)
        self._ends.cancel(session)
        self._send_will(session)
        for subscription in list(session.subscriptions.values()):
            self._displace(session, subscription)
        if session.in_journal:
            self._commons.journal.remove_session(session)
            self._commons.agenda.schedule()
        session.subscriptions = {}
        if self.by_client.get(session.client_id) is session:
            del self.by_client[session.client_id]

    def kill(self, client_id: str) -> bool:
        """End a session by an administrator's word; False if there is none."""
        session = self.by_client.get(client_id)
        if session is None:
            return False
        if session.link is not None:
            session.link.killed()
        session = self.by_client.get(client_id)
        if session is not None:
            self.end(session)
        return True

    def refused(self, run: Run, section: bytes) -> None:
        """The log topic does not take a publication. Its client is told by closing its connection."""
        text = f"a publication of {len(run.payloads[0])} bytes by {run.publisher!r:.200} was refused"
        self._complaints.add("refused publication", "MQTT", text)
        self._refuse(run, section, PACKET_TOO_LARGE, "the publication does not fit its log topic")

    def unplaced(self, run: Run, section: bytes) -> None:
        """The log topic of these publications could not be made."""
        self._refuse(run, section, IMPLEMENTATION_SPECIFIC_ERROR, "the publication could not be stored")

    def _refuse(self, run: Run, section: bytes, reason_code: int, text: str) -> None:
        self._commons.counters.refused += 1
        session = self.by_client.get(run.publisher)
        if session is not None:
            self._forget(session, section)
            if session.link is not None:
                session.link.refuse(reason_code, text)

    def under_way(self, run: Run, section: bytes) -> None:
        """A publication was sent to a store that has not told its place yet."""
        session, packet_id = self._exactly_once(run, section)
        if session is not None:
            if session.unplaced is None:
                session.unplaced = set()
            session.unplaced.add(packet_id)

    def landed(self, run: Run, section: bytes) -> None:
        """It has its place, or will not have one."""
        session, packet_id = self._exactly_once(run, section)
        if session is not None and session.unplaced is not None:
            session.unplaced.discard(packet_id)
            self._commons.journal.inbound_changed(session)
            self._commons.agenda.schedule()

    def _exactly_once(self, run: Run, section: bytes) -> tuple[Session | None, int]:
        """The kept session that must not publish this twice, and its identifier for it."""
        packet_id = traits_of(section).packet_id if run.qos == 2 else 0
        session = self.by_client.get(run.publisher) if packet_id else None
        return (session if session is not None and session.persistent else None), packet_id

    def lost(self, run: Run, section: bytes) -> None:
        """Publications could not be written. A client that is back already must not be told otherwise."""
        session = self.by_client.get(run.publisher)
        if session is not None and self._forget(session, section) and session.link is not None:
            session.link.storage_failed()

    def _forget(self, session: Session, section: bytes) -> bool:
        """When a QoS 2 publication comes again that is not stored, it is a new one; False if it is no such."""
        packet_id = traits_of(section).packet_id
        if packet_id not in session.inbound:
            return False
        session.inbound.discard(packet_id)
        if session.persistent:
            self._commons.journal.inbound_changed(session)
            self._commons.agenda.schedule()
        return True

    # -- time ----------------------------------------------------------------------------------------------------------

    def _expired(self, session: Session) -> bool:
        if session.expiry_s == NEVER_EXPIRES_S or session.disconnected_ms is None:
            return False
        return session.disconnected_ms + session.expiry_s * 1000 <= self._commons.clock.wall_ms()

    def _schedule_expiry(self, session: Session) -> None:
        if session.persistent and session.expiry_s != NEVER_EXPIRES_S and session.disconnected_ms is not None:
            self._ends.set(session, session.disconnected_ms + session.expiry_s * 1000)

    def _schedule_will(self, session: Session, lost_ms: int) -> None:
        will = session.will
        delay_s = will.properties.will_delay_interval if will is not None and will.properties is not None else 0
        if not delay_s or not session.persistent:
            self._send_will(session)
            return
        self._wills_due.set(session, lost_ms + min(delay_s, session.expiry_s) * 1000)

    def expire(self) -> None:
        """Do what is due: wills, and the ends of sessions."""
        now_ms = self._commons.clock.wall_ms()
        for session in self._wills_due.due(now_ms):
            if self._away(session):
                self._send_will(session)
                self._commons.journal.put_session(session)
        for session in self._ends.due(now_ms):
            if self._away(session) and self._expired(session):
                self._commons.counters.sessions_expired += 1
                self.end(session)

    def _away(self, session: Session) -> bool:
        """Whether the session is still there and its client is not."""
        return session.link is None and self.by_client.get(session.client_id) is session

    def _send_will(self, session: Session) -> None:
        will, session.will = session.will, None
        if will is not None:
            self._publishing.publish_will(will, session.client_id)

    def access_changed(self) -> None:
        """What users may do has changed: whom a topic reaches is found anew."""
        self._commons.routes.known.clear()
        for session in self.by_client.values():
            session.access_changed()

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        session: Session,
        wanted: RequestedSubscription,
        identifier: int,
        content: str | None = None,
        expiry_s: float | None = None,
    ) -> int:
        """Make or replace a subscription; returns the reason code: the QoS granted, or why not.

        `content` is a condition on what messages say, `expiry_s` when the subscription goes by itself.
        """
        commons = self._commons
        name = wanted.topic_filter
        try:
            if (
                len(name.encode()) > commons.limits.max_topic_bytes
                or name.count("/") >= commons.limits.max_topic_levels
            ):
                return TOPIC_FILTER_INVALID
            subscription = Subscription(
                session,
                name,
                wanted.qos,
                no_local=wanted.no_local,
                retain_as_published=wanted.retain_as_published,
                retain_handling=wanted.retain_handling,
                identifier=identifier,
            )
            MQTT.pattern_levels(subscription.filter)
            if content is not None:
                subscription.content = Filter(content)
        except (InvalidPattern, InvalidFilter, ValueError):
            return TOPIC_FILTER_INVALID
        if content is not None and subscription.group is not None:
            return IMPLEMENTATION_SPECIFIC_ERROR  # the members of a group would have to agree on it
        if any(covers(MQTT, refused, subscription.filter) for refused in commons.limits.refused_filters):
            commons.counters.refused += 1
            return UNSPECIFIED_ERROR
        link = session.link
        if link is not None and not commons.control.may_subscribe(
            link.principal, session.client_id, subscription.filter
        ):
            commons.counters.refused += 1
            commons.control.refused_mqtt(link.principal, Operation.READ, subscription.filter)
            return NOT_AUTHORIZED
        before = session.subscriptions.get(name)
        if before is None and (
            len(session.subscriptions) >= commons.limits.max_subscriptions
            or self.subscription_count >= commons.limits.max_total_subscriptions
        ):
            commons.counters.refused += 1
            return QUOTA_EXCEEDED
        if before is not None:
            subscription.since = before.since
            self._displace(session, before, replaced=True)
        elif not session.live and subscription.group is None:
            subscription.since = {str(source.tp): source.delivered_to for source in commons.sources.all}
        self._place(session, subscription)
        if expiry_s is not None:
            self._expire_at(session, subscription, commons.clock.wall_ms() + round(expiry_s * 1000))
        if session.in_journal and session.persistent:
            commons.journal.put_subscription(session.client_id, subscription)
        if subscription.group is None:
            if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and before is None):
                self._queue_retained(session, subscription)
        else:
            self.groups[name].wake()
        return wanted.qos

    def _queue_retained(self, session: Session, subscription: Subscription) -> None:
        how = Delivery(subscription.qos, True, (subscription.identifier,) if subscription.identifier else ())
        names = [
            (name, how, not subscription.no_local)
            for name in self._commons.retention.messages.matching(subscription.filter)
            if subscription.content is None or self._says(name, subscription.content)
        ]
        if names:
            if session.retained is None:
                session.retained = deque()
            room = self._commons.limits.max_queued_retained - len(session.retained)
            session.retained.extend(names[:room])
            session.drop(max(0, len(names) - room))

    def _says(self, name: str, content: Filter) -> bool:
        message = self._commons.retention.message(name)
        return message is not None and content.matches(fields_of(message))

    def _expire_at(self, session: Session, subscription: Subscription, at_ms: int) -> None:
        """Let a subscription go at a time of the wall clock, unless it was replaced before."""
        subscription.expires_ms = at_ms

        def expire() -> None:
            if session.subscriptions.get(subscription.name) is subscription:
                self.unsubscribe(session, subscription.name)
                self._commons.agenda.schedule()

        left_s = max(at_ms - self._commons.clock.wall_ms(), 0) / 1000
        asyncio.get_running_loop().call_later(left_s, expire)

    def unsubscribe(self, session: Session, name: str) -> bool:
        """False if there was no such subscription."""
        subscription = session.subscriptions.get(name)
        if subscription is None:
            return False
        self._displace(session, subscription)
        if session.in_journal:
            self._commons.journal.remove_subscription(session.client_id, name)
        return True

    def _place(self, session: Session, subscription: Subscription) -> None:
        session.subscriptions[subscription.name] = subscription
        session.subscriptions_changed()
        self.subscription_count += 1
        if subscription.group is None:
            if session.link is not None:
                self._commons.routes.add(subscription.filter, subscription)
            return
        group = self.groups.get(subscription.name)
        if group is None:
            group = self.groups[subscription.name] = ShareGroup(self._commons, subscription.group, subscription.filter)
            group.start_here()
        if group not in session.groups:
            session.groups.append(group)
        group.join(session, subscription)
        self._commons.journal.group_changed(group)

    def _displace(self, session: Session, subscription: Subscription, *, replaced: bool = False) -> None:
        del session.subscriptions[subscription.name]
        session.subscriptions_changed()
        self.subscription_count -= 1
        if subscription.group is None:
            if session.link is not None:
                self._commons.routes.remove(subscription.filter, subscription)
            return
        if replaced:
            return  # the group keeps its member, who is given to it anew
        group = self.groups[subscription.name]
        group.leave(session)
        session.groups.remove(group)
        self._commons.journal.group_changed(group)
        if not group.members:
            del self.groups[subscription.name]

    def source_dropped(self, source: Source) -> None:
        """A log partition is gone: nobody has a place in it any more."""
        followers: list[Follower] = [*self.by_client.values(), *self.groups.values()]
        for follower in followers:
            follower.forget_source(source.tp)
