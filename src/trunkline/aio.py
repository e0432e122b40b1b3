"""The Python API for asyncio: `async with trunkline.aio.connect(url) as t`. See docs/api.md."""

from __future__ import annotations

from trunkline.api.connection import Connection, connect
from trunkline.api.handle import Handle
from trunkline.api.message import Message
from trunkline.api.queue import Queue
from trunkline.api.stream import Record, Stream
from trunkline.api.transaction import Transaction

__all__ = ["Connection", "Handle", "Message", "Queue", "Record", "Stream", "Transaction", "connect"]
