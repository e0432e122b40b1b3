"""The sides of a measurement, a publisher and a consumer for instance, each in a process of its own, started together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError

from trunkline.bench.librdkafka import LoadError
from trunkline.client.errors import ClientError

TIMEOUT_S = 180.0

Side = Callable[[Barrier], tuple[float, float, list[float]]]  # begun, ended, samples


def run_sides(*sides: Side, timeout_s: float = TIMEOUT_S) -> list[tuple[float, float, list[float]]]:
    """Each side in a process of its own, started together. The monotonic clock is one for all of them."""
    forks = multiprocessing.get_context("fork")
    barrier = forks.Barrier(len(sides))
    running = []
    for side in sides:
        ours, theirs = forks.Pipe(duplex=False)
        process = forks.Process(target=_run_side, args=(side, barrier, theirs))
        process.start()
        theirs.close()
        running.append((process, ours))
    results: list[tuple[float, float, list[float]]] = []
    errors: list[str] = []
    for process, ours in running:
        try:
            result = ours.recv() if ours.poll(timeout_s) else "it did not end"
        except EOFError:
            result = "it ended without a result"
        if isinstance(result, str):
            errors.append(result)
            barrier.abort()
        else:
            results.append(result)
        process.join(1.0)
        if process.is_alive():
            process.kill()
            process.join()
    if errors:
        raise LoadError("; ".join(errors))
    return results


def _run_side(side: Side, barrier: Barrier, pipe: Connection) -> None:
    try:
        pipe.send(side(barrier))
    except (LoadError, ClientError, OSError, BrokenBarrierError) as error:
        barrier.abort()
        pipe.send(f"{type(error).__name__}: {error}")
