"""Load for an SQS server: many connections, each with one request under way, as clients have them.

The requests are those of the JSON protocol, unsigned, written and read with as little work as possible, so that the server is
what is measured. Each connection goes through a cycle of requests; a receive that comes back empty is made again.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from typing import Final

from trunkline.bench.librdkafka import LoadError

TIMEOUT_S: Final = 120.0
_LENGTH: Final = re.compile(rb"(?i)content-length: *(\d+)")
_HANDLE: Final = re.compile(rb'"ReceiptHandle":"([^"]+)"')


class _Connection(asyncio.Protocol):
    """One client. `batch` is how many messages a request is about; 1 uses the single operations."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._step = 0
        self._buffer = b""
        self._handles: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.failed(error or LoadError("the server closed a connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        found = _LENGTH.search(self._buffer, 0, head + 2)
        length = int(found[1]) if found is not None else 0
        if len(self._buffer) < head + 4 + length:
            return
        body, status = self._buffer[head + 4 : head + 4 + length], self._buffer[9:12]
        self._buffer = self._buffer[head + 4 + length :]
        if status != b"200":
            self._run.failed(LoadError(f"the server answered {status.decode()}: {body[:300].decode(errors='replace')}"))
            return
        self._answered(body)

    def _answered(self, body: bytes) -> None:
        run = self._run
        kind = run.cycle[self._step]
        if kind == "receive":
            self._handles = _HANDLE.findall(body)
            if not self._handles:
                self._next()
                return
        if kind == run.counted:
            run.count(len(self._handles) if kind != "send" else run.batch)
        self._step = (self._step + 1) % len(run.cycle)
        self._next()

    def _next(self) -> None:
        run = self._run
        if run.done():
            return
        kind = run.cycle[self._step]
        if kind == "delete":
            self._transport.write(run.delete(self._handles))
        else:
            self._transport.write(run.send_request if kind == "send" else run.receive_request)


class _Run:
    def __init__(
        self, url: str, address: str, cycle: tuple[str, ...], batch: int, size_bytes: int, messages: int
    ) -> None:
        self.cycle = cycle
        self.batch = batch
        self.counted = cycle[-1]
        self._host = address
        self._url = url
        self._left = messages
        self._ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        text = "x" * size_bytes
        if batch == 1:
            self.send_request = self._request("SendMessage", {"QueueUrl": url, "MessageBody": text})
        else:
            entries = [{"Id": str(number), "MessageBody": text} for number in range(batch)]
            self.send_request = self._request("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
        self.receive_request = self._request("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": batch})

    def _request(self, operation: str, document: object) -> bytes:
        body = json.dumps(document, separators=(",", ":")).encode()
        head = (
            f"POST / HTTP/1.1\r\nhost: {self._host}\r\nx-amz-target: AmazonSQS.{operation}\r\n"
            f"content-type: application/x-amz-json-1.0\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def delete(self, handles: list[bytes]) -> bytes:
        if len(handles) == 1:
            return self._request("DeleteMessage", {"QueueUrl": self._url, "ReceiptHandle": handles[0].decode()})
        entries = [{"Id": str(n), "ReceiptHandle": handle.decode()} for n, handle in enumerate(handles)]
        return self._request("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries})

    def done(self) -> bool:
        return self._ended.done()

    def count(self, messages: int) -> None:
        self._left -= messages
        if self._left <= 0 and not self._ended.done():
            self._ended.set_result(time.perf_counter())

    def failed(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def until_ended(self) -> float:
        return await asyncio.wait_for(self._ended, TIMEOUT_S)


def measure(
    address: str, cycle: tuple[str, ...], batch: int, size_bytes: int, connections: int, messages: int
) -> float:
    """Messages a second, through the last step of the cycle. A queue is made for it, filled if nothing sends, and deleted."""
    url = call(address, "CreateQueue", {"QueueName": f"bench-{time.monotonic_ns()}", "Attributes": {"VisibilityTimeout": "3600"}})["QueueUrl"]  # fmt: skip
    try:
        if "send" not in cycle:
            asyncio.run(
                _measure(address, str(url), ("send",), 10, size_bytes, connections, messages + 20 * connections)
            )
        return asyncio.run(_measure(address, str(url), cycle, batch, size_bytes, connections, messages))
    finally:
        call(address, "DeleteQueue", {"QueueUrl": url})


async def _measure(
    address: str, url: str, cycle: tuple[str, ...], batch: int, size_bytes: int, connections: int, messages: int
) -> float:
    run = _Run(url, address, cycle, batch, size_bytes, messages)
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    made = [await loop.create_connection(lambda: _Connection(run), host, int(port)) for _ in range(connections)]
    try:
        return messages / (await run.until_ended() - started)
    except TimeoutError:
        raise LoadError(f"the messages did not go through in {TIMEOUT_S:g} s") from None
    finally:
        for transport, _ in made:
            transport.abort()


def call(address: str, operation: str, document: object) -> dict[str, object]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        headers = {"x-amz-target": f"AmazonSQS.{operation}", "content-type": "application/x-amz-json-1.0"}
        connection.request("POST", "/", json.dumps(document), headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise LoadError(f"{operation}: the server answered {answer.status}: {body[:300].decode(errors='replace')}")
        read = json.loads(body) if body else {}
        assert isinstance(read, dict)
        return read
    finally:
        connection.close()
