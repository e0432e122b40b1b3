"""When does an AMQP broker serve: asked the same way of every broker.

`greet` sends the protocol header over a plain socket and is satisfied by connection.start, the first thing
that a broker says to a client once it can take its login. Brokers listen before that; listening does not count.
"""

from __future__ import annotations

import socket

from trunkline.bench.probe import EXCHANGE_TIMEOUT_S, ProbeError, receive

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_ON_CHANNEL_0 = b"\x01\x00\x00"
_CONNECTION_START = b"\x00\x0a\x00\x0a"
_FRAME_HEADER_BYTES = 7


def greet(address: str) -> None:
    """Connect, say hello, and raise unless connection.start comes back."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=EXCHANGE_TIMEOUT_S) as connection:
        connection.sendall(_PROTOCOL_HEADER)
        received = receive(connection, _FRAME_HEADER_BYTES + len(_CONNECTION_START))
    if not received.startswith(_METHOD_ON_CHANNEL_0) or received[_FRAME_HEADER_BYTES:] != _CONNECTION_START:
        raise ProbeError("the answer is not AMQP's connection.start")
