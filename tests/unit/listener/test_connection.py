"""What every protocol's connections promise, whatever the protocol, in the clear and over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from asyncio import to_thread

import pytest

from tests.unit.listener.edge import (
    BYE,
    FAREWELL,
    PATIENCE_S,
    TalkServer,
    broker_with,
    dial,
    greeted,
    read_all,
    until,
    with_server,
)
from trunkline.protocols.listener import accepting
from trunkline.protocols.listener import connection as edge

in_the_clear_and_over_tls = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


@in_the_clear_and_over_tls
def test_the_last_words_arrive_and_the_end_is_clean_though_the_client_is_still_sending(tls: bool) -> None:
    def talk(port: int) -> bytes:
        with dial(port, tls=tls) as client:
            client.sendall(BYE + bytes(1_000_000))
            first = client.recv(1)
            client.sendall(bytes(4_000_000))  # it does not know yet that nobody listens
            return first + read_all(client)

    async def scenario(server: TalkServer) -> None:
        assert await to_thread(talk, await server.open(tls=tls)) == FAREWELL
        await until(lambda: not server.connections)
        assert len(server.talks[0].got) < 4_000_000, "what came behind was not heard"

    with_server(scenario)


@in_the_clear_and_over_tls
def test_a_client_that_never_hangs_up_is_cut_off(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "_LINGER_S", 0.05)
    monkeypatch.setattr(edge, "_TLS_LINGER_S", 0.05)
    monkeypatch.setattr(accepting, "_TLS_SHUTDOWN_S", 0.05)

    async def scenario(server: TalkServer) -> None:
        client = await to_thread(dial, await server.open(tls=tls), tls=tls)
        with client:
            await to_thread(client.sendall, BYE)
            await until(lambda: bool(server.talks) and server.talks[0].events == ["lost"])
            await until(lambda: not server.connections)
            assert await to_thread(client.recv, 1) == FAREWELL[:1]

    with_server(scenario)


def test_who_takes_nothing_of_what_is_much_is_cut_off_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "_LINGER_S", 10 * PATIENCE_S)

    async def scenario(server: TalkServer) -> None:
        with await to_thread(dial, await server.open()) as client:
            wire = (await greeted(client, server)).wire
            while not server.broker.counters.unsent_bytes:
                wire.write(bytes(1_000_000))
            wire.close()
            await until(lambda: not server.connections)

    with_server(scenario)


def test_who_has_not_taken_everything_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "_LINGER_S", 0.05)
    monkeypatch.setattr(edge, "_MAX_LINGERS", 400)

    async def scenario(server: TalkServer) -> None:
        server.high_water_bytes = 100_000_000
        client = await to_thread(dial, await server.open())
        with client:
            await greeted(client, server)
            wire, size = server.talks[0].wire, 20_000_000
            wire.write(bytes(size))
            wire.close()
            ticks = server.ticks
            await until(lambda: server.ticks > ticks + 20)  # 0.2 s: longer than others have
            assert len(await to_thread(read_all, client)) == size

    with_server(scenario)


def test_who_takes_nothing_is_cut_off_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "_LINGER_S", 0.05)

    async def scenario(server: TalkServer) -> None:
        server.high_water_bytes = 100_000_000
        with await to_thread(dial, await server.open()) as client:
            await greeted(client, server)
            server.talks[0].wire.write(bytes(20_000_000))
            server.talks[0].wire.close()
            await until(lambda: not server.connections)

    with_server(scenario)


@in_the_clear_and_over_tls
def test_what_a_client_does_not_take_is_counted_until_it_does(tls: bool) -> None:
    async def scenario(server: TalkServer) -> None:
        broker = server.broker
        client = await to_thread(dial, await server.open(tls=tls), tls=tls)
        with client:
            await greeted(client, server)
            wire, sent = server.talks[0].wire, 0
            while not broker.counters.unsent_bytes:
                wire.write(bytes(1_000_000))
                sent += 1_000_000
            before = broker.counters.unsent_bytes
            wire.write(bytes(1_000_000))
            wire.write_all([bytes(500_000), bytes(500_000)])
            assert broker.counters.unsent_bytes == broker.output.held_bytes == wire.unsent_bytes()
            added = broker.counters.unsent_bytes - before
            assert 2_000_000 <= added <= 2_020_000 if tls else added == 2_000_000, "TLS counts what it makes of it"
            left = sent + 2_000_000
            while left:
                left -= len(await to_thread(client.recv, 1_000_000))
            await until(lambda: server.talks[0].events == ["pause", "resume"])
            assert broker.counters.unsent_bytes == 0

    with_server(scenario)


def test_a_client_that_resets_the_connection_takes_its_share_along() -> None:
    async def scenario(server: TalkServer) -> None:
        client = await to_thread(dial, await server.open())
        await greeted(client, server)
        while not server.broker.counters.unsent_bytes:
            server.talks[0].wire.write(bytes(1_000_000))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: not server.connections)
        assert server.broker.counters.unsent_bytes == 0
        server.talks[0].wire.write(b"nobody reads this")
        server.talks[0].wire.close()

    with_server(scenario)


def test_who_has_left_most_goes_when_all_protocols_together_have_too_much_unsent() -> None:
    async def run() -> None:
        broker = broker_with(max_unsent_bytes=10_000_000)
        async with asyncio.timeout(3 * PATIENCE_S):
            servers = TalkServer(broker, "a talk"), TalkServer(broker, "a chat")
            clients = [await to_thread(dial, await server.open()) for server in servers]
            try:
                small = (await greeted(clients[0], servers[0])).wire
                large = (await greeted(clients[1], servers[1])).wire
                while small.unsent_bytes() < 2_000_000:
                    small.write(bytes(500_000))
                while broker.counters.unsent_bytes <= broker.limits.max_unsent_bytes:
                    assert not small.crowded()
                    large.write(bytes(500_000))
                assert small.crowded(), "it is for sessions to push back first"
                assert not broker.output.let_go
                while not broker.output.let_go:
                    large.write(bytes(500_000))
                await until(lambda: not servers[1].connections)
                assert broker.counters.unsent_bytes == small.unsent_bytes() >= 2_000_000
                assert servers[0].connections
                assert servers[1].talks[0].events == ["pause", "lost"]
            finally:
                for client, server in zip(clients, servers, strict=True):
                    client.close()
                    await server.close()
            assert (broker.counters.unsent_bytes, broker.output.held_bytes, broker.counters.connections) == (0, 0, 0)

    asyncio.run(run())


@in_the_clear_and_over_tls
def test_what_is_large_is_read_into_a_buffer_of_its_own(tls: bool) -> None:
    async def scenario(server: TalkServer) -> None:
        client = await to_thread(dial, await server.open(tls=tls), tls=tls)
        with client:
            await greeted(client, server)
            own = bytearray(10)
            server.talks[0].wire.read_into(memoryview(own))
            await to_thread(client.sendall, b"0123456789")
            await until(lambda: len(server.talks[0].got) == 15)
            assert own == b"0123456789"
            server.talks[0].wire.read_into(None)
            await to_thread(client.sendall, b"and on")
            await until(lambda: server.talks[0].got.endswith(b"and on"))
            assert own == b"0123456789"

    with_server(scenario)


@in_the_clear_and_over_tls
def test_reading_pauses_and_goes_on(tls: bool) -> None:
    async def scenario(server: TalkServer) -> None:
        client = await to_thread(dial, await server.open(tls=tls), tls=tls)
        with client:
            await greeted(client, server)
            server.talks[0].wire.pause_reading()
            server.talks[0].wire.pause_reading()
            await to_thread(client.sendall, b"more")
            ticks = server.ticks
            await until(lambda: server.ticks > ticks + 3)
            assert server.talks[0].got == b"hello"
            server.talks[0].wire.resume_reading()
            await until(lambda: server.talks[0].got == b"hellomore")

    with_server(scenario)


def test_a_session_that_is_paused_still_closes_with_its_last_words() -> None:
    async def scenario(server: TalkServer) -> None:
        with await to_thread(dial, await server.open()) as client:
            await greeted(client, server)
            server.talks[0].wire.pause_reading()
            await to_thread(client.sendall, bytes(100_000))
            server.talks[0].shut_down()
            assert await to_thread(read_all, client) == FAREWELL

    with_server(scenario)


def test_a_session_that_fails_ends_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: TalkServer) -> None:
        port = await server.open()
        with await to_thread(dial, port) as bad, await to_thread(dial, port) as good:
            (await greeted(bad, server)).fails = True
            await to_thread(bad.sendall, b"again")
            with contextlib.suppress(ConnectionResetError):
                assert await to_thread(bad.recv, 1) == b""
            await until(lambda: len(server.connections) == 1)
            await to_thread(good.sendall, BYE)
            assert await to_thread(read_all, good) == FAREWELL
        assert "closing a talk: its session failed" in caplog.text
        assert "on purpose" in caplog.text

    with_server(scenario)


def test_who_holds_most_input_goes_in_the_words_of_its_protocol() -> None:
    async def scenario(server: TalkServer) -> None:
        port = await server.open()
        with await to_thread(dial, port) as first, await to_thread(dial, port) as second:
            for client in (first, second):
                (await greeted(client, server)).holds = True
            await to_thread(first.sendall, bytes(600_000))
            await until(lambda: server.broker.input.held_bytes > 600_000)
            await to_thread(second.sendall, bytes(500_000))
            assert await to_thread(read_all, first) == b""
            first.close()
            await until(lambda: len(server.connections) == 1)
            assert sorted(talk.events for talk in server.talks) == [[], ["out of input", "lost"]]

    with_server(scenario, max_input_bytes=1_000_000)


@in_the_clear_and_over_tls
def test_shutting_down_tells_every_client_and_waits_for_none_that_is_gone(tls: bool) -> None:
    async def scenario(server: TalkServer) -> None:
        port = await server.open(tls=tls)
        clients = [await to_thread(dial, port, tls=tls) for _ in range(20)]
        await until(lambda: len(server.connections) == 20)
        clients.pop().close()
        reading = [asyncio.create_task(to_thread(_read_and_hang_up, client)) for client in clients]
        await server.close()
        assert not server.connections
        assert await asyncio.gather(*reading) == [FAREWELL] * 19

    with_server(scenario)


def _read_and_hang_up(client: socket.socket) -> bytes:
    with client:
        return read_all(client)


def test_shutting_down_ends_though_a_client_does_not_react(monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline.protocols.listener import server as serving

    monkeypatch.setattr(serving, "_CLOSE_S", 0.1)

    async def scenario(server: TalkServer) -> None:
        with await to_thread(dial, await server.open()) as client:
            await greeted(client, server)
            await server.close()
            assert not server.connections

    with_server(scenario)


def test_connections_above_the_limit_are_refused_until_one_goes() -> None:
    async def scenario(server: TalkServer) -> None:
        port = await server.open()
        first = await to_thread(dial, port)
        with await to_thread(dial, port):
            await until(lambda: len(server.connections) == 2)
            with await to_thread(dial, port) as third, contextlib.suppress(ConnectionResetError):
                assert await to_thread(third.recv, 1) == b""
            assert server.refused == 1
            first.close()
            await until(lambda: len(server.connections) == 1)
            with await to_thread(dial, port) as fourth:
                await to_thread(fourth.sendall, BYE)
                assert await to_thread(read_all, fourth) == FAREWELL

    with_server(scenario, max_connections=2)


def test_a_storm_of_connections_leaves_nothing_behind() -> None:
    def storm(port: int) -> None:
        for number in range(300):
            with contextlib.suppress(OSError), dial(port) as client:
                if number % 3 == 0:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif number % 3 == 1:
                    client.sendall(BYE)

    async def scenario(server: TalkServer) -> None:
        port = await server.open()
        await asyncio.gather(*(to_thread(storm, port) for _ in range(3)))
        await until(lambda: not server.connections and not server.arriving)

    with_server(scenario, max_connections=50)


def test_a_handshake_that_fails_is_counted_out_and_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: TalkServer) -> None:
        port = await server.open(tls=True)
        with await to_thread(dial, port) as client:
            await to_thread(client.sendall, b"this is no TLS" * 10)
            with contextlib.suppress(ConnectionResetError):
                await to_thread(read_all, client)
        await until(lambda: server.broker.counters.connections == 0)
        assert (server.arriving, server.talks) == (0, [])
        assert "a TLS handshake failed (talk)" in caplog.text

    with_server(scenario)
