"""MQTT bytes to control packets, in bulk, for versions 3.1, 3.1.1 and 5.0.

    packet   u8 type (high half) and flags (low half), varint remaining length, variable header, payload
    PUBLISH  flags: dup, qos (2 bits), retain; UTF-8 topic, u16 packet id if qos > 0, properties if 5.0, payload

`Parser.feed` takes whatever a read gave and returns everything complete in it. The version is learnt from the CONNECT,
which must be a client's first packet and its only one [MQTT-3.1.0-1, MQTT-3.1.0-2]. A violation ends the list as a
`MalformedPacket`, after the packets that came before it; from then on the parser ignores what it is fed. With `in_runs`,
packets of the two kinds that come once per message are given as one object per run (`Publications`, `Acknowledgements`),
so that who handles them pays per run. What depends on
more than one packet's bytes (packet ids in use, receive maximum, permissions) is the session's, with two exceptions: topic
aliases are resolved here, so that all who see a PUBLISH see its topic, and a packet that only the other side may send is
refused here.

Bounded: a packet by `max_packet_bytes`, a client's first one by `max_connect_bytes`, topic aliases by `topic_alias_maximum`,
the cache of decoded topic names by `MAX_CACHED_TOPICS`. `held_bytes` is what all of that comes to now.

This module is compiled where a C compiler is present. Positions are `i64` and every read is checked against the end of
the packet first: compiled slices are silent about what is missing.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from librt.strings import read_i16_be
from mypy_extensions import i64

from trunkline.protocols.mqtt.errors import (
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    TOPIC_ALIAS_INVALID,
    UNSUPPORTED_PROTOCOL_VERSION,
    MalformedPacket,
)
from trunkline.protocols.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V31,
    V311,
    Acknowledgements,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publications,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from trunkline.protocols.mqtt.properties import (
    IN_AUTH,
    IN_CONNACK,
    IN_CONNECT,
    IN_DISCONNECT,
    IN_PUBACK,
    IN_PUBLISH,
    IN_SUBSCRIBE,
    IN_UNSUBSCRIBE,
    IN_WILL,
    Properties,
    decode_properties,
)
from trunkline.protocols.mqtt.values import ValueReader, decode_text, malformed

DEFAULT_MAX_PACKET_BYTES: Final = 1 << 20
MAX_CACHED_TOPICS: Final = 4_096
MAX_CACHED_BYTES: Final = 1 << 20

ParserEvent: TypeAlias = Packet | MalformedPacket

_FROM_CLIENT_ONLY: Final = (CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ)
_FROM_SERVER_ONLY: Final = (CONNACK, SUBACK, UNSUBACK, PINGRESP)
_PUBLISH_REASONS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE_REASONS: Final = frozenset({0x00, 0x92})
_CLIENT_DISCONNECT_REASONS: Final = frozenset(
    {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)
_AUTH_REASONS: Final = frozenset({0x00, 0x18, 0x19})


def _violation(text: str) -> MalformedPacket:
    return MalformedPacket(PROTOCOL_ERROR, text)


class Parser:
    """A connection's bytes, as a server sees them or, with `server_side=False` and a `version`, as a client does."""

    def __init__(
        self,
        *,
        server_side: bool = True,
        version: int = 0,
        max_packet_bytes: int = DEFAULT_MAX_PACKET_BYTES,
        max_connect_bytes: int = 0,
        topic_alias_maximum: int = 0,
        in_runs: bool = False,
    ) -> None:
        self._server_side = server_side
        self._in_runs = in_runs
        # The run at the end of what was parsed, which the next packet may be part of.
        self._publications: Publications | None = None
        self._acknowledgements: Acknowledgements | None = None
        self._version: i64 = version
        self._max_later_packet: i64 = max_packet_bytes
        self._max_packet: i64 = max_packet_bytes
        if max_connect_bytes > 0 and max_connect_bytes < max_packet_bytes:
            self._max_packet = max_connect_bytes  # until the CONNECT is here
        self._alias_maximum: i64 = topic_alias_maximum
        self._aliases: dict[int, str] = {}
        self._connect_properties: Properties | None = None
        self._topics: dict[bytes, str] = {}
        self._topics_bytes: i64 = 0  # of the names in these two
        # Input that is short of a packet waits here, unjoined until the packet can be whole.
        self._waiting: list[bytes] = []
        self._waiting_bytes: i64 = 0
        self._wanted_bytes: i64 = 0
        self._stopped = False

    @property
    def version(self) -> int:
        """The protocol version; 0 until CONNECT has told it."""
        return self._version

    @property
    def connect_properties(self) -> Properties | None:
        """Those of the CONNECT, also when what comes behind them in it is malformed: how much the client takes."""
        return self._connect_properties

    @property
    def stopped(self) -> bool:
        """True after a violation: nothing that comes is looked at."""
        return self._stopped

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for a packet that is not complete."""
        return self._waiting_bytes

    @property
    def held_bytes(self) -> int:
        """All bytes of the other side's that are kept here: those, aliases and cached names."""
        return self._waiting_bytes + self._topics_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        if self._stopped:
            return events
        piece = data if isinstance(data, bytes) else bytes(data)
        if self._waiting_bytes > 0:
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            if self._waiting_bytes < self._wanted_bytes:
                return events
            piece = b"".join(self._waiting)
            self._waiting = []
            self._waiting_bytes = 0
        try:
            position = self._parse(piece, events)
            self._end_run()
        except MalformedPacket as error:
            self._stopped = True
            self._end_run()
            self._forget_topics()
            error.version = error.version or self._version
            events.append(error)
            return events
        if position < len(piece):
            rest = piece[position:]
            self._waiting = [rest]
            self._waiting_bytes = len(rest)
        return events

    def _end_run(self) -> None:
        self._publications = None
        self._acknowledgements = None

    def _parse(self, data: bytes, events: list[ParserEvent]) -> i64:
        """Parse whole packets; returns where the first incomplete one starts and notes how long it must become."""
        end: i64 = len(data)
        position: i64 = 0
        while end - position >= 2:
            first: i64 = data[position]
            start: i64 = position + 2
            size: i64 = data[position + 1]
            if size >= 0x80:
                size &= 0x7F
                shift: i64 = 7
                while True:
                    if shift > 21:
                        raise malformed("the remaining length is longer than 4 bytes")
                    if start >= end:
                        self._wanted_bytes = start - position + 1
                        return position
                    byte: i64 = data[start]
                    start += 1
                    size |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        if byte == 0 and self._version not in (V31, V311):
                            raise malformed("the remaining length takes more bytes than it needs")
                        break
            finish: i64 = start + size
            if finish - position > self._max_packet:
                text = f"a packet of {finish - position} bytes; at most {self._max_packet} are taken"
                raise MalformedPacket(PACKET_TOO_LARGE, text)
            if finish > end:
                self._wanted_bytes = finish - position
                return position
            kind: i64 = first >> 4
            if kind == PUBLISH and self._version != 0:
                self._take_publish(data, start, finish, first & 0x0F, events)
            elif size == 2 and self._in_runs and self._version != 0 and _is_acknowledgement(first):
                self._take_acknowledgement(data, start, kind, events)
            else:
                self._end_run()
                reader = ValueReader(data, start, finish)
                packet = self._read_packet(kind, first & 0x0F, reader)
                if reader.position != finish:
                    raise malformed(f"{finish - reader.position} bytes are left over in a packet of type {kind}")
                events.append(packet)
            position = finish
        self._wanted_bytes = 2
        return position

    def _take_acknowledgement(self, data: bytes, position: i64, kind: i64, events: list[ParserEvent]) -> None:
        packet_id: i64 = int(read_i16_be(data, position)) & 0xFFFF
        if packet_id == 0:
            raise _violation("packet identifier 0")
        run = self._acknowledgements
        if run is not None and run.kind == kind:
            run.packet_ids.append(packet_id)
            return
        run = Acknowledgements(kind, [packet_id])
        events.append(run)
        self._acknowledgements = run
        self._publications = None

    # -- PUBLISH -----------------------------------------------------------------------------------------------------

    def _take_publish(self, data: bytes, position: i64, finish: i64, flags: i64, events: list[ParserEvent]) -> None:
        qos: i64 = (flags >> 1) & 3
        if qos == 3:
            raise malformed("QoS 3")
        if qos == 0 and flags & 8 != 0 and self._version != V31:
            raise malformed("QoS 0 with the DUP flag")
        if finish - position < 2:
            raise malformed("a PUBLISH without a topic")
        size: i64 = int(read_i16_be(data, position)) & 0xFFFF
        position += 2
        if size > finish - position:
            raise malformed("the topic name is longer than its packet")
        raw = data[position : position + size]
        position += size
        topic = self._topics.get(raw)
        if topic is None:
            topic = self._add_topic(raw)
        packet_id: i64 = 0
        if qos != 0:
            if finish - position < 2:
                raise malformed("a PUBLISH without a packet identifier")
            packet_id = int(read_i16_be(data, position)) & 0xFFFF
            position += 2
            if packet_id == 0:
                raise _violation("packet identifier 0")
        properties: Properties | None = None
        if self._version == V5:
            if position < finish and data[position] == 0:
                position += 1
            else:
                reader = ValueReader(data, position, finish)
                properties = decode_properties(reader, IN_PUBLISH)
                position = reader.position
                if properties is not None:
                    topic = self._apply_properties(topic, properties)
        if len(topic) == 0:
            raise _violation("an empty topic name") if self._version == V5 else malformed("an empty topic name")
        if properties is not None or flags & 1 != 0 or not self._in_runs:
            self._end_run()
            events.append(
                Publish(topic, data[position:finish], qos, flags & 1 != 0, flags & 8 != 0, packet_id, properties)
            )
            return
        run = self._publications
        if run is None or run.qos != qos or run.topic != topic:
            run = Publications(topic, qos, [], [])
            events.append(run)
            self._publications = run
            self._acknowledgements = None
        run.payloads.append(data[position:finish])
        if qos != 0:
            run.packet_ids.append(packet_id)

    def _add_topic(self, raw: bytes) -> str:
        topic = decode_text(raw)
        if "+" in topic or "#" in topic:
            raise malformed("a topic name with a wildcard in it")
        if len(self._topics) >= MAX_CACHED_TOPICS or self._topics_bytes > MAX_CACHED_BYTES:
            self._forget_topics()
        self._topics[raw] = topic
        self._topics_bytes += 2 * len(raw)
        return topic

    def _forget_topics(self) -> None:
        self._topics.clear()
        self._topics_bytes = 0
        for topic in self._aliases.values():
            self._topics_bytes += len(topic)

    def _apply_properties(self, topic: str, properties: Properties) -> str:
        """Resolve the topic alias, and check what concerns PUBLISH only; returns the topic."""
        if self._server_side and properties.subscription_identifiers:
            raise _violation("a client's PUBLISH has no subscription identifier")
        response = properties.response_topic
        if response is not None and ("+" in response or "#" in response or response == ""):
            raise _violation("the response topic is not a topic name")
        alias = properties.topic_alias
        if alias is None:
            return topic
        if alias > self._alias_maximum:
            text = f"topic alias {alias}; at most {self._alias_maximum} are taken"
            raise MalformedPacket(TOPIC_ALIAS_INVALID, text)
        properties.topic_alias = None  # it means something on this connection only
        if topic:
            self._topics_bytes += len(topic) - len(self._aliases.get(alias, ""))
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise _violation(f"topic alias {alias} was given no topic")
        return known

    # -- all others --------------------------------------------------------------------------------------------------

    def _read_packet(self, kind: int, flags: int, reader: ValueReader) -> Packet:
        if kind in (_FROM_SERVER_ONLY if self._server_side else _FROM_CLIENT_ONLY):
            raise _violation(f"a packet of type {kind} from the wrong side")
        if kind == CONNECT:
            if self._version != 0:
                raise _violation("a second CONNECT")
            return self._read_connect(flags, reader)
        if self._version == 0:
            raise _violation("the first packet is not a CONNECT")
        if kind == 0 or (kind == AUTH and self._version != V5):
            raise malformed(f"there is no packet type {kind}")
        # In 3.1 these bits are DUP, QoS and RETAIN in every packet, and mean nothing in most; a repeated one has DUP.
        if self._version != V31 and flags != (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0):
            raise malformed(f"reserved flags are wrong in a packet of type {kind}")
        if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            return self._read_acknowledgement(kind, reader)
        if kind == SUBSCRIBE:
            return self._read_subscribe(reader)
        if kind == UNSUBSCRIBE:
            return self._read_unsubscribe(reader)
        if kind == PINGREQ:
            return PingReq()
        if kind == PINGRESP:
            return PingResp()
        if kind == CONNACK:
            return self._read_connack(reader)
        if kind == DISCONNECT:
            return self._read_disconnect(reader)
        if kind == AUTH:
            return self._read_auth(reader)
        return self._read_subscription_ack(kind, reader)

    def _read_connect(self, fixed_flags: int, reader: ValueReader) -> Connect:
        name = reader.binary()
        version = reader.u8()
        if (name == b"MQTT" and version not in (V311, V5)) or (name == b"MQIsdp" and version != V31):
            raise MalformedPacket(UNSUPPORTED_PROTOCOL_VERSION, f"there is no MQTT of level {version}", version)
        if name not in (b"MQTT", b"MQIsdp"):
            raise MalformedPacket(UNSUPPORTED_PROTOCOL_VERSION, "the protocol's name is not MQTT", version)
        try:
            packet = self._read_connect_body(version, fixed_flags, reader)
            if reader.left() > 0:
                raise malformed(f"{reader.left()} bytes are left over in a CONNECT")
        except MalformedPacket as error:
            error.version = version  # from here on it is known how to answer
            raise
        self._version = version
        self._max_packet = self._max_later_packet
        return packet

    def _read_connect_body(self, version: int, fixed_flags: int, reader: ValueReader) -> Connect:
        if fixed_flags != 0 and version != V31:
            raise malformed("reserved flags are set in a CONNECT")
        flags = reader.u8()
        keep_alive_s = reader.u16()
        will_qos = (flags >> 3) & 3
        if flags & 1:
            raise malformed("the reserved connect flag is set")
        if will_qos == 3 or (not flags & 0x04 and flags & 0x38):
            raise malformed("the will flags contradict each other")
        if version != V5 and flags & 0xC0 == 0x40:
            raise malformed("a password without a user name")
        properties = decode_properties(reader, IN_CONNECT) if version == V5 else None
        self._connect_properties = properties
        if properties is not None and properties.authentication_data is not None:
            _require_method(properties)
        client_id = reader.text()
        will: Will | None = None
        if flags & 0x04:
            will_properties = decode_properties(reader, IN_WILL) if version == V5 else None
            topic = reader.text()
            if topic == "" or "+" in topic or "#" in topic:
                raise malformed("the will topic is not a topic name")
            will = Will(topic, reader.binary(), will_qos, flags & 0x20 != 0, will_properties)
        user_name = reader.text() if flags & 0x80 else None
        password = reader.binary() if flags & 0x40 else None
        return Connect(
            version, client_id, flags & 0x02 != 0, keep_alive_s, will, user_name, password, properties
        )  # fmt: skip

    def _read_connack(self, reader: ValueReader) -> ConnAck:
        flags = reader.u8()
        if flags > 1:
            raise malformed("reserved flags are set in a CONNACK")
        code = reader.u8()
        return ConnAck(flags == 1, code, decode_properties(reader, IN_CONNACK) if self._version == V5 else None)

    def _packet_id(self, reader: ValueReader) -> int:
        packet_id = reader.u16()
        if packet_id == 0:
            raise _violation("packet identifier 0")
        return packet_id

    def _read_acknowledgement(self, kind: int, reader: ValueReader) -> Packet:
        packet_id = self._packet_id(reader)
        reason = 0
        properties: Properties | None = None
        if self._version == V5 and reader.left() > 0:
            reason = reader.u8()
            if reason not in (_PUBLISH_REASONS if kind in (PUBACK, PUBREC) else _RELEASE_REASONS):
                raise _violation(f"reason code 0x{reason:02x} in a packet of type {kind}")
            if reader.left() > 0:
                properties = decode_properties(reader, IN_PUBACK)
        if kind == PUBACK:
            return PubAck(packet_id, reason, properties)
        if kind == PUBREC:
            return PubRec(packet_id, reason, properties)
        if kind == PUBREL:
            return PubRel(packet_id, reason, properties)
        return PubComp(packet_id, reason, properties)

    def _read_subscribe(self, reader: ValueReader) -> Subscribe:
        packet_id = self._packet_id(reader)
        properties = decode_properties(reader, IN_SUBSCRIBE) if self._version == V5 else None
        subscriptions: list[Subscription] = []
        while reader.left() > 0:
            topic_filter = self._topic_filter(reader)
            options = reader.u8()
            if options & (0xC0 if self._version == V5 else 0xFC):
                raise malformed("reserved subscription options are set")
            if options & 0x03 == 3 or options & 0x30 == 0x30:
                raise _violation(f"subscription options 0x{options:02x}")
            subscriptions.append(
                Subscription(topic_filter, options & 3, options & 4 != 0, options & 8 != 0, (options >> 4) & 3)
            )
        if not subscriptions:
            raise _violation("a SUBSCRIBE without a topic filter")
        return Subscribe(packet_id, subscriptions, properties)

    def _read_unsubscribe(self, reader: ValueReader) -> Unsubscribe:
        packet_id = self._packet_id(reader)
        properties = decode_properties(reader, IN_UNSUBSCRIBE) if self._version == V5 else None
        topic_filters: list[str] = []
        while reader.left() > 0:
            topic_filters.append(self._topic_filter(reader))
        if not topic_filters:
            raise _violation("an UNSUBSCRIBE without a topic filter")
        return Unsubscribe(packet_id, topic_filters, properties)

    def _topic_filter(self, reader: ValueReader) -> str:
        topic_filter = reader.text()
        if topic_filter == "":
            raise malformed("an empty topic filter")
        return topic_filter

    def _read_subscription_ack(self, kind: int, reader: ValueReader) -> Packet:
        packet_id = self._packet_id(reader)
        properties = decode_properties(reader, IN_PUBACK) if self._version == V5 else None
        codes: list[int] = []
        if kind == SUBACK or self._version == V5:
            codes.extend(reader.rest())
        if kind == SUBACK:
            return SubAck(packet_id, codes, properties)
        return UnsubAck(packet_id, codes, properties)

    def _read_disconnect(self, reader: ValueReader) -> Disconnect:
        if self._version != V5 or reader.left() == 0:
            return Disconnect()
        reason = reader.u8()
        if self._server_side and reason not in _CLIENT_DISCONNECT_REASONS:
            raise _violation(f"reason code 0x{reason:02x} in a client's DISCONNECT")
        return Disconnect(reason, decode_properties(reader, IN_DISCONNECT) if reader.left() > 0 else None)

    def _read_auth(self, reader: ValueReader) -> Auth:
        if reader.left() == 0:
            return Auth()
        reason = reader.u8()
        if reason not in _AUTH_REASONS:
            raise _violation(f"reason code 0x{reason:02x} in an AUTH")
        properties = decode_properties(reader, IN_AUTH) if reader.left() > 0 else None
        if properties is not None:
            _require_method(properties)
        return Auth(reason, properties)


def _is_acknowledgement(first: i64) -> bool:
    """Whether this is the first byte of a PUBACK, PUBREC, PUBREL or PUBCOMP, with the flags that it must have."""
    return first == PUBACK << 4 or first == PUBREC << 4 or first == (PUBREL << 4) | 2 or first == PUBCOMP << 4


def _require_method(properties: Properties) -> None:
    if properties.authentication_method is None:
        raise _violation("authentication data without an authentication method")
