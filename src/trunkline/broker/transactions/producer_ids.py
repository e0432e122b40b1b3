"""Producer ids: numbers that are never given twice, not even across a killed process.

Ids are handed out from a block. Before the first id of a block is used, the start of the block after it is made durable
in `__transaction_state`, under a key of our own:

    key    int16 100
    value  int16 0, int64 first id that no block has claimed

What always holds: every id handed out is below the durable number. A crash forgets the rest of a block, which costs
at most `block_size` numbers of 2^63. When the block cannot be made durable no id is given.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

PRODUCER_IDS_KEY_VERSION = 100
DEFAULT_BLOCK_SIZE = 1_000

_KEY = struct.Struct(">h")
_VALUE = struct.Struct(">hq")
_VALUE_VERSION = 0

PRODUCER_IDS_KEY = _KEY.pack(PRODUCER_IDS_KEY_VERSION)


def decode_next_block(value: bytes) -> int:
    """The first id that no block has claimed. Raises ValueError for bytes that are not such a value."""
    if len(value) != _VALUE.size:
        raise ValueError(f"producer id block of {len(value)} bytes, expected {_VALUE.size}")
    version, next_block = _VALUE.unpack(value)
    if version != _VALUE_VERSION or next_block < 0:
        raise ValueError(f"producer id block has version {version} and starts at {next_block}")
    return int(next_block)


class ProducerIds:
    """Hands out producer ids. `write` makes a key and value durable before it returns."""

    def __init__(
        self, write: Callable[[bytes, bytes], Awaitable[None]], *, block_size: int = DEFAULT_BLOCK_SIZE
    ) -> None:
        if block_size < 1:
            raise ValueError("a block has at least one producer id")
        self._write = write
        self._block_size = block_size
        self._next = 0
        self._claimed = 0  # ids below this may be handed out; the durable number is never less
        self._claiming = asyncio.Lock()

    def resume(self, next_block: int) -> None:
        """Continue after a restart. Never goes back, so it may be called for every record of a replay."""
        self._next = self._claimed = max(self._claimed, next_block)

    async def take(self) -> int:
        while self._next >= self._claimed:
            async with self._claiming:
                # Whoever waited for the lock finds the block that its holder claimed.
                if self._next >= self._claimed:
                    end = self._claimed + self._block_size
                    await self._write(PRODUCER_IDS_KEY, _VALUE.pack(_VALUE_VERSION, end))
                    self._claimed = end
        taken = self._next
        self._next += 1
        assert taken < self._claimed
        return taken
