"""What a queue costs, for the record. Not a test: run it by hand on a quiet machine.

    python -m tests.unit.cursors.queue.queue_bench [depth]

First the processor time per message of put, acquire and acknowledge, in batches; then a queue of `depth` messages (ten
million if not said): filling it, opening it after a restart, draining it, and how large the process was at most.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time

from tests.unit.cursors.queue.harness import LoopTurn, Owner
from trunkline.clock import SystemClock
from trunkline.cursors.queue import Message, QueueCursor, QueueRuntime, QueueSettings, restore_queues
from trunkline.log.embedded.store import EmbeddedStore

BODY = b"x" * 100
ROUNDS = 5


async def open_queue(directory: str) -> tuple[EmbeddedStore, QueueRuntime, QueueCursor]:
    store = EmbeddedStore(directory)
    await store.start()
    runtime = QueueRuntime(store, SystemClock(), LoopTurn())
    await runtime.journal.open()
    restored = await restore_queues(runtime.journal)
    info = store.topic("q") or await store.create_topic("q", 1)
    return store, runtime, QueueCursor("q", "q", info, QueueSettings(), runtime, Owner(), restored=restored.get("q"))


async def close(store: EmbeddedStore, runtime: QueueRuntime, queue: QueueCursor) -> None:
    await runtime.close()
    queue.close()
    await store.close()


async def cost_per_message(batch: int) -> str:
    """The best of several rounds, in microseconds."""
    with tempfile.TemporaryDirectory() as directory:
        store, runtime, queue = await open_queue(directory)
        messages = [Message(BODY, timestamp_ms=runtime.clock.wall_ms())] * batch
        best = [float("inf")] * 3
        turns = max(40_000 // batch, 100)
        for _ in range(ROUNDS):
            spent = [0.0] * 3
            for _ in range(turns):
                marks = [time.process_time()]
                queue.put(messages)
                marks.append(time.process_time())
                deliveries = queue.acquire(batch, consumer=queue)
                marks.append(time.process_time())
                queue.acknowledge([delivery.offset for delivery in deliveries])
                runtime.run_turn()
                marks.append(time.process_time())
                spent = [total + marks[n + 1] - marks[n] for n, total in enumerate(spent)]
                await asyncio.sleep(0)
            best = [min(old, total / turns / batch * 1e6) for old, total in zip(best, spent, strict=True)]
        await close(store, runtime, queue)
    put, acquire, acknowledge = best
    return f"{batch:>6} {put:>8.2f} {acquire:>8.2f} {acknowledge:>8.2f} {sum(best):>8.2f}"


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def deep(depth: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store, runtime, queue = await open_queue(directory)
        messages = [Message(BODY)] * 1_000
        before_mb = peak_mb()
        start = time.perf_counter()
        for number in range(depth // 1_000):
            queue.put(messages)
            if number % 50 == 0:
                await asyncio.sleep(0)
        print(
            f"fill  {depth / (time.perf_counter() - start):>12,.0f} messages/s; peak {peak_mb() - before_mb:.0f} MB more"
        )
        await close(store, runtime, queue)
        start = time.perf_counter()
        store, runtime, queue = await open_queue(directory)
        assert queue.ready == depth
        print(f"open  {(time.perf_counter() - start) * 1e3:>12,.0f} ms for {queue.ready:,} messages")
        start = time.perf_counter()
        taken = 0
        while taken < depth:
            deliveries = queue.acquire(1_000)
            if not deliveries and not await queue.load():
                break
            if deliveries:
                queue.acknowledge([delivery.offset for delivery in deliveries])
                taken += len(deliveries)
        print(
            f"drain {taken / (time.perf_counter() - start):>12,.0f} messages/s; peak {peak_mb() - before_mb:.0f} MB more"
        )
        print(f"the whole process was {peak_mb():.0f} MB at most")
        await close(store, runtime, queue)


async def main() -> None:
    depth = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    print(" batch      put  acquire  acknowledge, total (microseconds of processor per message of 100 B)")
    for batch in (1, 10, 100, 500):
        print(await cost_per_message(batch))
    await deep(depth)


if __name__ == "__main__":
    asyncio.run(main())
