"""All sessions: opened by CONNECT, taken over, closed, expired; their wills; their subscriptions. A fold of `__sessions`.

At start-up every kept session is back, without a connection. One that had a connection when the broker died lost it then:
its will is due as after any lost connection. QoS 2 publications that reached the log, but whose packet identifier did not
reach `__sessions` any more, are found by reading the log from where `seen:` says, so that they are known when the
client sends them again; `mark_seen` keeps that stretch short. Anybody can write the headers of such a publication, by
copying a topic for instance; so only batches count that bear the broker's own mark, which the log takes from nobody else.

Deadlines (session expiry, will delay) are in one heap, by wall time, and are looked at by `expire`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from trunkline.deadlines import Deadlines
from trunkline.log.errors import LogError
from trunkline.protocols.mqtt.errors import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    PACKET_TOO_LARGE,
    QUOTA_EXCEEDED,
    TOPIC_FILTER_INVALID,
    UNSPECIFIED_ERROR,
)
from trunkline.protocols.mqtt.message import traits_of
from trunkline.protocols.mqtt.packets import Subscription as RequestedSubscription
from trunkline.protocols.mqtt.packets import Will
from trunkline.protocols.mqtt.share_group import ShareGroup
from trunkline.protocols.mqtt.state import NEVER_EXPIRES_S, SessionState
from trunkline.protocols.mqtt.subscription import Delivery, Subscription
from trunkline.routing.covering import covers
from trunkline.routing.dialect import MQTT
from trunkline.routing.errors import InvalidPattern

if TYPE_CHECKING:
    from trunkline.log.batch import BatchHeader
    from trunkline.protocols.mqtt.follower import Follower
    from trunkline.protocols.mqtt.hub import Hub
    from trunkline.protocols.mqtt.run import Run
    from trunkline.protocols.mqtt.session import Session
    from trunkline.protocols.mqtt.session_journal import Places, StoredSession
    from trunkline.protocols.mqtt.source import Source

logger = logging.getLogger(__name__)

_MARK_EVERY_RECORDS = 10_000


class SessionRefused(Exception):
    def __init__(self, reason_code: int) -> None:
        super().__init__(reason_code)
        self.reason_code = reason_code


def _own(header: BatchHeader) -> bool:
    return header.brokers_own


class Sessions:
    def __init__(self, hub: Hub) -> None:
        hub.sessions = self
        self._hub = hub
        self.states: dict[str, SessionState] = {}
        self.groups: dict[str, ShareGroup] = {}
        self.subscription_count = 0
        # By the wall clock: both outlive a restart.
        self._ends: Deadlines[SessionState] = Deadlines()
        self._wills_due: Deadlines[SessionState] = Deadlines()
        self._seen: Places = {}

    # -- start ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        hub = self._hub
        stored, groups, seen = await hub.journal.load()
        self._seen = seen.places
        hub.sources.discover()
        for client_id, record in stored.items():
            self._restore(client_id, record)
        for name, group in self.groups.items():
            if name in groups:
                group.restore(groups[name])
                group.in_journal = True
        await self._find_unrecorded(marked=seen.marked)
        self.mark_seen(always=True)
        now_ms = hub.clock.wall_ms()
        for state in list(self.states.values()):
            if state.disconnected_ms is None:
                state.disconnected_ms = now_ms
                self._connection_lost(state)
            elif state.will is not None:
                self._schedule_will(state, state.disconnected_ms)
            self._schedule_expiry(state)
        self.expire()

    def _restore(self, client_id: str, record: StoredSession) -> None:
        state = SessionState(self._hub, client_id, record.version, record.expiry_s)
        state.created_ms = record.created_ms
        state.disconnected_ms = record.disconnected_ms
        state.will = record.will
        state.inbound = record.inbound
        state.window.entries = record.window
        state.in_journal = True
        state.restore(record.places)
        self.states[client_id] = state
        for name, options in record.subscriptions.items():
            qos, no_local, retain_as_published, retain_handling, identifier, since = options
            subscription = Subscription(
                state,
                name,
                int(str(qos)),
                no_local=bool(no_local),
                retain_as_published=bool(retain_as_published),
                retain_handling=int(str(retain_handling)),
                identifier=int(str(identifier)),
            )
            if isinstance(since, dict):
                subscription.since = since
            self._place(subscription)

    async def _find_unrecorded(self, *, marked: bool) -> None:
        """Take note of QoS 2 publications that were appended in the last moments before a crash.

        A version that did not mark its batches may have left some: then, once, the headers are believed.
        """
        hub = self._hub
        wanted = _own if marked else None
        changed: set[SessionState] = set()
        for source in hub.sources.all:
            offset = self._seen.get(source.tp, 0)
            try:
                while offset < source.delivered_to:
                    records, following = await source.read_records(offset, hub.limits.catch_up_read_bytes, wanted)
                    for record in records:
                        traits = traits_of(record[4])
                        state = self.states.get(traits.publisher) if traits.packet_id else None
                        if state is not None and state.persistent:
                            state.inbound.add(traits.packet_id)
                            changed.add(state)
                    if following <= offset:
                        break
                    offset = following
            except LogError as error:
                logger.warning("%s could not be searched for unrecorded publications: %s", source.tp, error)
        for state in changed:
            hub.journal.put_inbound(state)

    def mark_seen(self, *, always: bool = False) -> None:
        """Write down how far `in:` records cover the log, if that is far from what was written last."""
        places = {source.tp: source.end_offset() for source in self._hub.sources.all}
        if always or any(end - self._seen.get(tp, 0) >= _MARK_EVERY_RECORDS for tp, end in places.items()):
            self._seen = places
            self._hub.journal.put_seen(places)
            self._hub.schedule()

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(
        self, link: Session, client_id: str, *, clean_start: bool, expiry_s: int, will: Will | None, window_limit: int
    ) -> tuple[SessionState, bool]:
        """The session for a connection, and whether it is an old one. Takes it over from another connection."""
        hub = self._hub
        state = self.states.get(client_id)
        if state is not None and state.link is not None:
            hub.counters.taken_over += 1
            state.link.taken_over()
            state = self.states.get(client_id)
        if state is not None and (clean_start or self._expired(state)):
            self.end(state)
            state = None
        present = state is not None
        if state is None:
            if len(self.states) >= hub.limits.max_sessions:
                hub.counters.refused += 1
                raise SessionRefused(QUOTA_EXCEEDED)
            state = self.states[client_id] = SessionState(hub, client_id, link.version, expiry_s)
            state.start_here()
        self._wills_due.cancel(state)  # it is not sent when the client is back in time [MQTT-3.1.3-9]
        state.expiry_s = expiry_s
        state.will = will
        state.attach(link, window_limit)
        if state.persistent or will is not None or state.in_journal:
            hub.journal.put_session(state)
            hub.flow_changed(state)
        return state, present

    def close(self, state: SessionState, *, send_will: bool) -> None:
        """The connection is gone. Without `send_will` the will is gone with it."""
        state.detach()
        state.disconnected_ms = self._hub.clock.wall_ms()
        if not send_will:
            state.will = None
        self._connection_lost(state)

    def _connection_lost(self, state: SessionState) -> None:
        hub = self._hub
        if state.will is not None:
            self._schedule_will(state, state.disconnected_ms or hub.clock.wall_ms())
        if not state.persistent:
            self.end(state)
            return
        self._schedule_expiry(state)
        hub.journal.put_session(state)
        hub.flow_changed(state)

    def end(self, state: SessionState) -> None:
        """The session is over: its will is due at the latest now [MQTT-3.1.2-8]."""
        self._wills_due.cancel(state)
        self._ends.cancel(state)
        self._send_will(state)
        for subscription in list(state.subscriptions.values()):
            self._displace(subscription)
        if state.in_journal:
            self._hub.journal.remove_session(state)
            self._hub.schedule()
        state.subscriptions = {}
        if self.states.get(state.client_id) is state:
            del self.states[state.client_id]

    def kill(self, client_id: str) -> bool:
        """End a session by an administrator's word; False if there is none."""
        state = self.states.get(client_id)
        if state is None:
            return False
        if state.link is not None:
            state.link.killed()
        state = self.states.get(client_id)
        if state is not None:
            self.end(state)
        return True

    def refused(self, run: Run, section: bytes) -> None:
        """The log topic does not take a publication. Its client is told by closing its connection."""
        text = f"a publication of {len(run.payloads[0])} bytes by {run.publisher!r:.200} was refused"
        self._hub.complaints.add("refused publication", "MQTT", text)
        self._refuse(run, section, PACKET_TOO_LARGE, "the publication does not fit its log topic")

    def unplaced(self, run: Run, section: bytes) -> None:
        """The log topic of these publications could not be made."""
        self._refuse(run, section, IMPLEMENTATION_SPECIFIC_ERROR, "the publication could not be stored")

    def _refuse(self, run: Run, section: bytes, reason_code: int, text: str) -> None:
        self._hub.counters.refused += 1
        state = self.states.get(run.publisher)
        if state is not None:
            self._forget(state, section)
            if state.link is not None:
                state.link.refuse(reason_code, text)

    def lost(self, run: Run, section: bytes) -> None:
        """Publications could not be written. A client that is back already must not be told otherwise."""
        state = self.states.get(run.publisher)
        if state is not None and self._forget(state, section) and state.link is not None:
            state.link.storage_failed()

    def _forget(self, state: SessionState, section: bytes) -> bool:
        """When a QoS 2 publication comes again that is not stored, it is a new one; False if it is no such."""
        packet_id = traits_of(section).packet_id
        if packet_id not in state.inbound:
            return False
        state.inbound.discard(packet_id)
        if state.persistent:
            self._hub.inbound_changed(state)
            self._hub.schedule()
        return True

    # -- time ----------------------------------------------------------------------------------------------------------

    def _expired(self, state: SessionState) -> bool:
        if state.expiry_s == NEVER_EXPIRES_S or state.disconnected_ms is None:
            return False
        return state.disconnected_ms + state.expiry_s * 1000 <= self._hub.clock.wall_ms()

    def _schedule_expiry(self, state: SessionState) -> None:
        if state.persistent and state.expiry_s != NEVER_EXPIRES_S and state.disconnected_ms is not None:
            self._ends.set(state, state.disconnected_ms + state.expiry_s * 1000)

    def _schedule_will(self, state: SessionState, lost_ms: int) -> None:
        will = state.will
        delay_s = will.properties.will_delay_interval if will is not None and will.properties is not None else 0
        if not delay_s or not state.persistent:
            self._send_will(state)
            return
        self._wills_due.set(state, lost_ms + min(delay_s, state.expiry_s) * 1000)

    def expire(self) -> None:
        """Do what is due: wills, and the ends of sessions."""
        now_ms = self._hub.clock.wall_ms()
        for state in self._wills_due.due(now_ms):
            if self._away(state):
                self._send_will(state)
                self._hub.journal.put_session(state)
        for state in self._ends.due(now_ms):
            if self._away(state) and self._expired(state):
                self._hub.counters.sessions_expired += 1
                self.end(state)

    def _away(self, state: SessionState) -> bool:
        """Whether the session is still there and its client is not."""
        return state.link is None and self.states.get(state.client_id) is state

    def _send_will(self, state: SessionState) -> None:
        will, state.will = state.will, None
        if will is not None:
            self._hub.publish_will(will, state.client_id)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(self, state: SessionState, wanted: RequestedSubscription, identifier: int) -> int:
        """Make or replace a subscription; returns the reason code: the QoS granted, or why not."""
        hub = self._hub
        name = wanted.topic_filter
        try:
            if len(name.encode()) > hub.limits.max_topic_bytes or name.count("/") >= hub.limits.max_topic_levels:
                return TOPIC_FILTER_INVALID
            subscription = Subscription(
                state,
                name,
                wanted.qos,
                no_local=wanted.no_local,
                retain_as_published=wanted.retain_as_published,
                retain_handling=wanted.retain_handling,
                identifier=identifier,
            )
            MQTT.pattern_levels(subscription.filter)
        except (InvalidPattern, ValueError):
            return TOPIC_FILTER_INVALID
        if any(covers(MQTT, refused, subscription.filter) for refused in hub.limits.refused_filters):
            hub.counters.refused += 1
            return UNSPECIFIED_ERROR
        before = state.subscriptions.get(name)
        if before is None and (
            len(state.subscriptions) >= hub.limits.max_subscriptions
            or self.subscription_count >= hub.limits.max_total_subscriptions
        ):
            hub.counters.refused += 1
            return QUOTA_EXCEEDED
        if before is not None:
            subscription.since = before.since
            self._displace(before, replaced=True)
        elif not state.live and subscription.group is None:
            subscription.since = {str(source.tp): source.delivered_to for source in hub.sources.all}
        self._place(subscription)
        if state.in_journal and state.persistent:
            hub.journal.put_subscription(subscription)
        if subscription.group is None:
            if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and before is None):
                self._queue_retained(subscription)
        else:
            self.groups[name].wake()
        return wanted.qos

    def _queue_retained(self, subscription: Subscription) -> None:
        state = subscription.state
        how = Delivery(subscription.qos, True, (subscription.identifier,) if subscription.identifier else ())
        names = [(name, how, not subscription.no_local) for name in self._hub.retained.matching(subscription.filter)]
        if names:
            if state.retained is None:
                state.retained = deque()
            room = self._hub.limits.max_queued_retained - len(state.retained)
            state.retained.extend(names[:room])
            state.drop(max(0, len(names) - room))

    def unsubscribe(self, state: SessionState, name: str) -> bool:
        """False if there was no such subscription."""
        subscription = state.subscriptions.get(name)
        if subscription is None:
            return False
        self._displace(subscription)
        if state.in_journal:
            self._hub.journal.remove_subscription(state.client_id, name)
        return True

    def _place(self, subscription: Subscription) -> None:
        state = subscription.state
        state.subscriptions[subscription.name] = subscription
        state.subscriptions_changed()
        self.subscription_count += 1
        if subscription.group is None:
            if state.link is not None:
                self._hub.routes.add(subscription.filter, subscription)
            return
        group = self.groups.get(subscription.name)
        if group is None:
            group = self.groups[subscription.name] = ShareGroup(self._hub, subscription.group, subscription.filter)
            group.start_here()
        if group not in state.groups:
            state.groups.append(group)
        group.join(subscription)
        self._hub.group_changed(group)

    def _displace(self, subscription: Subscription, *, replaced: bool = False) -> None:
        state = subscription.state
        del state.subscriptions[subscription.name]
        state.subscriptions_changed()
        self.subscription_count -= 1
        if subscription.group is None:
            if state.link is not None:
                self._hub.routes.remove(subscription.filter, subscription)
            return
        if replaced:
            return  # the group keeps its member, who is given to it anew
        group = self.groups[subscription.name]
        group.leave(state)
        state.groups.remove(group)
        self._hub.group_changed(group)
        if not group.members:
            del self.groups[subscription.name]

    def source_dropped(self, source: Source) -> None:
        """A log partition is gone: nobody has a place in it any more."""
        followers: list[Follower] = [*self.states.values(), *self.groups.values()]
        for follower in followers:
            follower.forget_source(source.tp)
