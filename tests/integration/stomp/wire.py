"""A STOMP client of few words: frames over a socket, as the test writes them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

from trunkline.protocols.stomp.codec import V1_0, V1_1, V1_2, Frame, Parser, headers_of

HOST = "127.0.0.1"
PATIENCE_S = 20.0
VERSIONS = {"1.0": V1_0, "1.1": V1_1, "1.2": V1_2}


class Heard(NamedTuple):
    command: str
    headers: dict[str, str]
    body: bytes


class Wire:
    """`say` sends bytes as they are, `send` a frame; `hear` waits for the next frame. Heart-beats are counted."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        self._parser = Parser(1_000, 1 << 20, 1 << 28)
        self._heard: list[Heard] = []
        self.version = V1_2
        self.bytes_read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, command: str, body: bytes = b"", /, **headers: object) -> None:
        """`_` in a name stands for `-`."""
        lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
        self.say(f"{command}\n{lines}\n".encode() + body + b"\0")

    def connect(self, version: str = "1.2", **headers: object) -> Heard:
        self.version = V1_0  # what answers a CONNECT is not escaped
        asked = {"login": "guest", "passcode": "guest", "host": "/", **headers}
        self.send("CONNECT", accept_version=version, **asked)
        answer = self.hear()
        self.version = VERSIONS.get(version.rpartition(",")[2], V1_2)
        return answer

    def hear(self, patience_s: float = PATIENCE_S) -> Heard:
        """The next frame; ConnectionError if there will be none, TimeoutError if there is none yet."""
        deadline = time.monotonic() + patience_s
        while not self._heard:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._take(self._socket.recv(1 << 16))
        return self._heard.pop(0)

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionError("the server has closed the connection")
        self.bytes_read += len(data)
        for event in self._parser.feed(data):
            assert isinstance(event, Frame), event
            self._heard.append(Heard(event.command.decode(), headers_of(event.lines, self.version), event.body))

    def expect(self, command: str) -> Heard:
        heard = self.hear()
        assert heard.command == command, heard
        return heard

    def messages(self, count: int) -> list[Heard]:
        return [self.expect("MESSAGE") for _ in range(count)]

    def receipts(self, wanted: Iterable[str]) -> None:
        """Wait for all of these, in whatever order, and pass over messages."""
        missing = set(wanted)
        while missing:
            heard = self.hear()
            assert heard.command in {"RECEIPT", "MESSAGE"}, heard
            missing.discard(heard.headers.get("receipt-id", ""))

    def ask(self, command: str, body: bytes = b"", /, **headers: object) -> None:
        """Send a frame and wait for its receipt."""
        self.send(command, body, receipt="asked", **headers)
        assert self.expect("RECEIPT").headers["receipt-id"] == "asked"

    def error(self) -> Heard:
        """The error that ends the connection, and its end."""
        heard = self.expect("ERROR")
        self.assert_closed()
        return heard

    def assert_closed(self) -> None:
        try:
            heard = self.hear()
        except ConnectionError:
            return
        raise AssertionError(f"not closed, but {heard}")

    def silent(self, seconds: float = 0.2) -> bool:
        try:
            self._heard.append(self.hear(seconds))
        except TimeoutError:
            return True
        return False
