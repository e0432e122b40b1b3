"""What a log refuses, and why. Each protocol turns these into its own error codes; the text says what to do."""

from __future__ import annotations


class LogError(Exception):
    """The log refused an operation. Subclasses are the whole list of reasons."""


class UnknownTopicOrPartition(LogError):
    pass


class UnknownTopicId(LogError):
    pass


class TopicExists(LogError):
    pass


class InvalidTopicName(LogError):
    pass


class InvalidPartitionCount(LogError):
    pass


class InvalidConfig(LogError):
    pass


class OffsetOutOfRange(LogError):
    """The offset lies before the log's start or past its end."""


class CorruptBatch(LogError):
    """Bytes that are not a whole, checksummed v2 record batch."""


class UnsupportedFormat(LogError):
    """A message set of the formats v0 or v1, which the log does not store."""


class InvalidRecord(LogError):
    """A well-formed batch with content that the topic does not take: no key on a compacted topic, a bad timestamp."""


class InvalidTimestamp(InvalidRecord):
    pass


class BatchTooLarge(LogError):
    """Larger than the topic's max.message.bytes."""


class OutOfOrderSequence(LogError):
    """An idempotent producer's batch is neither the next one nor a repetition that is remembered."""


class ProducerFenced(LogError):
    """An epoch older than one that was already seen for this producer id."""


class InvalidTransactionState(LogError):
    pass


class TransactionRefused(LogError):
    """A transaction could not be opened, for now. Nothing of it was stored."""


class OutcomeUnknown(LogError):
    """A transaction is committed or not: who decides did not answer."""


class StorageFailure(LogError):
    """The disk said no. The text names the file and the cause."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(f"{path}: {cause}")
        self.path = path
        self.cause = cause


class DamagedLog(StorageFailure):
    """A segment file holds something else than whole batches in their places. `path` names the file."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(path, f"damaged at position {position}: {reason}")
        self.position = position


class DataDirectoryInUse(StorageFailure):
    """Another process has this data directory open."""
