"""How many offsets a number of bytes is: what `maxBytesPerTrigger` needs, and no broker tells.

Bytes are those that the log stores, so compressed ones where the producer compresses. Each partition gets an equal share
of the limit. The beginning of its range is fetched, up to the share or `SAMPLE_BYTES`, and its batch headers are counted; a
share that is larger than the sample is extrapolated from it. At least one batch is admitted per partition, whatever its
size: otherwise a stream with a small limit would stand still.
"""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.client.client import Client
from trunkline.client.errors import check
from trunkline.log.batch import parse_header, whole_batches
from trunkline.log.store import TopicPartition
from trunkline.pipeline import limits
from trunkline.pipeline.planning import OffsetRange
from trunkline.protocols.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

_BY_NAME_VERSION = 12


def offsets_within(client: Client, ranges: Sequence[OffsetRange], max_bytes: int) -> dict[TopicPartition, int]:
    """How many offsets from the start of each range are about `max_bytes` in all."""
    if not ranges:
        return {}
    share = max(1, max_bytes // len(ranges))
    return {item.tp: _count(client, item, share) for item in ranges}


def _count(client: Client, wanted: OffsetRange, share: int) -> int:
    records = _beginning(client, wanted, min(share, limits.SAMPLE_BYTES))
    size, position, whole = 0, wanted.start, False
    for batch in whole_batches(records):
        header = parse_header(batch)
        if size and size + header.size_bytes > share:
            whole = True
            break
        size += header.size_bytes
        position = max(position, header.last_offset + 1)
        if position >= wanted.end:
            whole = True
            break
    if size == 0:
        return wanted.end - wanted.start  # a gap that compaction left: nothing to count
    count = position - wanted.start
    if not whole and size < share:
        # Only if the sample was cut off by its own limit; the last batch may have been cut off in its middle.
        count = max(count, count * share // size) if share > limits.SAMPLE_BYTES else count
    return max(1, min(count, wanted.end - wanted.start))


def _beginning(client: Client, wanted: OffsetRange, max_bytes: int) -> memoryview | bytes | bytearray | None:
    part = FetchPartition(partition=wanted.partition, fetch_offset=wanted.start, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=wanted.topic, partitions=[part])],
    )

    def ask() -> memoryview | bytes | bytearray | None:
        leader = client.leaders(wanted.topic)[wanted.partition]
        response = client.broker(leader).request(request, FetchResponse, max_version=_BY_NAME_VERSION)
        check(response.error_code, f"partition {wanted.tp}")
        data = response.responses[0].partitions[0]
        # Whether something was lost is told when the range is planned, with more to say about it.
        return data.records if data.error_code == 0 else None

    return client.retrying(ask)
