"""What a queue was declared with. Kept as JSON in the queue's topology record."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

MAX_PRIORITY = 255
_LONGEST_BACKOFF_MS = 3_600_000


class Overflow(StrEnum):
    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    max_length: int | None = None  # of ready messages
    max_bytes: int | None = None  # of the bodies of ready messages
    overflow: Overflow = Overflow.DROP_HEAD
    message_ttl_ms: int | None = None
    expires_ms: int | None = None  # the queue goes when it was unused for so long
    max_priority: int | None = None
    delivery_limit: int | None = None  # a message returned more often than this is dead-lettered
    dead_letter: tuple[str, str | None] | None = None  # exchange, and the routing key that replaces the message's
    drop_expired: bool = False  # what expires is no dead letter
    single_active_consumer: bool = False
    order_by_key: bool = False  # records of one key are with one consumer at a time
    deduplicate: bool = False  # messages with an id that was sent in the last minutes are not taken again
    deduplicate_by_key: bool = False  # ids are told apart within a key
    retain: bool = False  # settled messages stay in the topic, to be replayed
    lease_ms: int | None = None  # None: as long as the consumer lives
    backoff_ms: int | None = None  # how long a message that a consumer returned waits; twice as long each further time
    max_backoff_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_bytes", "message_ttl_ms", "delivery_limit", "backoff_ms", "max_backoff_ms"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is negative: {value}")
        for name in ("expires_ms", "lease_ms"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive: {value}")
        if self.max_priority is not None and not 0 <= self.max_priority <= MAX_PRIORITY:
            raise ValueError(f"max_priority must be between 0 and {MAX_PRIORITY}: {self.max_priority}")

    def backoff_after(self, deliveries: int) -> int:
        """How long a message waits that was delivered so often and came back."""
        if not self.backoff_ms:
            return 0
        longest_ms = self.max_backoff_ms if self.max_backoff_ms is not None else _LONGEST_BACKOFF_MS
        return min(self.backoff_ms << min(deliveries - 1, 32), longest_ms)

    def encode(self) -> dict[str, object]:
        """As JSON values; what has its default is left out."""
        default = asdict(QueueSettings())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    @classmethod
    def decode(cls, document: dict[str, object]) -> QueueSettings:
        """The inverse of `encode`; ValueError when the document is something else."""
        values = json.loads(json.dumps(document))
        if "overflow" in values:
            values["overflow"] = Overflow(values["overflow"])
        if values.get("dead_letter") is not None:
            exchange, routing_key = values["dead_letter"]
            values["dead_letter"] = (exchange, routing_key)
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"not the settings of a queue: {error}") from None
