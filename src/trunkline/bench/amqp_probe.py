"""When does an AMQP broker serve: asked the same way of every broker.

`wait_until_serving` sends the protocol header over a plain socket and is satisfied by connection.start, the first thing
that a broker says to a client once it can take its login. Brokers listen before that; listening does not count.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from trunkline.bench.probe import EXCHANGE_TIMEOUT_S, POLL_INTERVAL_S, ProbeError

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_ON_CHANNEL_0 = b"\x01\x00\x00"
_CONNECTION_START = b"\x00\x0a\x00\x0a"
_FRAME_HEADER_BYTES = 7


def wait_until_serving(address: str, timeout_s: float, is_alive: Callable[[], bool] = lambda: True) -> None:
    """Return as soon as the broker at `address` (HOST:PORT) greets a client."""
    deadline = time.monotonic() + timeout_s
    reason = "it was never asked"
    while time.monotonic() < deadline:
        if not is_alive():
            raise ProbeError(f"the broker at {address} exited before it served")
        try:
            greet(address)
        except (OSError, ProbeError) as error:
            reason = str(error)
        else:
            return
        time.sleep(POLL_INTERVAL_S)
    raise ProbeError(f"the broker at {address} did not serve within {timeout_s:g} s: {reason}")


def greet(address: str) -> None:
    """Connect, say hello, and raise unless connection.start comes back."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=EXCHANGE_TIMEOUT_S) as connection:
        connection.sendall(_PROTOCOL_HEADER)
        received = b""
        wanted = _FRAME_HEADER_BYTES + len(_CONNECTION_START)
        while len(received) < wanted:
            piece = connection.recv(wanted - len(received))
            if not piece:
                raise ProbeError("the connection was closed")
            received += piece
    if not received.startswith(_METHOD_ON_CHANNEL_0) or received[_FRAME_HEADER_BYTES:] != _CONNECTION_START:
        raise ProbeError("the answer is not AMQP's connection.start")
