"""The `x-` arguments of a queue as its settings, and those of its consumers, checked as RabbitMQ checks them.

| argument | meaning here |
|---|---|
| x-message-ttl, x-expires | milliseconds, ten years at most |
| x-max-length, x-max-length-bytes, x-overflow | the most that is ready; drop-head, reject-publish, reject-publish-dlx |
| x-dead-letter-exchange, x-dead-letter-routing-key | where messages go that the queue gives up |
| x-max-priority | 0 to 255; 0 is none |
| x-single-active-consumer | one consumer at a time |
| x-delivery-limit | how often a message may come back before it is given up |
| x-queue-type | classic and quorum are the same queue; of a stream nothing is taken off (`streams`) |
| x-queue-mode, x-queue-version, x-queue-master-locator, x-queue-leader-locator, x-dead-letter-strategy, x-max-in-memory-…, x-quorum-initial-group-size | checked, without effect |
| x-max-age, x-stream-max-segment-size-bytes, x-initial-cluster-size, consumers' x-stream-offset | a stream's, and refused for others |
| x-retain | our own: settled messages stay in the topic, to be replayed by Kafka clients |
| x-lease-ms | our own: how long a delivery is its consumer's, before it goes to another; a consumer may say its own |
| x-backoff-ms, x-max-backoff-ms | our own: how long a message that a consumer returned waits; twice as long each time |
| x-order-by-key | our own: messages of one key are with one consumer at a time; the key is the header x-order-key, else the routing key |

And of a consumer:

| argument | meaning here |
|---|---|
| x-priority | who comes first |
| x-filter | our own: only messages that this filter matches (see selection) |
| x-get | our own: one message if there is one now, then the consumer is cancelled: basic.get with a filter |
| x-browse | our own: the same, and the message stays in the queue, held by nobody |
| x-expires | our own: milliseconds after which the consumer is cancelled |
| x-lease-ms | our own: as of a queue, for this consumer |
| x-delivery-count | our own: tell how often a message was delivered before, as quorum queues do |
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trunkline.broker.messaging import argument_checks as must_be
from trunkline.broker.messaging.argument_checks import MAX_EXPIRY_MS, Arguments, Checks, check, refused
from trunkline.broker.messaging.refusals import precondition, type_name
from trunkline.broker.messaging.selection import MessageSelector
from trunkline.broker.messaging.streams import NEXT, STREAM, is_place, read_age_ms
from trunkline.cursors.queue.settings import MAX_PRIORITY, Overflow, QueueSettings
from trunkline.routing.errors import InvalidFilter

_CLASSIC: Final = "classic"
_MILLISECONDS: Final = must_be.at_least(0, MAX_EXPIRY_MS, "value_too_large")

_QUEUE_CHECKS: Final[Checks] = {
    "x-queue-type": must_be.one_of((_CLASSIC, "quorum", STREAM), "\"unsupported queue type '{}'\""),
    "x-expires": must_be.at_least(1, MAX_EXPIRY_MS, "value_too_large"),
    "x-message-ttl": _MILLISECONDS,
    "x-dead-letter-routing-key": must_be.text,
    "x-dead-letter-strategy": must_be.one_of(("at-most-once", "at-least-once"), "invalid_dlx_strategy"),
    "x-max-length": must_be.at_least(0),
    "x-max-length-bytes": must_be.at_least(0),
    "x-max-in-memory-length": must_be.at_least(0),
    "x-max-in-memory-bytes": must_be.at_least(0),
    "x-max-priority": must_be.at_least(0, MAX_PRIORITY),
    "x-overflow": must_be.one_of([policy.value for policy in Overflow], "invalid_overflow"),
    "x-queue-mode": must_be.one_of(("default", "lazy"), "\"unsupported queue mode '{}'\""),
    "x-queue-version": must_be.number_of((1, 2), "\"unsupported queue version '{}'\""),
    "x-queue-master-locator": must_be.one_of(("client-local", "min-masters", "random"), "invalid_queue_locator_arg"),
    "x-queue-leader-locator": must_be.one_of(
        ("client-local", "balanced", "random", "least-leaders"), "invalid_queue_locator_arg"
    ),
    "x-single-active-consumer": must_be.boolean,
    "x-delivery-limit": must_be.at_least(0),
    "x-quorum-initial-group-size": must_be.at_least(1),
    "x-max-age": must_be.text,
    "x-stream-max-segment-size-bytes": must_be.at_least(0),
    "x-initial-cluster-size": must_be.at_least(1),
    "x-retain": must_be.boolean,
    "x-order-by-key": must_be.boolean,
    "x-lease-ms": must_be.at_least(1, MAX_EXPIRY_MS, "value_too_large"),
    "x-backoff-ms": _MILLISECONDS,
    "x-max-backoff-ms": _MILLISECONDS,
}
_CONSUMER_CHECKS: Final[Checks] = {
    "x-priority": must_be.integer,
    "x-cancel-on-ha-failover": must_be.boolean,
    "x-filter": must_be.text,
    "x-get": must_be.boolean,
    "x-browse": must_be.boolean,
    "x-expires": must_be.at_least(1, MAX_EXPIRY_MS, "value_too_large"),
    "x-lease-ms": must_be.at_least(1, MAX_EXPIRY_MS, "value_too_large"),
    "x-delivery-count": must_be.boolean,
}
# Known to RabbitMQ's streams alone; other queues do not take them.
_STREAM_ARGUMENTS: Final = ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size")
_STREAM_CONSUMER_ARGUMENTS: Final = ("x-stream-offset",)
# What a stream does not take: nothing is taken off it, so nothing can expire, be refused or go elsewhere.
_NOT_A_STREAMS: Final = (
    "x-message-ttl", "x-max-length", "x-expires", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-dead-letter-strategy", "x-max-priority", "x-overflow", "x-single-active-consumer", "x-delivery-limit", "x-queue-mode",
    "x-order-by-key", "x-retain", "x-lease-ms", "x-backoff-ms", "x-max-backoff-ms",
)  # fmt: skip
_NOT_OF_A_STREAMS_CONSUMER: Final = ("x-priority", "x-filter", "x-get", "x-browse", "x-lease-ms")


def read_settings(queue: str, vhost: str, arguments: Arguments) -> QueueSettings:
    """Refused if an argument has a value that it cannot have."""
    owner = f"queue '{queue}' in vhost '{vhost}'"
    exchange = _text(arguments, "x-dead-letter-exchange")
    if exchange is None and "x-dead-letter-exchange" in arguments:
        given = type_name(arguments["x-dead-letter-exchange"])
        raise precondition(f"invalid type '{given}' for arg 'x-dead-letter-exchange' in {owner}")
    check(arguments, _QUEUE_CHECKS, owner)
    kind = str(arguments.get("x-queue-type", _CLASSIC))
    if kind == STREAM:
        _check_not_of_type(arguments, _NOT_A_STREAMS, owner, kind)
        age = _text(arguments, "x-max-age")
        if age is not None and read_age_ms(age) is None:
            raise refused("x-max-age", owner, "invalid_max_age")
        return QueueSettings(retain=True)
    _check_not_of_type(arguments, _STREAM_ARGUMENTS, owner, kind)
    if exchange is None and "x-dead-letter-routing-key" in arguments:
        raise refused("x-dead-letter-routing-key", owner, "routing_key_but_no_dlx_defined")
    return QueueSettings(
        max_length=_number(arguments, "x-max-length"),
        max_bytes=_number(arguments, "x-max-length-bytes"),
        overflow=Overflow(_text(arguments, "x-overflow") or Overflow.DROP_HEAD),
        message_ttl_ms=_number(arguments, "x-message-ttl"),
        expires_ms=_number(arguments, "x-expires"),
        max_priority=_number(arguments, "x-max-priority") or None,
        delivery_limit=_number(arguments, "x-delivery-limit"),
        dead_letter=None if exchange is None else (exchange, _text(arguments, "x-dead-letter-routing-key")),
        single_active_consumer=arguments.get("x-single-active-consumer") is True,
        order_by_key=arguments.get("x-order-by-key") is True,
        retain=arguments.get("x-retain") is True,
        lease_ms=_number(arguments, "x-lease-ms"),
        backoff_ms=_number(arguments, "x-backoff-ms"),
        max_backoff_ms=_number(arguments, "x-max-backoff-ms"),
    )


class Wish(NamedTuple):
    """What a consumer asks for by its arguments."""

    priority: int = 0
    selector: MessageSelector | None = None
    once: bool = False
    browse: bool = False
    place: object = NEXT  # where a stream's consumer begins
    expires_ms: int | None = None  # from now on


def read_wish(queue: str, vhost: str, queue_arguments: Arguments, arguments: Arguments) -> Wish:
    """Refused if one of a consumer's arguments has a value that it cannot have."""
    if not arguments:
        return _PLAIN
    owner = f"queue '{queue}' in vhost '{vhost}'"
    check(arguments, _CONSUMER_CHECKS, owner)
    kind = str(queue_arguments.get("x-queue-type", _CLASSIC))
    if kind == STREAM:
        _check_not_of_type(arguments, _NOT_OF_A_STREAMS_CONSUMER, owner, kind)
        place = arguments.get("x-stream-offset", NEXT)
        if not is_place(place):
            raise refused("x-stream-offset", owner, "invalid_offset")
        return Wish(place=place)
    _check_not_of_type(arguments, _STREAM_CONSUMER_ARGUMENTS, owner, kind)
    selector = None
    text = _text(arguments, "x-filter")
    if text is not None:
        try:
            selector = MessageSelector(text)
        except InvalidFilter as error:
            raise precondition(f"invalid arg 'x-filter' for {owner}: {error}") from None
    browse = arguments.get("x-browse") is True
    return Wish(
        _number(arguments, "x-priority") or 0,
        selector,
        browse or arguments.get("x-get") is True,
        browse,
        expires_ms=_number(arguments, "x-expires"),
    )


_PLAIN: Final = Wish()


def _check_not_of_type(arguments: Arguments, names: tuple[str, ...], owner: str, kind: str) -> None:
    for name in names:
        if name in arguments:
            raise precondition(f"invalid arg '{name}' for {owner} of queue type rabbit_{kind}_queue")


def _number(arguments: Arguments, name: str) -> int | None:
    value = arguments.get(name)
    return value if isinstance(value, int) else None


def _text(arguments: Arguments, name: str) -> str | None:
    value = arguments.get(name)
    return value if isinstance(value, str) else None
