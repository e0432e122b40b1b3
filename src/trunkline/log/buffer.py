"""Bytes that are read and not changed, whoever they belong to. Imported from `store` by all who use a store."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
