"""When does a broker serve, and how much memory does it hold: asked the same way of every broker.

`wait_until_serving` speaks two tiny Kafka requests over a plain socket (ApiVersions v0, then Metadata v1 for no topic)
and is satisfied when the answer lists at least one live broker. A JVM that only listens, or a KRaft node that is still
fenced, does not count as started; a client could not use it either. No client library is involved, so the measured
start-up time is the broker's alone, to within `POLL_INTERVAL_S`.

`resident_bytes` reads VmRSS from /proc and so needs Linux; elsewhere it raises ProbeError.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

POLL_INTERVAL_S = 0.005
EXCHANGE_TIMEOUT_S = 2.0
MAX_RESPONSE_BYTES = 1 << 20

_API_VERSIONS = 18
_METADATA = 3
_HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of client id
_CLIENT_ID = b"trunkline-bench"


class ProbeError(Exception):
    """The broker did not come up, or the operating system would not say what we asked."""


def wait_until_serving(
    address: str,
    timeout_s: float,
    is_alive: Callable[[], bool] = lambda: True,
    ask: Callable[[str], None] | None = None,
) -> None:
    """Return as soon as the broker at `address` answers: Metadata with a broker in it, or as `ask` would have it."""
    ask = ask or _require_broker
    deadline = time.monotonic() + timeout_s
    reason = "it was never asked"
    while time.monotonic() < deadline:
        if not is_alive():
            raise ProbeError(f"the broker at {address} exited before it served")
        try:
            ask(address)
        except (OSError, ProbeError, struct.error) as error:
            reason = str(error)
        else:
            return
        time.sleep(POLL_INTERVAL_S)
    raise ProbeError(f"the broker at {address} did not serve within {timeout_s:g} s: {reason}")


def _require_broker(bootstrap: str) -> None:
    if broker_count(bootstrap) <= 0:
        raise ProbeError("it lists no live broker")


def broker_count(bootstrap: str) -> int:
    """How many live brokers the broker at `bootstrap` knows."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=EXCHANGE_TIMEOUT_S) as connection:
        (error_code,) = struct.unpack_from(">h", _exchange(connection, _API_VERSIONS, 0, b""))
        if error_code != 0:
            raise ProbeError(f"ApiVersions answered error {error_code}")
        (count,) = struct.unpack_from(">i", _exchange(connection, _METADATA, 1, struct.pack(">i", 0)))
        return int(count)


def resident_bytes(pid: int) -> int:
    """Physical memory the process holds now."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise ProbeError(f"cannot read the memory of process {pid}: {error.strerror}") from error
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProbeError(f"process {pid} has no memory of its own: it has exited")


def _exchange(connection: socket.socket, api_key: int, api_version: int, body: bytes) -> bytes:
    request = _HEADER.pack(api_key, api_version, api_key, len(_CLIENT_ID)) + _CLIENT_ID + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (length,) = struct.unpack(">i", receive(connection, 4))
    if not 4 <= length <= MAX_RESPONSE_BYTES:
        raise ProbeError(f"a response of {length} bytes is not one of Kafka's")
    response = receive(connection, length)
    (correlation_id,) = struct.unpack_from(">i", response)
    if correlation_id != api_key:
        raise ProbeError("the response answers another request")
    return response[4:]


def receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise ProbeError("the connection was closed")
        received += piece
    return bytes(received)
