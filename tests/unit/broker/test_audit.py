"""The audit trail: what is written, what a flood leaves of it, and what a restart finds."""

from __future__ import annotations

import asyncio
from pathlib import Path

from trunkline.broker import audit
from trunkline.broker.audit import Audit
from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.names import AUDIT_TOPIC
from trunkline.security.principal import Principal

ALICE = Principal("alice", "10.0.0.7", ("administrator",))


def test_events_are_records_that_a_restart_finds(tmp_path: Path) -> None:
    async def write() -> None:
        store = EmbeddedStore(tmp_path)
        await store.start()
        trail = Audit(store, ManualClock())
        await trail.start()
        assert await trail.read(None, 10) == ([], 0)
        trail.add(audit.LOGIN, ALICE, protocol="amqp", text="PLAIN")
        trail.add(audit.CHANGE, ALICE, protocol="kafka", target="topic orders", text="create")
        await trail.close()
        await store.close()

    async def read() -> None:
        store = EmbeddedStore(tmp_path)
        await store.start()
        trail = Audit(store, ManualClock(), {"retention.ms": "1234567"})
        await trail.start()
        info = store.topic(AUDIT_TOPIC)
        assert info is not None
        assert info.config.overrides["retention.ms"] == "1234567", "the settings are those of today"
        events, following = await trail.read(0, 10)
        assert [(event["kind"], event["user"], event["host"], event["protocol"]) for event in events] == [
            ("login", "alice", "10.0.0.7", "amqp"),
            ("change", "alice", "10.0.0.7", "kafka"),
        ]
        assert events[1]["target"] == "topic orders"
        assert following == 2
        assert (await trail.read(None, 1)).events == events[1:]
        assert (await trail.read(0, 1)) == (events[:1], 1)
        await store.close()

    asyncio.run(write())
    asyncio.run(read())


def test_a_flood_is_summed_up_by_address(tmp_path: Path) -> None:
    async def test() -> None:
        store = EmbeddedStore(tmp_path)
        await store.start()
        trail = Audit(store, ManualClock())
        await trail.start()
        for number in range(10_000):
            trail.add(audit.LOGIN_REFUSED, Principal("mallory", f"10.0.{number % 1000}.1"))
        trail.add(audit.CHANGE, ALICE, target="topic orders")
        await trail.close()
        events, _ = await trail.read(0, 1_000)
        refused = [event for event in events if event["kind"] == audit.LOGIN_REFUSED]
        assert len(refused) < 150
        assert sum(int(str(event.get("count", 1))) for event in refused) == 10_000, "each one counts"
        assert {event["host"] for event in refused if event["host"] == audit.ELSEWHERE}
        assert [event["target"] for event in events if event["kind"] == audit.CHANGE] == ["topic orders"]
        await store.close()

    asyncio.run(test())


def test_an_allowance_fills_again(tmp_path: Path) -> None:
    async def test() -> None:
        store, clock = EmbeddedStore(tmp_path), ManualClock()
        await store.start()
        trail = Audit(store, clock)
        await trail.start()
        for _ in range(200):
            trail.add(audit.LOGIN, ALICE)
        clock.advance(5_000)
        for _ in range(100):
            trail.add(audit.LOGIN, ALICE)
        await trail.close()
        events, _ = await trail.read(0, 1_000)
        assert [event.get("count") for event in events] == [None] * 200 + [100]
        await store.close()

    asyncio.run(test())
