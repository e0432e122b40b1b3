"""What the coordinator knows of one transactional id, how it may change, and how it is written.

A `TransactionState` is immutable: a change makes a new one, which is written to the log first and becomes the state in
memory when it is durable. The changes that are allowed:

    from            to
    Empty           Empty (init), Ongoing, PrepareAbort (an abort before anything was added)
    Ongoing         Ongoing (partition added), PrepareCommit, PrepareAbort
    PrepareCommit   CompleteCommit
    PrepareAbort    CompleteAbort
    Complete*       Empty (init), Ongoing, PrepareAbort (an abort before anything was added)
    any but Ongoing and Prepare*: Dead (idle for too long; the log holds a tombstone)

PrepareEpochFence is a state of Kafka that it never writes; it is read as Ongoing. Fencing an open transaction is one step
here: PrepareAbort with the next epoch.

`last_epoch` is the epoch that the client held before the change that it asked for itself. A request under that epoch is a
retry whose answer was lost. A change that the client did not ask for (a new producer, a timeout) sets it to -1, and so
fences the client.

On disk (`__transaction_state`, in Kafka's own format, so that its tools can read it; integers are big-endian):

    key    int16 0, string transactional id
    value  int16 1, int64 producer id, int16 epoch, int32 timeout ms, int8 status,
           compact array (null while Empty) of { compact string topic, compact array of int32 partition, tags },
           int64 last update ms, int64 start ms,
           tags: 0 int64 previous producer id, 1 int64 next producer id, 2 int16 client's transaction version,
                 100 int16 last epoch (ours: Kafka forgets it in a restart)

Version 0 of the value, without tags and with plain strings and arrays, is read too. Unknown tags are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from trunkline.log.store import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1
MAX_EPOCH = 2**15 - 1
LAST_CLIENT_EPOCH = MAX_EPOCH - 1  # MAX_EPOCH itself is kept for fencing: no client ever holds it

TRANSACTION_KEY_VERSION = 0
MAX_TRANSACTIONAL_ID_BYTES = 2**15 - 1


class Status(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's spelling, as its admin tools show and take it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def preparing(self) -> bool:
        """The outcome is decided and durable, but not every partition has been told."""
        return self in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)


STATUS_BY_LABEL: Mapping[str, Status] = MappingProxyType({status.label: status for status in Status})

_IDLE_NEXT = frozenset((Status.EMPTY, Status.ONGOING, Status.PREPARE_ABORT, Status.DEAD))
TRANSITIONS: Mapping[Status, frozenset[Status]] = MappingProxyType(
    {
        Status.EMPTY: _IDLE_NEXT,
        Status.ONGOING: frozenset((Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)),
        Status.PREPARE_COMMIT: frozenset((Status.COMPLETE_COMMIT,)),
        Status.PREPARE_ABORT: frozenset((Status.COMPLETE_ABORT,)),
        Status.COMPLETE_COMMIT: _IDLE_NEXT,
        Status.COMPLETE_ABORT: _IDLE_NEXT,
        Status.DEAD: frozenset(),
        Status.PREPARE_EPOCH_FENCE: frozenset(),
    }
)


class ProducerIdentity(NamedTuple):
    """What a producer stamps on its batches."""

    producer_id: int
    producer_epoch: int


class TransactionState(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    timeout_ms: int = 0
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int = NO_TIMESTAMP
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    client_version: int = 0

    @property
    def is_known(self) -> bool:
        """False for a transactional id whose first producer id is not durable yet."""
        return self.producer_id != NO_PRODUCER_ID

    @property
    def is_open(self) -> bool:
        return self.status is Status.ONGOING or self.status.preparing

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def client_identity(self) -> ProducerIdentity:
        """What the client uses once the transaction that is being completed is out of the way."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.identity

    @property
    def epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def is_retry(self, asked: ProducerIdentity) -> bool:
        """Whether `asked` is what the client held before the change whose answer it may not have received."""
        if self.last_epoch == NO_EPOCH or asked.producer_epoch != self.last_epoch:
            return False
        if asked.producer_id == self.producer_id:
            return self.producer_epoch == asked.producer_epoch + 1
        return asked.producer_id == self.previous_producer_id and self.producer_epoch == 0

    # -- changes ---------------------------------------------------------------------------------------------------

    def initialized(
        self, identity: ProducerIdentity, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionState:
        """A producer has been given `identity`, which may be a fresh producer id."""
        rotated = self.producer_id not in (NO_PRODUCER_ID, identity.producer_id)
        return self._to(
            Status.EMPTY,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            previous_producer_id=self.producer_id if rotated else self.previous_producer_id,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
        )

    def with_partitions(self, added: Iterable[TopicPartition], client_version: int, now_ms: int) -> TransactionState:
        open_already = self.status is Status.ONGOING
        return self._to(
            Status.ONGOING,
            partitions=self.partitions.union(added),
            start_ms=self.start_ms if open_already else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepared(self, commit: bool, now_ms: int) -> TransactionState:
        """The client ends the transaction and goes on under the same epoch (before KIP-890)."""
        return self._prepare(commit, now_ms, self.producer_epoch, self.last_epoch, NO_PRODUCER_ID)

    def prepared_with_bump(self, commit: bool, now_ms: int, next_producer_id: int) -> TransactionState:
        """The client ends the transaction and goes on under the next epoch, or under a new id when there is none."""
        assert (next_producer_id != NO_PRODUCER_ID) == self.epoch_exhausted
        return self._prepare(commit, now_ms, self.producer_epoch + 1, self.producer_epoch, next_producer_id)

    def fenced(self, now_ms: int) -> TransactionState:
        """The coordinator aborts the transaction; whoever held it is shut out."""
        return self._prepare(False, now_ms, self.producer_epoch + 1, NO_EPOCH, NO_PRODUCER_ID)

    def completed(self, now_ms: int) -> TransactionState:
        identity = self.client_identity
        rotated = identity.producer_id != self.producer_id
        return self._to(
            Status.COMPLETE_COMMIT if self.status is Status.PREPARE_COMMIT else Status.COMPLETE_ABORT,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            previous_producer_id=self.producer_id if rotated else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    def dead(self) -> TransactionState:
        return self._to(Status.DEAD)

    def _prepare(
        self, commit: bool, now_ms: int, epoch: int, last_epoch: int, next_producer_id: int
    ) -> TransactionState:
        assert epoch <= MAX_EPOCH
        return self._to(
            Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.status is Status.ONGOING else now_ms,
            last_update_ms=now_ms,
        )

    def _to(self, status: Status, **changes: object) -> TransactionState:
        assert status in TRANSITIONS[self.status], f"{self.status.label} -> {status.label}"
        return self._replace(status=status, **changes)  # type: ignore[arg-type]


# -- format ------------------------------------------------------------------------------------------------------

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_LONG_LONG = struct.Struct(">qq")
_HEAD = struct.Struct(">hqhib")
_VALUE_VERSION = 1

_TAG_PREVIOUS_PRODUCER_ID = 0
_TAG_NEXT_PRODUCER_ID = 1
_TAG_CLIENT_VERSION = 2
_TAG_LAST_EPOCH = 100


def encode_key(transactional_id: str) -> bytes:
    name = transactional_id.encode()
    return _SHORT.pack(TRANSACTION_KEY_VERSION) + _SHORT.pack(len(name)) + name


def key_version(key: bytes) -> int:
    if len(key) < _SHORT.size:
        raise ValueError(f"key of {len(key)} bytes has no version")
    return int(_SHORT.unpack_from(key)[0])


def decode_key(key: bytes) -> str:
    """The transactional id of a key of version 0. Raises ValueError for anything else."""
    reader = _Reader(key)
    version = reader.number(_SHORT)
    if version != TRANSACTION_KEY_VERSION:
        raise ValueError(f"transaction key of version {version}")
    name = reader.take(reader.number(_SHORT)).decode()
    reader.expect_end()
    return name


def encode_value(state: TransactionState) -> bytes:
    out = bytearray(_HEAD.pack(_VALUE_VERSION, state.producer_id, state.producer_epoch, state.timeout_ms, state.status))
    if state.status is Status.EMPTY:
        _put_uvarint(out, 0)
    else:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(state.partitions):
            by_topic.setdefault(topic, []).append(partition)
        _put_uvarint(out, len(by_topic) + 1)
        for topic, numbers in by_topic.items():
            name = topic.encode()
            _put_uvarint(out, len(name) + 1)
            out += name
            _put_uvarint(out, len(numbers) + 1)
            out += struct.pack(f">{len(numbers)}i", *numbers)
            _put_uvarint(out, 0)
    out += _LONG_LONG.pack(state.last_update_ms, state.start_ms)
    tags: list[tuple[int, bytes]] = []
    if state.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_PREVIOUS_PRODUCER_ID, _LONG.pack(state.previous_producer_id)))
    if state.next_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_NEXT_PRODUCER_ID, _LONG.pack(state.next_producer_id)))
    if state.client_version:
        tags.append((_TAG_CLIENT_VERSION, _SHORT.pack(state.client_version)))
    if state.last_epoch != NO_EPOCH:
        tags.append((_TAG_LAST_EPOCH, _SHORT.pack(state.last_epoch)))
    _put_uvarint(out, len(tags))
    for tag, data in tags:
        _put_uvarint(out, tag)
        _put_uvarint(out, len(data))
        out += data
    return bytes(out)


def decode_value(value: bytes) -> TransactionState:
    """Raises ValueError for bytes that are not a TransactionLogValue of version 0 or 1."""
    reader = _Reader(value)
    version = reader.number(_SHORT)
    if version not in (0, 1):
        raise ValueError(f"transaction value of version {version}")
    flexible = version == 1
    producer_id, epoch = reader.number(_LONG), reader.number(_SHORT)
    timeout_ms = reader.number(_INT)
    status = Status(reader.take(1)[0])
    if status is Status.PREPARE_EPOCH_FENCE:
        status = Status.ONGOING
    partitions: set[TopicPartition] = set()
    for _ in range(reader.count(flexible)):
        topic = reader.take(reader.uvarint() - 1 if flexible else reader.number(_SHORT)).decode()
        for _ in range(reader.count(flexible)):
            partitions.add(TopicPartition(topic, reader.number(_INT)))
        if flexible:
            reader.tags()
    last_update_ms, start_ms = reader.number(_LONG), reader.number(_LONG)
    tags = reader.tags() if flexible else {}
    reader.expect_end()

    def tagged(tag: int, form: struct.Struct, default: int) -> int:
        data = tags.get(tag)
        return default if data is None else _Reader(data).number(form)

    return TransactionState(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        status=status,
        partitions=frozenset(partitions),
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        previous_producer_id=tagged(_TAG_PREVIOUS_PRODUCER_ID, _LONG, NO_PRODUCER_ID),
        next_producer_id=tagged(_TAG_NEXT_PRODUCER_ID, _LONG, NO_PRODUCER_ID),
        last_epoch=tagged(_TAG_LAST_EPOCH, _SHORT, NO_EPOCH),
        client_version=tagged(_TAG_CLIENT_VERSION, _SHORT, 0),
    )


def _put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


class _Reader:
    """Reads a key or value from its start. Every read is checked against the end; ValueError is the only error."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, count: int) -> bytes:
        end = self._position + count
        if count < 0 or end > len(self._data):
            raise ValueError(f"{count} bytes at {self._position} do not fit {len(self._data)}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def number(self, form: struct.Struct) -> int:
        return int(form.unpack(self.take(form.size))[0])

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ValueError("varint is longer than 5 bytes")

    def count(self, flexible: bool) -> int:
        """The length of an array; a null array has none. Bounded by the bytes left, as an item takes at least one."""
        count = max(0, self.uvarint() - 1 if flexible else self.number(_INT))
        if count > len(self._data) - self._position:
            raise ValueError(f"array of {count} items does not fit its value")
        return count

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self.take(self.uvarint())
        return found

    def expect_end(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes are left over")
