"""One HTTP POST to wherever it is wanted, on asyncio's streams: how notifications leave the broker.

A connection per request. The answer's status is what counts: its header is read up to `_MAX_HEAD_BYTES` and its body not at all.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_MAX_HEAD_BYTES: Final = 64 * 1024


class PostFailed(OSError):
    """There was no answer, or none that is HTTP."""


async def post(url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> int:
    """The status of the answer. PostFailed if there is none in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _post(url, headers, body)
    except TimeoutError:
        raise PostFailed(f"{url} did not answer in {timeout_s:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise PostFailed(f"{url}: {error}") from None


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    if parts.hostname is None:
        raise ValueError("no host")
    context = ssl.create_default_context() if secure else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context, limit=_MAX_HEAD_BYTES)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {target} HTTP/1.1", f"host: {parts.netloc.rpartition('@')[2]}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"content-length: {len(body)}", "", ""]
        head = "\r\n".join(lines)
        if any(character in target for character in "\r\n ") or head.count("\r\n") != len(lines) - 1:
            raise ValueError("a header field is one line")
        writer.write(head.encode("latin-1", "replace") + body)
        await writer.drain()
        answer = (await reader.readuntil(b"\r\n")).split(b" ", 2)
        if len(answer) < 2 or not answer[0].startswith(b"HTTP/1.") or not answer[1].isdigit():
            raise ValueError("the answer is no HTTP")
        return int(answer[1])
    finally:
        writer.close()
