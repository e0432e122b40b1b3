"""A message in the hands of a consumer: its value, what came with it, and what becomes of it.

A message is settled once. Whoever does nothing has it as long as the lease lasts, and then it is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NewType, TypeVar, cast

from trunkline.api import bodies
from trunkline.api.errors import LeaseLost
from trunkline.api.filters import topic_of
from trunkline.api.settlement import Settlement
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.protocols.amqp.codec import Properties, decode_properties
from trunkline.protocols.amqp.frames import Deliver

T = TypeVar("T")

MessageId = NewType("MessageId", str)

KEY_HEADER = "x-order-key"
COUNT_HEADER = "x-delivery-count"
_OURS = (KEY_HEADER, COUNT_HEADER)
_UNREAD: Any = object()


class Message(Generic[T]):
    """`value` is the body as the type that was asked for; `body` are its bytes."""

    __slots__ = ("_delivered", "_into", "_properties", "_settlement", "_surely", "_value")

    def __init__(
        self, delivered: Deliver, settlement: Settlement | None, into: object = object, *, surely: bool = False
    ) -> None:
        """`surely`: an acknowledgement waits until it is on disk."""
        self._surely = surely
        self._delivered = delivered
        self._settlement = settlement  # None: it was settled as it came
        self._into = into
        self._properties: Properties | None = None
        self._value: Any = _UNREAD

    def __repr__(self) -> str:
        return f"Message({self.id!r}, {len(self.body)} bytes, attempt {self.attempt})"

    @property
    def properties(self) -> Properties:
        found = self._properties
        if found is None:
            found = self._properties = decode_properties(self._delivered.properties)
        return found

    @property
    def value(self) -> T:
        """BodyRefused if the body is not of the type that was asked for."""
        if self._value is _UNREAD:
            self._value = bodies.decode(self.body, self.properties.content_type, self._into)
        return cast("T", self._value)

    def value_as(self, into: object) -> Any:
        return bodies.decode(self.body, self.properties.content_type, into)

    @property
    def body(self) -> bytes:
        return self._delivered.body

    @property
    def id(self) -> MessageId:
        return MessageId(self.properties.message_id or "")

    @property
    def key(self) -> str | None:
        found = (self.properties.headers or {}).get(KEY_HEADER)
        return found if isinstance(found, str) else None

    @property
    def headers(self) -> Mapping[str, FieldValue]:
        return {name: value for name, value in (self.properties.headers or {}).items() if name not in _OURS}

    @property
    def type(self) -> str | None:
        """The name of the class that the sender's value was of."""
        return self.properties.type

    @property
    def topic(self) -> str:
        """What it was published on; for a message of a queue, the queue's name."""
        return topic_of(self._delivered.routing_key) if self._delivered.exchange else self._delivered.routing_key

    @property
    def attempt(self) -> int:
        """1 the first time."""
        count = (self.properties.headers or {}).get(COUNT_HEADER)
        if isinstance(count, int):
            return count + 1
        return 2 if self._delivered.redelivered else 1

    @property
    def redelivered(self) -> bool:
        return self._delivered.redelivered

    # -- what becomes of it --------------------------------------------------------------------------------------

    @property
    def settlement(self) -> Settlement:
        """What it is settled by; for transactions. LeaseLost if it needs no settling."""
        if self._settlement is None:
            raise LeaseLost("a message that is delivered at most once is settled as it comes")
        return self._settlement

    @property
    def tag(self) -> int:
        return self._delivered.tag

    async def ack(self) -> None:
        """It is done with, and gone."""
        if self._settlement is None:
            return
        if self._surely:
            await self._settlement.settle(self._delivered.tag)
        else:
            self._settlement.ack(self._delivered.tag)

    async def release(self, delay: float | None = None) -> None:
        """Back into the queue, for another try after so many seconds; None: after the queue's back-off."""
        await self.settlement.release(self._delivered.tag, delay)

    async def reject(self) -> None:
        """Not to be tried again: to the queue's dead letters, if it has them."""
        self.settlement.reject(self._delivered.tag)

    async def extend(self, seconds: float) -> None:
        """Let the lease end so long from now. LeaseLost if it has ended already."""
        await self.settlement.extend(self._delivered.tag, seconds)
