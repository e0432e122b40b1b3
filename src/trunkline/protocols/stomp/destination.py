"""Destinations, as RabbitMQ's: text to an address and back.

    /queue/NAME               the queue NAME, made where it is not there; so does NAME without a slash in front
    /amq/queue/NAME           the queue NAME, which is there
    /topic/KEY                the exchange amq.topic, by KEY
    /exchange/NAME[/KEY]      an exchange, by KEY
    /temp-queue/NAME          in reply-to alone: a queue of the connection's own
    /reply-queue/NAME         the queue that a reply-to names

A slash in a part is written %2F, a percent sign %25.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote

from trunkline.protocols.stomp.errors import StompError

TOPIC_EXCHANGE: Final = "amq.topic"
REPLY_PREFIX: Final = "/reply-queue/"
TEMPORARY_PREFIX: Final = "/temp-queue/"
_MAX_NAME_BYTES: Final = 255


class Kind(Enum):
    QUEUE = "queue"
    AMQ_QUEUE = "amq/queue"
    TOPIC = "topic"
    EXCHANGE = "exchange"
    TEMPORARY = "temp-queue"
    REPLY = "reply-queue"


class Destination(NamedTuple):
    """`name` is a queue's, or the exchange's that `key` is for."""

    kind: Kind
    name: str
    key: str = ""

    @property
    def address(self) -> tuple[str, str]:
        """Exchange and routing key of what is sent there."""
        if self.kind in (Kind.TOPIC, Kind.EXCHANGE):
            return self.name, self.key
        return "", self.name


def parse_destination(text: str) -> Destination:
    """StompError in RabbitMQ's words."""
    if not text.startswith("/"):
        return Destination(Kind.QUEUE, _checked(text, text, "queue"))
    if text.startswith(REPLY_PREFIX):
        name = text.removeprefix(REPLY_PREFIX)  # as it is, slashes included
        return Destination(Kind.REPLY, _checked(name, name, "reply-queue"))
    for kind in (Kind.AMQ_QUEUE, Kind.QUEUE, Kind.TOPIC, Kind.EXCHANGE, Kind.TEMPORARY):
        prefix = f"/{kind.value}"
        if text == prefix or text.startswith(prefix + "/"):
            return _parsed(kind, text.removeprefix(prefix))
    known = "/temp-queue, /exchange, /topic, /queue, /amq/queue, /reply-queue/"
    raise StompError(
        "Unknown destination", f"'{text}' is not a valid destination.\nValid destination types are: {known}.\n"
    )


def _parsed(kind: Kind, rest: str) -> Destination:
    shown = kind.value.rpartition("/")[2]
    parts = [_checked(unquote(part, errors="replace"), rest, shown) for part in rest.split("/")[1:]]
    if kind is Kind.EXCHANGE and len(parts) in (1, 2):
        return Destination(kind, *parts)
    if kind is Kind.EXCHANGE or len(parts) != 1:
        raise _invalid(rest, shown)
    return Destination(kind, TOPIC_EXCHANGE, parts[0]) if kind is Kind.TOPIC else Destination(kind, parts[0])


def _checked(name: str, shown: str, kind: str) -> str:
    if not name or len(name.encode()) > _MAX_NAME_BYTES:
        raise _invalid(shown, kind)
    return name


def _invalid(rest: str, kind: str) -> StompError:
    return StompError("Invalid destination", f"'{rest}' is not a valid {kind} destination\n")


def destination_of(exchange: str, routing_key: str) -> str:
    """Where a message was sent, as its receivers are told."""
    if not exchange:
        return f"/queue/{_quoted(routing_key)}"
    if exchange == TOPIC_EXCHANGE:
        return f"/topic/{_quoted(routing_key)}"
    return f"/exchange/{_quoted(exchange)}" + (f"/{_quoted(routing_key)}" if routing_key else "")


def _quoted(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")
