"""When does an MQTT broker serve: when it accepts a CONNECT.

`greet` sends the CONNECT of a 3.1.1 client with a clean session over a plain socket and is satisfied by a
CONNACK that accepts it. No client library is involved, so a measured start-up time is the broker's alone, to within
`POLL_INTERVAL_S`.
"""

from __future__ import annotations

import socket

from trunkline.bench.probe import EXCHANGE_TIMEOUT_S, ProbeError, receive

# protocol name MQTT, level 4, clean session, no keep-alive; the client is known as "probe"
_CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05probe"
_ACCEPTED = b"\x20\x02\x00\x00"
_DISCONNECT = b"\xe0\x00"


def greet(address: str) -> None:
    """Connect, and raise unless the broker accepts."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=EXCHANGE_TIMEOUT_S) as connection:
        connection.sendall(_CONNECT)
        answer = receive(connection, len(_ACCEPTED))
        if answer != _ACCEPTED:
            raise ProbeError(f"the answer is no CONNACK that accepts: {answer.hex()}")
        connection.sendall(_DISCONNECT)
