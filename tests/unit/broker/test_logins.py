"""Logins: what is let in, what it costs, what is kept of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scramp import ScramClient

from tests.stores import as_chosen
from trunkline.broker import logins as module
from trunkline.broker.audit import LOGIN, LOGIN_REFUSED
from trunkline.broker.core import BrokerCore
from trunkline.broker.logins import LoginRefused
from trunkline.broker.state.topology import settled
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability
from trunkline.security.scram import ScramKeys
from trunkline.security.users import User, hash_password

HERE = "127.0.0.1"
ELSEWHERE = "192.0.2.9"


@asynccontextmanager
async def broker(data: Path, *, messaging: bool = False) -> AsyncIterator[BrokerCore]:
    core = BrokerCore(as_chosen(EmbeddedStore(data)), with_messaging=messaging)
    await core.start()
    try:
        yield core
    finally:
        await core.close()


async def refused(core: BrokerCore, user: str, password: bytes, host: str = HERE) -> str:
    with pytest.raises(LoginRefused) as caught:
        await core.logins.by_password(user, password, host, "test")
    return str(caught.value)


@pytest.mark.parametrize("messaging", [True, False])
def test_every_broker_knows_its_users(tmp_path: Path, messaging: bool) -> None:
    async def work() -> None:
        async with broker(tmp_path, messaging=messaging) as core:
            guest = await core.logins.by_password("guest", b"guest", HERE, "test")
            assert (guest.name, guest.host, guest.administrator) == ("guest", HERE, True)
            await refused(core, "guest", b"guest", ELSEWHERE)
            await refused(core, "guest", b"wrong")
            await refused(core, "nobody", b"guest")
            core.users.put_user(User("no-password"))
            await refused(core, "no-password", b"")
            core.users.remove_user("guest")
            await settled(core.users.put_user(User("alice", tags=("management",)).with_password(b"a")))
        async with broker(tmp_path, messaging=not messaging) as core:
            await refused(core, "guest", b"guest")
            alice = await core.logins.by_password("alice", b"a", ELSEWHERE, "test")
            assert alice.tags == ("management",)
            seen = [(e["kind"], e["user"]) for e in (await core.audit.read(None, 100)).events]
            assert (LOGIN_REFUSED, "guest") in seen

    asyncio.run(work())


def test_a_hash_of_rabbitmq_is_replaced_at_the_next_login(tmp_path: Path) -> None:
    async def work() -> None:
        old = {"password_hash": hash_password("p"), "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
        async with broker(tmp_path) as core:
            # A record as brokers wrote it before there were keys.
            topology = StateTopic(core.store, core.clock, TOPOLOGY_TOPIC)
            await topology.put([state_record(b"user:old", json.dumps(old).encode())], Durability.DISK)
        async with broker(tmp_path) as core:
            assert core.accounts.users["old"].imported
            await refused(core, "old", b"wrong")
            assert core.accounts.users["old"].imported
            await core.logins.by_password("old", b"p", HERE, "test")
            assert not core.accounts.users["old"].imported
        async with broker(tmp_path) as core:
            assert not core.accounts.users["old"].imported
            assert core.accounts.users["old"].password_hash == ""
            await core.logins.by_password("old", b"p", HERE, "test")
            await refused(core, "old", b"wrong")

    asyncio.run(work())


def test_who_comes_back_is_known_until_the_user_changes(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker(tmp_path) as core:
            assert core.logins.remembered("guest", b"guest", HERE, "test") is None
            await core.logins.by_password("guest", b"guest", HERE, "test")
            assert core.logins.remembered("guest", b"guest", HERE, "test") is not None
            assert core.logins.remembered("guest", b"guess", HERE, "test") is None
            assert core.logins.remembered("guest", b"guest", ELSEWHERE, "test") is None
            await core.logins.by_password("guest", b"guest", HERE, "test")
            core.users.put_user(User("guest").with_password(b"other"))
            assert core.logins.remembered("guest", b"guest", HERE, "test") is None
            await refused(core, "guest", b"guest")
            kinds = [e["kind"] for e in (await core.audit.read(None, 100)).events]
            assert LOGIN in kinds

    asyncio.run(work())


def test_clients_that_come_at_once_share_one_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    compare = module._compare

    def counted(user: User, nobody: User, password: bytes) -> tuple[bool, User | None]:
        nonlocal checks
        checks += 1
        return compare(user, nobody, password)

    monkeypatch.setattr(module, "_compare", counted)

    async def work() -> None:
        async with broker(tmp_path) as core:
            await asyncio.gather(*(core.logins.by_password("guest", b"guest", HERE, "test") for _ in range(500)))
            assert checks == 1
            one = asyncio.ensure_future(core.logins.by_password("guest", b"wrong", HERE, "test"))
            other = asyncio.ensure_future(core.logins.by_password("guest", b"wrong", HERE, "test"))
            await asyncio.sleep(0)
            one.cancel()
            with pytest.raises(LoginRefused):
                await other
            assert checks == 2

    asyncio.run(work())


def test_an_unknown_user_is_checked_like_a_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[int] = []
    derive = ScramKeys.accepts

    def counted(keys: ScramKeys, password: bytes) -> bool:
        derived.append(keys.iterations)
        return derive(keys, password)

    monkeypatch.setattr(ScramKeys, "accepts", counted)

    async def work() -> None:
        async with broker(tmp_path) as core:
            core.users.put_user(User("old", hash_password("p")))
            core.users.put_user(User("no-password"))
            for user in ("guest", "nobody", "old", "no-password"):
                before = len(derived)
                await refused(core, user, b"wrong")
                assert derived[before:] == [4_096], user

    asyncio.run(work())


def test_wrong_passwords_in_bulk_are_turned_away_and_others_are_let_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker(tmp_path) as core:
            core.users.put_user(User("alice").with_password(b"a"))
            attack = [
                asyncio.ensure_future(core.logins.by_password("guest", f"{number}".encode(), HERE, "test"))
                for number in range(1_000)
            ]
            await asyncio.sleep(0)
            started = time.monotonic()
            await core.logins.by_password("alice", b"a", HERE, "test")
            await core.logins.by_password("guest", b"guest", "127.0.0.2", "test")
            assert time.monotonic() - started < 5
            done, waiting = await asyncio.wait(attack, timeout=0)
            assert len(waiting) < 20, "all but a few are told at once"
            assert all(isinstance(task.exception(), LoginRefused) for task in done)
            for task in waiting:
                task.cancel()

    asyncio.run(work())


def test_many_clients_of_one_user_may_log_in_by_scram_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker(tmp_path) as core:
            exchanges = []
            for _ in range(50):
                exchange = core.logins.exchange("SCRAM-SHA-256", HERE, "test")
                client = ScramClient(["SCRAM-SHA-256"], "guest", "guest")
                assert exchange is not None
                async with asyncio.timeout(1):
                    client.set_server_first((await exchange.step(client.get_client_first().encode())).answer.decode())
                exchanges.append((exchange, client))
            for exchange, client in exchanges:
                step = await exchange.step(client.get_client_final().encode())
                client.set_server_final(step.answer.decode())
                assert step.principal is not None

    asyncio.run(work())


def test_wrong_passwords_by_scram_are_slowed_down(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker(tmp_path) as core:
            for _ in range(5):
                exchange = core.logins.exchange("SCRAM-SHA-256", HERE, "test")
                client = ScramClient(["SCRAM-SHA-256"], "guest", "wrong")
                assert exchange is not None
                client.set_server_first((await exchange.step(client.get_client_first().encode())).answer.decode())
                with pytest.raises(LoginRefused):
                    await exchange.step(client.get_client_final().encode())
            again = core.logins.exchange("SCRAM-SHA-256", HERE, "test")
            assert again is not None
            first = ScramClient(["SCRAM-SHA-256"], "guest", "wrong").get_client_first().encode()
            await again.step(first)
            another = core.logins.exchange("SCRAM-SHA-256", HERE, "test")
            assert another is not None
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await another.step(first)

    asyncio.run(work())
