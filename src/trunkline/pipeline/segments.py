"""Record batches straight from the broker's segment files, where these are on this machine.

A broker says where its log is (DescribeLogDirs). That directory is read only if it is here, its log is that of the same
cluster (the cluster's id is a record in its `__topology`), and the process that has it open is running here.

What is read lies below the end that the broker has reported, so it is complete (see `segment_files`, which reads it). A file
that is removed or replaced under the reader ends the direct reading. So does the first transactional batch of a
read_committed reader, because which transactions were aborted is the broker's to say. Whatever was not read here is fetched.

Only ranges of at least `MIN_RECORDS` are read this way: finding the first batch of a range means walking over the headers
before it in its segment, which a short range does not repay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

from trunkline.client.client import Client
from trunkline.client.errors import ClientError
from trunkline.log.embedded import segment_files
from trunkline.log.embedded.segment_files import Run
from trunkline.log.errors import CorruptBatch
from trunkline.pipeline.planning import OffsetRange
from trunkline.protocols.kafka.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

MIN_RECORDS = 50_000
_CLUSTER_KEY = b"cluster"
_MAX_KNOWN = 16


def find_log(client: Client) -> str | None:
    """The directory of the broker's log, if it is on this machine and ours to read."""
    try:
        cluster = client.metadata([])
        if len(cluster.brokers) != 1 or cluster.id is None:
            return None
        answer = client.any_broker().request(DescribeLogDirsRequest(topics=[]), DescribeLogDirsResponse)
        directories = [item.log_dir for item in answer.results if item.error_code == 0]
    except ClientError:
        return None
    for directory in directories:
        if segment_files.is_open_here(directory) and _cluster_of(directory) == cluster.id:
            return directory
    return None


@lru_cache(_MAX_KNOWN)
def _cluster_of(directory: str) -> str | None:
    try:
        found = segment_files.topology_value(directory, _CLUSTER_KEY)
        return None if found is None else str(json.loads(found)["id"])
    except (OSError, ValueError, KeyError, CorruptBatch):
        return None


def local_batches(directory: str, wanted: OffsetRange, *, committed: bool) -> Iterator[Run]:
    """Runs of batches that overlap the range, in order, as far as files can give them."""
    if wanted.end - wanted.start < MIN_RECORDS:
        return
    try:
        for run in segment_files.batch_runs(directory, wanted.tp, wanted.start, wanted.end):
            if committed and any(header.transactional for header, _ in run):
                plain = _until_transactional(run)
                if plain:
                    yield plain
                return
            yield run
    except (OSError, CorruptBatch):
        return  # removed, replaced or cut off under us: the broker knows better


def _until_transactional(run: Run) -> Run:
    first = next(at for at, (header, _) in enumerate(run) if header.transactional)
    return run[:first]
