"""Random histories of a queue, with crashes, against a reference that keeps every message in a list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cursors.queue.harness import TIGHT, TP, Bench, message, opened, run
from trunkline.cursors.queue import Delivery, QueueLimits, QueueSettings
from trunkline.cursors.queue.cursor import REJECTED

LEASE_MS = 500


class Model:
    """Every message by offset: ready, leased or gone; how often it was delivered; when its lease ends."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.ready: set[int] = set()
        self.leased: dict[int, float | None] = {}
        self.delivered: dict[int, int] = {}

    def put(self, values: Sequence[bytes]) -> None:
        self.ready |= set(range(len(self.values), len(self.values) + len(values)))
        self.values += values

    def take(self, count: int, until_ms: float | None) -> list[tuple[int, bytes, bool, int]]:
        found = []
        for offset in sorted(self.ready)[:count]:
            before = self.delivered.get(offset, 0)
            self.ready.discard(offset)
            self.leased[offset] = until_ms
            self.delivered[offset] = before + 1
            found.append((offset, self.values[offset], before > 0, before + 1))
        return found

    def back(self, offset: int) -> None:
        del self.leased[offset]
        self.ready.add(offset)


def seen(deliveries: Sequence[Delivery]) -> list[tuple[int, bytes, bool, int]]:
    return [(d.offset, d.message.value, d.redelivered, d.delivery_count) for d in deliveries]


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "put",
                "put",
                "produce",
                "take",
                "take",
                "take",
                "lease",
                "ack",
                "ack",
                "ack",
                "release",
                "unseen",
                "reject",
                "late",
                "purge",
                "crash",
                "restart",
                "trim",
            ]
        ),
        st.integers(0, 12),
        st.integers(0, 2**16),
    ),
    max_size=40,
)


def chosen(model: Model, bits: int) -> list[int]:
    return [offset for place, offset in enumerate(sorted(model.leased)) if bits >> (place % 16) & 1]


async def live(steps: Sequence[Step], limits: QueueLimits | None) -> None:
    model = Model()
    async with opened(DEAD_LETTERS, limits) as bench:
        for name, count, bits in steps:
            await step(bench, model, name, count, bits)
            stats = bench.queue.stats()
            assert (stats.ready, stats.unacked) == (len(model.ready), len(model.leased)), name
        for offset in list(model.leased):
            model.back(offset)
        bench.turn()
        await bench.crash()
        expected = model.take(len(model.ready), None)
        assert seen(await bench.take(len(model.values) + 1)) == expected


async def step(bench: Bench, model: Model, name: str, count: int, bits: int) -> None:
    queue = bench.queue
    fresh = [b"%d" % number for number in range(len(model.values), len(model.values) + count)]
    if name == "put" and count:
        model.put(fresh)
        await queue.put([message(value) for value in fresh])
    elif name == "produce" and count:
        model.put(fresh)
        await bench.produce(*fresh)
        bench.turn()
    elif name == "take":
        assert seen(await bench.take(count)) == model.take(count, None)
    elif name == "lease":
        until_ms = bench.clock.monotonic_ms() + LEASE_MS
        assert seen(await bench.take(count, lease_ms=LEASE_MS)) == model.take(count, until_ms)
    elif name == "ack":
        ended = chosen(model, bits)
        for offset in ended:
            del model.leased[offset]
        if bits & 1:
            ended.reverse()
        assert queue.acknowledge(ended) == len(ended)
    elif name in ("release", "unseen"):
        back = chosen(model, bits)
        assert queue.release(back, redelivered=name == "release") == len(back)
        for offset in back:
            model.back(offset)
            if name == "unseen":
                model.delivered[offset] -= 1
    elif name == "reject":
        ended = chosen(model, bits)
        before = len(bench.dead)
        assert queue.reject(ended) == len(ended)
        assert [(d.offset, reason) for d, reason in bench.dead[before:]] == [(o, REJECTED) for o in ended]
        for offset in ended:
            del model.leased[offset]
    elif name == "late":
        bench.clock.advance(count * 100)
        bench.runtime.expire()
        now_ms = bench.clock.monotonic_ms()
        for offset, until in list(model.leased.items()):
            if until is not None and until <= now_ms:
                model.back(offset)
    elif name == "purge" and bits & 1:
        assert await queue.purge() == len(model.ready)
        model.ready.clear()
    elif name in ("crash", "restart"):
        bench.turn()
        await (bench.crash() if name == "crash" else bench.restart())
        for offset in list(model.leased):
            model.back(offset)
    elif name == "trim" and bits & 3 == 0:
        bounds = bench.store.bounds(TP)
        start = max(bounds.log_start_offset, bounds.high_watermark - count)
        await bench.store.trim(TP, start)
        bench.turn()
        model.ready = {offset for offset in model.ready if offset >= start}
        model.leased = {offset: end_ms for offset, end_ms in model.leased.items() if offset >= start}


DEAD_LETTERS = QueueSettings(dead_letter=("dead", None))


@pytest.mark.parametrize("limits", [None, TIGHT], ids=["roomy", "tight"])
def test_any_history_gives_what_the_reference_gives(limits: QueueLimits | None) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        run(live(steps, limits))

    check()
