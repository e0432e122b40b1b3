"""Every bound and choice of the embedded store, by name, with its default."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

from trunkline.log.decoding import DecodingLimits


def _default_open_files() -> int:
    """A quarter of what the process may open: connections need the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(8192, (1024 if soft == resource.RLIM_INFINITY else soft) // 4))


@dataclass(frozen=True, slots=True)
class StoreLimits:
    max_open_files: int = field(default_factory=_default_open_files)
    max_loaded_indexes: int = 1024  # closed segments whose indexes stay in memory
    max_read_bytes: int = 64 << 20  # one read, whatever the caller asks for
    max_read_ahead_bytes: int = 16 << 20  # of all partitions; 0 reads nothing ahead
    max_remembered_positions: int = 64  # per partition: where recent reads ended
    max_partitions: int = 100_000  # in the whole store
    decoding: DecodingLimits = field(default_factory=DecodingLimits)  # of one batch, when it must be looked into
    producer_expiry_ms: int = 86_400_000  # producer.id.expiration.ms
    cleanup_interval_ms: int = 30_000
    checkpoint_interval_ms: int = 30_000
    cleaner_key_map_bytes: int = 128 << 20  # log.cleaner.dedupe.buffer.size: offsets per key of one compaction pass
    cleaner_chunk_bytes: int = 8 << 20  # read at once by the cleaner
    io_uring: bool = True  # sync with it where the kernel lets us
