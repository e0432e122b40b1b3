"""A shared subscription: sessions that divide the messages of one filter among themselves.

The group follows the log like a session does, with a place of its own; each message goes to one of the members that are
connected and have room in their window, in turn. When none has, the group falls behind at that message and goes on from
there when one has room again or comes back. What was given to a member stays with it: it is sent again to that member's
session, not to another [MQTT-4.8.2-4, MQTT-4.8.2-5].

The group's place is written to `__sessions` in the same batch as the member's window, as long as one member's session
outlives its connection. QoS 0 messages are not kept while no member is connected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trunkline.broker.messaging.mapping import filter_matches
from trunkline.protocols.mqtt.link import Link
from trunkline.protocols.mqtt.message import Message
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.sessions.commons import Commons
from trunkline.protocols.mqtt.sessions.follower import Follower
from trunkline.protocols.mqtt.sessions.subscription import SHARE_PREFIX, Delivery, Subscription, merge
from trunkline.protocols.mqtt.sessions.window import Window


class Member(Protocol):
    """A session, as its groups know it."""

    @property
    def link(self) -> Link | None: ...

    @property
    def window(self) -> Window: ...

    @property
    def persistent(self) -> bool: ...

    def give(self, messages: list[Message], how: Delivery) -> int: ...

    def may_get(self, topic: str) -> bool: ...


class ShareGroup(Follower):
    __slots__ = ("_levels", "_next", "connected", "filter", "in_journal", "members", "name")

    def __init__(self, commons: Commons, share_name: str, topic_filter: str) -> None:
        super().__init__(commons)
        self.name = f"{SHARE_PREFIX}{share_name}/{topic_filter}"
        self.filter = topic_filter
        self._levels = topic_filter.split("/")
        self.members: dict[Member, Delivery] = {}
        self.connected: list[Member] = []
        self.in_journal = False
        self._next = 0

    @property
    def persistent(self) -> bool:
        return any(session.persistent for session in self.members)

    # -- members -------------------------------------------------------------------------------------------------------

    def join(self, session: Member, subscription: Subscription) -> None:
        """Add a member, or change how it gets its messages."""
        self.members[session] = merge([subscription])
        self.member_came()

    def leave(self, session: Member) -> None:
        self.members.pop(session, None)
        self.member_went()

    def member_came(self) -> None:
        before = bool(self.connected)
        self.connected = [session for session in self.members if session.link is not None]
        if self.connected and not before:
            self.commons.routes.add(self.filter, self)

    def member_went(self) -> None:
        before = bool(self.connected)
        self.connected = [session for session in self.members if session.link is not None]
        if before and not self.connected:
            self.commons.routes.remove(self.filter, self)
            self.stop()
            self.commons.journal.group_changed(self)

    # -- messages ------------------------------------------------------------------------------------------------------

    def deliver(self, run: Run) -> None:
        if run.partition is None or run.qos == 0:
            self._divide(run.messages)  # what is in no log, or has QoS 0, is dropped when nobody has room
        elif self.live:
            taken = self._divide(run.messages)
            if taken < len(run):
                self.fall_behind(run.partition, run.offset + taken)

    def _divide(self, messages: list[Message]) -> int:
        """Give each message to one member; returns how many could be given."""
        portions: dict[Member, list[Message]] = {}
        taken = len(messages)
        for index, message in enumerate(messages):
            member = self._choose(message, portions)
            if member is not None:
                portions.setdefault(member, []).append(message)
            elif message.qos and any(member.may_get(message.topic) for member in self.connected):
                taken = index
                break
        for member, portion in portions.items():
            delivery = self.members[member]
            member.give(portion, delivery)
        if portions:
            self.commons.journal.group_changed(self)
        return taken

    def _choose(self, message: Message, portions: dict[Member, list[Message]]) -> Member | None:
        members = self.connected
        for step in range(len(members)):
            place = (self._next + step) % len(members)
            member = members[place]
            link = member.link
            if link is None or not link.ready or link.paused or not member.may_get(message.topic):
                continue
            room = member.window.limit - len(member.window) - len(portions.get(member, ()))
            if room > 0 or min(message.qos, self.members[member].qos) == 0:
                self._next = place + 1
                return member
        return None

    # -- behind --------------------------------------------------------------------------------------------------------

    def blocked(self) -> bool:
        return not any(
            member.link is not None and member.link.ready and not member.link.paused and not member.window.full()
            for member in self.connected
        )

    def wants(self, topic: str) -> bool:
        return filter_matches(self._levels, topic.split("/"))

    def filters(self) -> Sequence[Sequence[str]]:
        return (self._levels,)

    def take(self, run: Run) -> int:
        # QoS 0 went out when it came, or nobody was there.
        return self._divide(run.messages) if run.qos else len(run)
