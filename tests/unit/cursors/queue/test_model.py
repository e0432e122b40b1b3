"""Random histories of a queue, with crashes, against a reference that keeps every message in a list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cursors.queue.harness import TIGHT, TP, Bench, message, opened, run
from trunkline.cursors.queue import Delivery, QueueLimits, QueueSettings
from trunkline.cursors.queue.owner import REJECTED

LEASE_MS = 500


class Model:
    """Every message by offset: ready, leased or gone; how often it was delivered; when its lease ends."""

    def __init__(self, *, by_priority: bool) -> None:
        self.by_priority = by_priority
        self.values: list[bytes] = []
        self.priorities: list[int] = []
        self.ready: set[int] = set()
        self.leased: dict[int, float | None] = {}
        self.delivered: dict[int, int] = {}

    def put(self, values: Sequence[bytes], priorities: Sequence[int]) -> None:
        self.ready |= set(range(len(self.values), len(self.values) + len(values)))
        self.values += values
        self.priorities += priorities if self.by_priority else [0] * len(values)

    def take(self, count: int, until_ms: float | None) -> list[tuple[int, bytes, bool, int]]:
        found = []
        for offset in sorted(self.ready, key=lambda offset: (-self.priorities[offset], offset))[:count]:
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


async def live(steps: Sequence[Step], settings: QueueSettings, limits: QueueLimits | None) -> None:
    model = Model(by_priority=settings.max_priority is not None)
    async with opened(settings, limits) as bench:
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
        priorities = [(bits >> number) % 4 for number in range(count)]
        model.put(fresh, priorities)
        await queue.put([message(value, priority=rank) for value, rank in zip(fresh, priorities, strict=True)])
    elif name == "produce" and count:
        model.put(fresh, [0] * count)
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
PRIORITIES = QueueSettings(dead_letter=("dead", None), max_priority=3)
KEYS = QueueSettings(dead_letter=("dead", None), order_by_key=True)  # which the model's records do not have


@pytest.mark.parametrize(
    ("queue_settings", "limits"),
    [(DEAD_LETTERS, None), (DEAD_LETTERS, TIGHT), (PRIORITIES, None), (KEYS, TIGHT)],
    ids=["roomy", "tight", "priorities", "keys"],
)
def test_any_history_gives_what_the_reference_gives(queue_settings: QueueSettings, limits: QueueLimits | None) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        run(live(steps, queue_settings, limits))

    check()
