"""librdkafka at C speed from Python: enough of it to load a broker and count what comes back.

confluent-kafka costs about a microsecond of Python per message, more than the brokers do; measured through it, every
broker looks alike. Here one call hands librdkafka a thousand messages, and consumed messages are counted and freed
inside the library, so Python runs a few times per thousand messages.

The functions are looked up through the handle of confluent-kafka's own extension module, whose dependencies include the
librdkafka that it was built with: no other library has to be installed, and both are always of one version.

Invariants: a handle is used by one thread at a time and closed exactly once (`with`). `Sender.flush` returns only when
nothing is left in librdkafka's queue. Delivery failures are not reported per message; the caller proves delivery by
comparing the partitions' end offsets (`Sender.end_offset`), which no client-side count can do better.

Limits: `MAX_QUEUED_MESSAGES` and `MAX_QUEUED_KIB` bound what waits in the client; a full queue blocks `send`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from trunkline.version import install_command

SEND_CHUNK_MESSAGES = 1000
MAX_QUEUED_MESSAGES = 500_000
MAX_QUEUED_KIB = 512 * 1024
CALL_TIMEOUT_MS = 10_000
ERROR_CHARS = 512

_PRODUCER, _CONSUMER = 0, 1
_UNASSIGNED = -1
_COPY, _BLOCK = 2, 4


class LoadError(Exception):
    """The load could not be put on the broker, or what came back is not what was sent."""


class _Message(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("payload_bytes", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_bytes", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class _TopicPartition(ctypes.Structure):
    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_bytes", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("error", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _TopicPartitionList(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int), ("size", ctypes.c_int), ("elements", ctypes.POINTER(_TopicPartition)))


def _open_library() -> ctypes.CDLL:
    try:
        import confluent_kafka.cimpl as extension
    except ImportError as error:
        raise LoadError(f"The load generator needs confluent-kafka: {install_command('bench')}.") from error
    library = ctypes.CDLL(extension.__file__)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    partition_list = ctypes.POINTER(_TopicPartitionList)
    int64_reference = ctypes.POINTER(ctypes.c_int64)
    signatures: dict[str, tuple[object, tuple[object, ...]]] = {
        "rd_kafka_conf_new": (pointer, ()),
        "rd_kafka_conf_set": (number, (pointer, text, text, text, ctypes.c_size_t)),
        "rd_kafka_new": (pointer, (number, pointer, text, ctypes.c_size_t)),
        "rd_kafka_destroy": (None, (pointer,)),
        "rd_kafka_topic_new": (pointer, (pointer, text, pointer)),
        "rd_kafka_topic_destroy": (None, (pointer,)),
        "rd_kafka_produce_batch": (number, (pointer, ctypes.c_int32, number, ctypes.POINTER(_Message), number)),
        "rd_kafka_flush": (number, (pointer, number)),
        "rd_kafka_query_watermark_offsets": (
            number,
            (pointer, text, ctypes.c_int32, int64_reference, int64_reference, number),
        ),
        "rd_kafka_topic_partition_list_new": (partition_list, (number,)),
        "rd_kafka_topic_partition_list_add": (
            ctypes.POINTER(_TopicPartition),
            (partition_list, text, ctypes.c_int32),
        ),
        "rd_kafka_topic_partition_list_destroy": (None, (partition_list,)),
        "rd_kafka_assign": (number, (pointer, partition_list)),
        "rd_kafka_position": (number, (pointer, partition_list)),
        "rd_kafka_queue_get_consumer": (pointer, (pointer,)),
        "rd_kafka_queue_destroy": (None, (pointer,)),
        "rd_kafka_consume_callback_queue": (number, (pointer, number, pointer, pointer)),
        "rd_kafka_consumer_close": (number, (pointer,)),
        "rd_kafka_err2str": (text, (number,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class _Handle:
    """A librdkafka client; the subclasses say what it is for."""

    def __init__(self, kind: int, settings: Mapping[str, str]) -> None:
        self._library = _open_library()
        configuration = self._library.rd_kafka_conf_new()
        error = ctypes.create_string_buffer(ERROR_CHARS)
        for name, value in settings.items():
            if self._library.rd_kafka_conf_set(configuration, name.encode(), value.encode(), error, ERROR_CHARS) != 0:
                raise LoadError(f"librdkafka refused {name}={value}: {error.value.decode()}")
        self._handle = self._library.rd_kafka_new(kind, configuration, error, ERROR_CHARS)
        if not self._handle:
            raise LoadError(f"librdkafka did not start: {error.value.decode()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._handle)

    def _check(self, code: int, action: str) -> None:
        if code != 0:
            raise LoadError(f"{action}: {self._library.rd_kafka_err2str(code).decode()}")


class Sender(_Handle):
    """Sends the same payload over and over to one topic, partitioned as librdkafka does it without a key."""

    def __init__(self, settings: Mapping[str, str], topic: str, payload: bytes) -> None:
        bounds = {
            "queue.buffering.max.messages": str(MAX_QUEUED_MESSAGES),
            "queue.buffering.max.kbytes": str(MAX_QUEUED_KIB),
        }
        super().__init__(_PRODUCER, {**bounds, **settings})
        self._topic_name = topic.encode()
        self._topic = self._library.rd_kafka_topic_new(self._handle, self._topic_name, None)
        self._payload = ctypes.create_string_buffer(payload, len(payload))
        self._chunk = (_Message * SEND_CHUNK_MESSAGES)()
        for message in self._chunk:
            message.payload = ctypes.addressof(self._payload)
            message.payload_bytes = len(payload)

    def send(self, count: int) -> None:
        """Queue `count` messages, waiting for room where the queue is full."""
        left = count
        while left:
            chunk = min(left, SEND_CHUNK_MESSAGES)
            queued = self._library.rd_kafka_produce_batch(self._topic, _UNASSIGNED, _COPY | _BLOCK, self._chunk, chunk)
            if queued != chunk:
                raise LoadError(f"librdkafka took {queued} of {chunk} messages")
            left -= chunk

    def flush(self, timeout_s: float) -> None:
        """Wait until every queued message was acknowledged (or given up, which the end offsets then show)."""
        self._check(self._library.rd_kafka_flush(self._handle, int(timeout_s * 1000)), "Messages were not acknowledged")

    def end_offset(self, partitions: int) -> int:
        """How many messages the topic holds, summed over its partitions, as the broker tells it."""
        total = 0
        low, high = ctypes.c_int64(), ctypes.c_int64()
        for partition in range(partitions):
            code = self._library.rd_kafka_query_watermark_offsets(
                self._handle, self._topic_name, partition, ctypes.byref(low), ctypes.byref(high), CALL_TIMEOUT_MS
            )
            self._check(code, f"The end of partition {partition} is unknown")
            total += high.value
        return total

    def close(self) -> None:
        self._library.rd_kafka_topic_destroy(self._topic)
        super().close()


class Receiver(_Handle):
    """Reads all partitions of one topic from the beginning and counts."""

    def __init__(self, settings: Mapping[str, str], topic: str, partitions: int) -> None:
        super().__init__(_CONSUMER, settings)
        self._partitions = self._library.rd_kafka_topic_partition_list_new(partitions)
        for partition in range(partitions):
            added = self._library.rd_kafka_topic_partition_list_add(self._partitions, topic.encode(), partition)
            added.contents.offset = 0
        self._queue = self._library.rd_kafka_queue_get_consumer(self._handle)
        self._taken = 0
        # The library wants a C function to call per message and frees the message after it. Any function that takes a
        # message and keeps nothing will do; this one of the library itself reads a field. A Python one would cost more
        # than all the rest.
        self._on_message = ctypes.cast(self._library.rd_kafka_message_latency, ctypes.c_void_p)

    def assign(self) -> None:
        self._check(self._library.rd_kafka_assign(self._handle, self._partitions), "Partitions were not assigned")

    def receive(self, count: int, timeout_s: float) -> None:
        """Return when `count` messages have been received since the beginning of the topic."""
        deadline = time.monotonic() + timeout_s
        while True:
            taken = self._library.rd_kafka_consume_callback_queue(self._queue, 50, self._on_message, None)
            self._taken += taken
            # The count includes a few of the library's own events, so the positions decide; asking for them costs, so
            # it is done only when the end may have been reached or nothing is coming.
            if (self._taken >= count or taken == 0) and self.position() >= count:
                return
            if time.monotonic() > deadline:
                raise LoadError(f"Only {self.position():,} of {count:,} messages arrived in {timeout_s:g} s")

    def position(self) -> int:
        """Messages received so far, by the positions in the partitions."""
        self._check(self._library.rd_kafka_position(self._handle, self._partitions), "Positions are unknown")
        listing = self._partitions.contents
        return sum(max(0, listing.elements[index].offset) for index in range(listing.count))

    def close(self) -> None:
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_topic_partition_list_destroy(self._partitions)
        self._library.rd_kafka_consumer_close(self._handle)
        super().close()
