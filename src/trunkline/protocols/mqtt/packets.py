"""The fifteen control packets of MQTT 3.1, 3.1.1 and 5.0.

Two more classes stand for many packets at once: `Publications` and `Acknowledgements`, which a parser that is asked for
runs gives instead of packets that follow each other and differ in little.

What only 5.0 has (properties, most reason codes) keeps its default in packets of the older versions. `properties` is None
when a packet has none. Packets are equal when they are of one type and their fields are; only tests compare them.

Packets that come once per message can be part of no cycle, so the cycle collector need not follow them.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from trunkline.protocols.mqtt.properties import Properties

V31: Final = 3
V311: Final = 4
V5: Final = 5

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15


@mypyc_attr(acyclic=True)
class Packet:
    def fields(self) -> tuple[object, ...]:
        return ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Packet) and other.fields() == self.fields()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.fields()!r}"


class Will(Packet):
    """Part of CONNECT, not a packet by itself."""

    def __init__(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: Properties | None = None
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.topic, self.payload, self.qos, self.retain, self.properties)


class Connect(Packet):
    def __init__(
        self,
        version: int,
        client_id: str,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.clean_start = clean_start
        self.keep_alive_s = keep_alive_s
        self.will = will
        self.user_name = user_name
        self.password = password
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (
            self.version, self.client_id, self.clean_start, self.keep_alive_s, self.will, self.user_name,
            self.password, self.properties,
        )  # fmt: skip


class ConnAck(Packet):
    """`reason_code` is the return code, 0 to 5, of the older versions there."""

    def __init__(self, session_present: bool, reason_code: int, properties: Properties | None = None) -> None:
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.session_present, self.reason_code, self.properties)


@mypyc_attr(acyclic=True)
class Publish(Packet):
    """`packet_id` is 0 for QoS 0. The parser resolves topic aliases: `topic` is never empty in what it gives."""

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.topic, self.payload, self.qos, self.retain, self.dup, self.packet_id, self.properties)


@mypyc_attr(acyclic=True)
class Publications(Packet):
    """PUBLISH packets of one topic and QoS, without retain flag and properties. At QoS 0 there are no `packet_ids`."""

    def __init__(self, topic: str, qos: int, payloads: list[bytes], packet_ids: list[int]) -> None:
        self.topic = topic
        self.qos = qos
        self.payloads = payloads
        self.packet_ids = packet_ids

    def fields(self) -> tuple[object, ...]:
        return (self.topic, self.qos, self.payloads, self.packet_ids)

    def packets(self) -> list[Packet]:
        """One by one. Whether DUP was set is not known any more."""
        packet_ids = self.packet_ids or [0] * len(self.payloads)
        return [
            Publish(self.topic, payload, self.qos, False, False, packet_id)
            for payload, packet_id in zip(self.payloads, packet_ids, strict=True)
        ]


@mypyc_attr(acyclic=True)
class Acknowledgements(Packet):
    """PUBACK, PUBREC, PUBREL or PUBCOMP packets, all of one kind, that say that all is well."""

    def __init__(self, kind: int, packet_ids: list[int]) -> None:
        self.kind = kind
        self.packet_ids = packet_ids

    def fields(self) -> tuple[object, ...]:
        return (self.kind, self.packet_ids)

    def packets(self) -> list[Packet]:
        """One by one."""
        if self.kind == PUBACK:
            return [PubAck(packet_id) for packet_id in self.packet_ids]
        if self.kind == PUBREC:
            return [PubRec(packet_id) for packet_id in self.packet_ids]
        if self.kind == PUBREL:
            return [PubRel(packet_id) for packet_id in self.packet_ids]
        return [PubComp(packet_id) for packet_id in self.packet_ids]


@mypyc_attr(acyclic=True)
class Acknowledgement(Packet):
    """What PUBACK, PUBREC, PUBREL and PUBCOMP have in common."""

    def __init__(self, packet_id: int, reason_code: int = 0, properties: Properties | None = None) -> None:
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.packet_id, self.reason_code, self.properties)


@mypyc_attr(acyclic=True)
class PubAck(Acknowledgement):
    pass


@mypyc_attr(acyclic=True)
class PubRec(Acknowledgement):
    pass


@mypyc_attr(acyclic=True)
class PubRel(Acknowledgement):
    pass


@mypyc_attr(acyclic=True)
class PubComp(Acknowledgement):
    pass


class Subscription(Packet):
    """One topic filter of a SUBSCRIBE, with its options; not a packet by itself."""

    def __init__(
        self,
        topic_filter: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling

    def fields(self) -> tuple[object, ...]:
        return (self.topic_filter, self.qos, self.no_local, self.retain_as_published, self.retain_handling)


class Subscribe(Packet):
    def __init__(self, packet_id: int, subscriptions: list[Subscription], properties: Properties | None = None) -> None:
        self.packet_id = packet_id
        self.subscriptions = subscriptions
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.packet_id, self.subscriptions, self.properties)


class SubAck(Packet):
    def __init__(self, packet_id: int, reason_codes: list[int], properties: Properties | None = None) -> None:
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.packet_id, self.reason_codes, self.properties)


class Unsubscribe(Packet):
    def __init__(self, packet_id: int, topic_filters: list[str], properties: Properties | None = None) -> None:
        self.packet_id = packet_id
        self.topic_filters = topic_filters
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.packet_id, self.topic_filters, self.properties)


class UnsubAck(Packet):
    """The older versions send no reason codes: the list is empty there."""

    def __init__(self, packet_id: int, reason_codes: list[int], properties: Properties | None = None) -> None:
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.packet_id, self.reason_codes, self.properties)


class PingReq(Packet):
    pass


class PingResp(Packet):
    pass


class Disconnect(Packet):
    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        self.reason_code = reason_code
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.reason_code, self.properties)


class Auth(Packet):
    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        self.reason_code = reason_code
        self.properties = properties

    def fields(self) -> tuple[object, ...]:
        return (self.reason_code, self.properties)
