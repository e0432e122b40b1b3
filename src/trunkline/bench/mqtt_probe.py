"""When does an MQTT broker serve: when it accepts a CONNECT.

`wait_until_serving` sends the CONNECT of a 3.1.1 client with a clean session over a plain socket and is satisfied by a
CONNACK that accepts it. No client library is involved, so a measured start-up time is the broker's alone, to within
`POLL_INTERVAL_S`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from trunkline.bench.probe import EXCHANGE_TIMEOUT_S, POLL_INTERVAL_S, ProbeError

# protocol name MQTT, level 4, clean session, no keep-alive; the client is known as "probe"
_CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05probe"
_ACCEPTED = b"\x20\x02\x00\x00"
_DISCONNECT = b"\xe0\x00"


def wait_until_serving(address: str, timeout_s: float, is_alive: Callable[[], bool] = lambda: True) -> None:
    """Return as soon as the broker at `address` (HOST:PORT) accepts a client."""
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
    """Connect, and raise unless the broker accepts."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=EXCHANGE_TIMEOUT_S) as connection:
        connection.sendall(_CONNECT)
        answer = b""
        while len(answer) < len(_ACCEPTED):
            piece = connection.recv(len(_ACCEPTED) - len(answer))
            if not piece:
                raise ProbeError("the connection was closed")
            answer += piece
        if answer != _ACCEPTED:
            raise ProbeError(f"the answer is no CONNACK that accepts: {answer.hex()}")
        connection.sendall(_DISCONNECT)
