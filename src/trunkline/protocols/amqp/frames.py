"""Frames: the numbers in them, and the events that the parser makes of them.

`Publish`, `Deliver`, `Ack`, `Nack` and `Reject` come once per message and are light objects; every other method arrives as
`MethodFrame` with the declaration from `methods`. Objects and not tuples: compiled, an object's fields are read and set
without boxing, and one with seven fields is made in less time than a tuple of seven.

Events that come once per message hold text, bytes and numbers only, so the cycle collector need not follow them.

This module is compiled where a C compiler is present.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from trunkline.protocols.amqp.methods import Method

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
DEFAULT_FRAME_MAX_BYTES: Final = 131_072
MIN_FRAME_MAX_BYTES: Final = 4_096
FRAME_OVERHEAD_BYTES: Final = 8
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
HEARTBEAT_KIND: Final = 8
FRAME_END: Final = 0xCE
CLASS_BASIC: Final = 60
PUBLISH: Final = (60 << 16) | 40
DELIVER: Final = (60 << 16) | 60
ACK: Final = (60 << 16) | 80
REJECT: Final = (60 << 16) | 90
NACK: Final = (60 << 16) | 120
HEADER_FIXED_BYTES: Final = 14  # class, weight, body size, property flags


@mypyc_attr(acyclic=True)
class Event:
    """Events are equal when they are of one class and their fields are; only tests compare them."""

    def fields(self) -> tuple[object, ...]:
        return ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Event) and other.fields() == self.fields()

    def __hash__(self) -> int:
        return hash(self.fields())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.fields()!r}"


class ProtocolHeader(Event):
    """The first eight bytes. Unless `accepted`, the server answers with its own header and closes."""

    def __init__(self, accepted: bool, received: bytes) -> None:
        self.accepted = accepted
        self.received = received

    def fields(self) -> tuple[object, ...]:
        return (self.accepted, self.received)


class Heartbeat(Event):
    pass


@mypyc_attr(acyclic=True)
class Publish(Event):
    """One basic.publish with its content. `properties` is the property section as it came, flags included."""

    def __init__(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        properties: bytes,
        body: bytes,
    ) -> None:
        self.channel = channel
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate
        self.properties = properties
        self.body = body

    def fields(self) -> tuple[object, ...]:
        return (
            self.channel, self.exchange, self.routing_key, self.mandatory, self.immediate, self.properties, self.body
        )  # fmt: skip


@mypyc_attr(acyclic=True)
class Deliver(Event):
    """One basic.deliver with its content, for a client that asked its parser for them in this form."""

    def __init__(
        self,
        channel: int,
        consumer_tag: bytes,
        tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
    ) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.tag = tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body

    def fields(self) -> tuple[object, ...]:
        return (
            self.channel, self.consumer_tag, self.tag, self.redelivered, self.exchange, self.routing_key,
            self.properties, self.body,
        )  # fmt: skip


@mypyc_attr(acyclic=True)
class Ack(Event):
    def __init__(self, channel: int, tag: int, multiple: bool) -> None:
        self.channel = channel
        self.tag = tag
        self.multiple = multiple

    def fields(self) -> tuple[object, ...]:
        return (self.channel, self.tag, self.multiple)


@mypyc_attr(acyclic=True)
class Nack(Event):
    def __init__(self, channel: int, tag: int, multiple: bool, requeue: bool) -> None:
        self.channel = channel
        self.tag = tag
        self.multiple = multiple
        self.requeue = requeue

    def fields(self) -> tuple[object, ...]:
        return (self.channel, self.tag, self.multiple, self.requeue)


@mypyc_attr(acyclic=True)
class Reject(Event):
    def __init__(self, channel: int, tag: int, requeue: bool) -> None:
        self.channel = channel
        self.tag = tag
        self.requeue = requeue

    def fields(self) -> tuple[object, ...]:
        return (self.channel, self.tag, self.requeue)


class MethodFrame(Event):
    """Any other method that carries no content."""

    def __init__(self, channel: int, method: Method) -> None:
        self.channel = channel
        self.method = method

    def fields(self) -> tuple[object, ...]:
        return (self.channel, self.method)


class Content(Event):
    """A method that only a server sends (deliver, get-ok, return), with its content. A server answers COMMAND_INVALID."""

    def __init__(self, channel: int, method: Method, properties: bytes, body: bytes) -> None:
        self.channel = channel
        self.method = method
        self.properties = properties
        self.body = body

    def fields(self) -> tuple[object, ...]:
        return (self.channel, self.method, self.properties, self.body)
