"""A wire between clients and a broker that can lose the broker's answers and be cut.

The broker is told to advertise `Wire.HOST`, where the wire listens on the broker's own port number; so every connection of
every client runs through it.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

_CHUNK_BYTES = 1 << 16


class Wire:
    HOST = "127.0.0.2"

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server((self.HOST, port))
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self) -> None:
        """From now on, what the broker says on the connections that stand reaches nobody. New connections are whole."""
        with self._lock:
            for connection in self._connections:
                connection.deaf = True

    def cut(self) -> None:
        """Close all connections, and new ones as soon as they are made, until `mend`."""
        with self._lock:
            self._cut = True
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def mend(self) -> None:
        with self._lock:
            self._cut = False

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._cut:
                    client.close()
                    continue
                self._connections.append(_Connection(client, socket.create_connection(self._target)))


class _Connection:
    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.deaf = False
        self._client, self._broker = client, broker
        for pump in (self._ask, self._answer):
            threading.Thread(target=pump, daemon=True).start()

    def close(self) -> None:
        for end in (self._client, self._broker):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(_CHUNK_BYTES):
                self._broker.sendall(data)
        self.close()

    def _answer(self) -> None:
        with suppress(OSError):
            while data := self._broker.recv(_CHUNK_BYTES):
                if not self.deaf:
                    self._client.sendall(data)
        self.close()
