"""The `x-` arguments of queue.declare as queue settings, checked as RabbitMQ checks them.

| argument | meaning here |
|---|---|
| x-message-ttl, x-expires | milliseconds |
| x-max-length, x-max-length-bytes, x-overflow | the most that is ready; drop-head, reject-publish, reject-publish-dlx |
| x-dead-letter-exchange, x-dead-letter-routing-key | where messages go that the queue gives up |
| x-max-priority | 1 to 255 |
| x-single-active-consumer | one consumer at a time |
| x-delivery-limit | how often a message may come back before it is given up |
| x-queue-type | classic and quorum are the same queue; a stream keeps its messages as with x-retain |
| x-queue-mode, x-queue-version, x-queue-master-locator, x-max-in-memory-…, x-quorum-initial-group-size | taken, without effect |
| x-retain | our own: settled messages stay in the topic, to be replayed by Kafka clients |
| x-order-by-key | our own: messages of one key are with one consumer at a time; the key is the header x-order-key, else the routing key |
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.broker.refusals import Refused, precondition
from trunkline.cursors.queue.settings import Overflow, QueueSettings

_TYPES = ("classic", "quorum", "stream")


def read_settings(queue: str, vhost: str, arguments: Mapping[str, object]) -> QueueSettings:
    """Refused if an argument has a value that it cannot have."""
    reader = _Reader(queue, vhost, arguments)
    kind = reader.one_of("x-queue-type", _TYPES)
    exchange = reader.text("x-dead-letter-exchange")
    routing_key = reader.text("x-dead-letter-routing-key")
    if exchange is None and routing_key is not None:
        raise reader.refused("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
    overflow = reader.one_of("x-overflow", [policy.value for policy in Overflow])
    reader.text("x-queue-mode")
    return QueueSettings(
        max_length=reader.number("x-max-length"),
        max_bytes=reader.number("x-max-length-bytes"),
        overflow=Overflow(overflow) if overflow is not None else Overflow.DROP_HEAD,
        message_ttl_ms=reader.number("x-message-ttl"),
        expires_ms=reader.number("x-expires", least=1),
        max_priority=reader.number("x-max-priority", least=1, most=255),
        delivery_limit=reader.number("x-delivery-limit"),
        dead_letter=None if exchange is None else (exchange, routing_key),
        single_active_consumer=reader.flag("x-single-active-consumer"),
        order_by_key=reader.flag("x-order-by-key"),
        retain=reader.flag("x-retain") or kind == "stream",
    )


class _Reader:
    def __init__(self, queue: str, vhost: str, arguments: Mapping[str, object]) -> None:
        self._queue = queue
        self._vhost = vhost
        self._arguments = arguments

    def refused(self, name: str, why: str) -> Refused:
        return precondition(f"invalid arg '{name}' for queue '{self._queue}' in vhost '{self._vhost}': {why}")

    def number(self, name: str, *, least: int = 0, most: int | None = None) -> int | None:
        value = self._arguments.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(name, f'"expected integer, got {_type(value)}"')
        if value < least:
            raise self.refused(name, f"{{{'value_zero' if value == 0 else 'value_negative'},{value}}}")
        if most is not None and value > most:
            raise self.refused(name, f"{{max_value_exceeded,{value}}}")
        return value

    def text(self, name: str) -> str | None:
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refused(name, f"{{unacceptable_type,{_type(value)}}}")
        return value

    def flag(self, name: str) -> bool:
        value = self._arguments.get(name, False)
        if not isinstance(value, bool):
            raise self.refused(name, f"{{unacceptable_type,{_type(value)}}}")
        return value

    def one_of(self, name: str, words: list[str] | tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value not in words:
            raise self.refused(name, f"{{value_not_permitted,'{value}'}}")
        return value


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    return {str: "longstr", float: "double", dict: "table", list: "array"}.get(type(value), type(value).__name__)
