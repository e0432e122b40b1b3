"""A network that can be cut: connections go through here, and all of them end when it is."""

from __future__ import annotations

import asyncio
import contextlib


class Proxy:
    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.cut = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.close()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
        self._writers.discard(writer)

    def sever(self) -> None:
        """End every connection, in the middle of whatever it says, and take no new one."""
        self.cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        self.cut = False

    async def close(self) -> None:
        self.sever()
        if self._server is not None:
            self._server.close()
