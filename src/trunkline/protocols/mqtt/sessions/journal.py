"""Sessions on disk: the records of `__sessions`, a compacted topic.

    session:<client id>               JSON: version, expiry, times, will
    sub:<client id>\\0<filter>         JSON: the options of one subscription
    in:<client id>                    u16 each: QoS 2 packet identifiers received and not yet released
    flow:<client id>                  the session's places in the log and its window, as drawn below
    share:$share/<name>/<filter>      the places of a shared subscription's group
    seen:                             places in the log up to which every QoS 2 publication is in an `in:` record; as a
                                      flow without entries, then u8 1: behind them the broker marked what it wrote

    flow      u16 places, each: u16 length, topic, u32 partition, u64 offset
              u16 entries, each: u16 packet id, u8 state, u16 index of its place (65535: not in a log), u64 offset

Places and window are one record because they must change together: a publication is either ahead of the session's place,
or in its window, or done. A tombstone ends a session's records, one by one, `session:` last; what a crash leaves of the
others without it is ignored, and removed, by `load`.

Only sessions that outlive their connection are here, and those with a will, which has to be sent if the broker dies.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trunkline.broker.keyed_state import KeyedState
from trunkline.clock import Clock
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Ticket
from trunkline.protocols.mqtt.agenda import Agenda
from trunkline.protocols.mqtt.codec import encode_properties
from trunkline.protocols.mqtt.packets import Will
from trunkline.protocols.mqtt.properties import IN_WILL, decode_properties
from trunkline.protocols.mqtt.sessions.subscription import Subscription
from trunkline.protocols.mqtt.sessions.window import AWAIT_PUBCOMP, UNKEPT, Inflight, Window
from trunkline.protocols.mqtt.values import ValueReader

SESSIONS_TOPIC = "__sessions"
_COUNT = struct.Struct(">H")
_PLACE = struct.Struct(">IQ")
_ENTRY = struct.Struct(">HBHQ")
_NO_PLACE = 0xFFFF
_MARKED = b"\x01"

Places = dict[TopicPartition, int]


class Seen(NamedTuple):
    places: Places
    marked: bool  # False: written by a version that did not mark its batches


@dataclass(slots=True)
class StoredSession:
    """What the records of one client say."""

    version: int = 0
    expiry_s: int = 0
    created_ms: int = 0
    disconnected_ms: int | None = None
    will: Will | None = None
    subscriptions: dict[str, list[object]] = field(default_factory=dict)
    inbound: set[int] = field(default_factory=set)
    places: Places = field(default_factory=dict)
    window: dict[int, Inflight] = field(default_factory=dict)
    known: bool = False  # whether there is a `session:` record


class KeptSession(Protocol):
    """A session, as far as it is written down."""

    in_journal: bool  # whether there is a record of it

    @property
    def client_id(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def expiry_s(self) -> int: ...

    @property
    def created_ms(self) -> int: ...

    @property
    def disconnected_ms(self) -> int | None: ...

    @property
    def will(self) -> Will | None: ...

    @property
    def inbound(self) -> set[int]: ...

    @property
    def unplaced(self) -> set[int] | None: ...

    @property
    def window(self) -> Window: ...

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...

    @property
    def persistent(self) -> bool: ...

    def places(self) -> Places: ...


class KeptGroup(Protocol):
    """A shared subscription's group, as far as it is written down."""

    in_journal: bool

    @property
    def name(self) -> str: ...

    @property
    def persistent(self) -> bool: ...

    def places(self) -> Places: ...


class SessionJournal:
    def __init__(self, store: LogStore, clock: Clock, agenda: Agenda) -> None:
        self._state = KeyedState(store, clock, SESSIONS_TOPIC)
        self._agenda = agenda
        self._changed_flows: dict[KeptSession, None] = {}
        self._changed_inbound: dict[KeptSession, None] = {}
        self._changed_groups: dict[KeptGroup, None] = {}
        self._flows: set[str] = set()  # clients that have a `flow:` record
        self._inbound: set[str] = set()

    async def load(self) -> tuple[dict[str, StoredSession], dict[str, Places], Seen]:
        """Every session, the places of every group, and what was seen, as they were written last."""
        await self._state.topic.open()
        sessions: dict[str, StoredSession] = {}
        groups: dict[str, Places] = {}
        seen = Seen({}, False)
        for key, value in (await self._state.topic.latest()).items():
            kind, _, rest = key.decode().partition(":")
            if kind == "share":
                groups[rest] = decode_flow(value)[0]
                continue
            if kind == "seen":
                places = decode_flow(value)[0]
                seen = Seen(places, value != encode_flow(places, {}))
                continue
            client_id, _, topic_filter = rest.partition("\0")
            self._take(sessions.setdefault(client_id, StoredSession()), kind, client_id, topic_filter, value)
        for client_id in [client_id for client_id, stored in sessions.items() if not stored.known]:
            self._remove(client_id, sessions.pop(client_id).subscriptions)
        return sessions, groups, seen

    def _take(self, stored: StoredSession, kind: str, client_id: str, topic_filter: str, value: bytes) -> None:
        if kind == "session":
            table = json.loads(value)
            stored.known = True
            stored.version = table["version"]
            stored.expiry_s = table["expiry_s"]
            stored.created_ms = table["created_ms"]
            stored.disconnected_ms = table["disconnected_ms"]
            stored.will = _decode_will(table["will"])
        elif kind == "sub":
            stored.subscriptions[topic_filter] = json.loads(value)
        elif kind == "in":
            self._inbound.add(client_id)
            stored.inbound = {number for (number,) in _COUNT.iter_unpack(value)}
        elif kind == "flow":
            self._flows.add(client_id)
            stored.places, stored.window = decode_flow(value)

    # -- what has changed in a turn ------------------------------------------------------------------------------------

    def flow_changed(self, session: KeptSession) -> None:
        self._changed_flows[session] = None
        if not self._agenda.scheduled:
            self._agenda.schedule()

    def inbound_changed(self, session: KeptSession) -> None:
        """The packet identifiers of a kept session's QoS 2 publications changed: on disk before it is acknowledged."""
        self._changed_inbound[session] = None
        self._agenda.needs_disk = True

    def group_changed(self, group: KeptGroup) -> None:
        if group.persistent or group.in_journal:
            self._changed_groups[group] = None
            self._agenda.schedule()

    @property
    def changed(self) -> bool:
        return bool(self._changed_flows or self._changed_inbound or self._changed_groups)

    @property
    def inbound_is_changed(self) -> bool:
        return bool(self._changed_inbound)

    def put_changes(self) -> None:
        for session in self._changed_flows:
            self.put_flow(session)
        for group in self._changed_groups:
            self.put_group(group)
        for session in self._changed_inbound:
            if session.in_journal:
                self.put_inbound(session)
        self._changed_flows.clear()
        self._changed_groups.clear()
        self._changed_inbound.clear()

    # -- writing -------------------------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        return self._state.dirty

    def flush(self, durability: Durability) -> Ticket:
        return self._state.flush(durability)

    def put_session(self, session: KeptSession) -> None:
        session.in_journal = True
        table = {
            "version": session.version,
            "expiry_s": session.expiry_s,
            "created_ms": session.created_ms,
            "disconnected_ms": session.disconnected_ms,
            "will": _encode_will(session.will),
        }
        self._state.put(b"session:" + session.client_id.encode(), json.dumps(table).encode())

    def put_subscription(self, client_id: str, subscription: Subscription) -> None:
        options = [
            subscription.qos,
            subscription.no_local,
            subscription.retain_as_published,
            subscription.retain_handling,
            subscription.identifier,
            subscription.since,
            None if subscription.content is None else subscription.content.text,
            subscription.expires_ms,
        ]
        self._state.put(_subscription_key(client_id, subscription.name), json.dumps(options).encode())

    def remove_subscription(self, client_id: str, name: str) -> None:
        self._state.put(_subscription_key(client_id, name), None)

    def put_inbound(self, session: KeptSession) -> None:
        self._inbound.add(session.client_id)
        placed = session.inbound if session.unplaced is None else session.inbound - session.unplaced
        value = struct.pack(f">{len(placed)}H", *sorted(placed))
        self._state.put(b"in:" + session.client_id.encode(), value)

    def put_seen(self, places: Places) -> None:
        self._state.put(b"seen:", encode_flow(places, {}) + _MARKED)

    def put_flow(self, session: KeptSession) -> None:
        if session.in_journal and session.persistent:
            self._flows.add(session.client_id)
            self._state.put(
                b"flow:" + session.client_id.encode(), encode_flow(session.places(), session.window.entries)
            )

    def remove_session(self, session: KeptSession) -> None:
        session.in_journal = False
        self._remove(session.client_id, session.subscriptions)

    def _remove(self, client_id: str, subscriptions: Iterable[str]) -> None:
        for name in subscriptions:
            self.remove_subscription(client_id, name)
        raw = client_id.encode()
        if client_id in self._flows:
            self._flows.discard(client_id)
            self._state.put(b"flow:" + raw, None)
        if client_id in self._inbound:
            self._inbound.discard(client_id)
            self._state.put(b"in:" + raw, None)
        self._state.put(b"session:" + raw, None)

    def put_group(self, group: KeptGroup) -> None:
        """Its places, as long as a member's session is kept; else nothing."""
        key = b"share:" + group.name.encode()
        if group.persistent:
            group.in_journal = True
            self._state.put(key, encode_flow(group.places(), {}))
        elif group.in_journal:
            group.in_journal = False
            self._state.put(key, None)


def _subscription_key(client_id: str, name: str) -> bytes:
    return b"sub:" + client_id.encode() + b"\0" + name.encode()


def encode_flow(places: Places, window: Mapping[int, Inflight]) -> bytes:
    indexes: dict[TopicPartition, int] = {}
    out = [b""]
    for tp, offset in places.items():
        indexes[tp] = len(indexes)
        name = tp.topic.encode()
        out.append(_COUNT.pack(len(name)) + name + _PLACE.pack(tp.partition, offset))
    out[0] = _COUNT.pack(len(indexes))
    out.append(_COUNT.pack(len(window)))
    for packet_id, entry in window.items():
        index = _NO_PLACE if entry.partition is None else indexes.get(entry.partition, _NO_PLACE)
        out.append(_ENTRY.pack(packet_id, entry.state, index, max(0, entry.offset)))
    return b"".join(out)


def decode_flow(value: bytes) -> tuple[Places, dict[int, Inflight]]:
    places: Places = {}
    position = _COUNT.size
    for _ in range(_COUNT.unpack_from(value)[0]):
        (length,) = _COUNT.unpack_from(value, position)
        position += _COUNT.size
        name = value[position : position + length].decode()
        position += length
        partition, offset = _PLACE.unpack_from(value, position)
        position += _PLACE.size
        places[TopicPartition(name, partition)] = offset
    order = list(places)
    window: dict[int, Inflight] = {}
    (count,) = _COUNT.unpack_from(value, position)
    position += _COUNT.size
    for _ in range(count):
        packet_id, state, index, offset = _ENTRY.unpack_from(value, position)
        position += _ENTRY.size
        if state == AWAIT_PUBCOMP:
            window[packet_id] = UNKEPT[AWAIT_PUBCOMP]
        else:
            # A message that was in no log is gone; its entry stays, so that it is taken out in the usual way.
            window[packet_id] = Inflight(state, order[index] if index != _NO_PLACE else None, offset)
    return places, window


def _encode_will(will: Will | None) -> dict[str, object] | None:
    if will is None:
        return None
    return {
        "topic": will.topic,
        "payload": base64.b64encode(will.payload).decode(),
        "qos": will.qos,
        "retain": will.retain,
        "properties": base64.b64encode(encode_properties(will.properties)).decode(),
    }


def _decode_will(table: dict[str, object] | None) -> Will | None:
    if table is None:
        return None
    raw = base64.b64decode(str(table["properties"]))
    properties = decode_properties(ValueReader(raw, 0, len(raw)), IN_WILL)
    payload = base64.b64decode(str(table["payload"]))
    return Will(str(table["topic"]), payload, int(str(table["qos"])), bool(table["retain"]), properties)
