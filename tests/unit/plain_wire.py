"""A session's connection without a socket, for tests to derive their clients from."""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.protocols.listener.session import Buffer


class PlainWire:
    """Notes what the session asks for."""

    def __init__(self, host: str = "127.0.0.1", listener: str = "", certificate: str = "") -> None:
        self.host = host
        self.certificate = certificate
        self.listener = listener
        self.port = 40_000
        self.local_host = "127.0.0.1"
        self.closed = False
        self.reading = True
        self.resumed = 0
        self.unsent = 0
        self.full = False
        self.into: memoryview | None = None

    def write(self, data: Buffer) -> None: ...

    def write_all(self, buffers: Sequence[Buffer]) -> None:
        self.write(b"".join(buffers))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.resumed += 1

    def read_into(self, buffer: memoryview | None) -> None:
        self.into = buffer

    def count_input(self) -> None: ...

    def unsent_bytes(self) -> int:
        return self.unsent

    def crowded(self) -> bool:
        return self.full
