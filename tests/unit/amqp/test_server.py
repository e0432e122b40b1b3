"""The listener's account of what clients have not taken yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.unit.amqp.harness import run, until
from trunkline.broker.core import BrokerCore
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.protocols.amqp.codec import PROTOCOL_HEADER
from trunkline.protocols.amqp.server import AmqpServer
from trunkline.protocols.amqp.session import Session
from trunkline.protocols.listener.connection import ServedConnection

PIECE = b"x" * 1_000_000


@asynccontextmanager
async def connected(
    directory: Path,
) -> AsyncIterator[tuple[AmqpServer, ServedConnection[Session], asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client that has begun to talk and reads nothing unless the test does, and the server's end of it."""
    broker = BrokerCore(EmbeddedStore(directory))
    await broker.start()
    server = AmqpServer(broker)
    host, port = await server.listen("127.0.0.1", 0, "amqp")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(PROTOCOL_HEADER)
    await reader.readexactly(7)  # the header of connection.start: the session is there
    (connection,) = server.connections
    try:
        yield server, connection, reader, writer
    finally:
        writer.transport.abort()
        await server.close()
        await broker.close()


def fill(server: AmqpServer, connection: ServedConnection[Session]) -> None:
    """Write until the client's socket and the transport's buffer are full."""
    while not server.broker.counters.unsent_bytes:
        connection.write(PIECE)


def test_what_is_written_while_a_client_does_not_read_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (server, connection, reader, _):
            fill(server, connection)
            before = server.broker.counters.unsent_bytes
            connection.write(PIECE)
            connection.write(PIECE)
            assert server.broker.counters.unsent_bytes == before + 2 * len(PIECE)
            while server.broker.counters.unsent_bytes:
                await reader.read(1 << 20)

    run(main())


def test_a_client_that_leaves_takes_its_unsent_bytes_along(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (server, connection, _, writer):
            fill(server, connection)
            connection.write(PIECE)
            writer.transport.abort()
            await until(lambda: not server.connections)
            assert server.broker.counters.unsent_bytes == 0

    run(main())
