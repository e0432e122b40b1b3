"""Keeps what a Python worker has imported out of the garbage collector's sight.

Spark's workers collect after every task, and look through the fifty thousand objects of PySpark, Arrow and ourselves each
time: 20 to 30 ms, in each of the four workers that a micro-batch passes through. What is there when a worker first comes
here is collected once and then frozen; later collections look at what came after it.

Only for the processes that Spark starts: never called in a driver's own Python.
"""

from __future__ import annotations

import gc

_frozen = False


def freeze_once() -> None:
    global _frozen  # noqa: PLW0603 (one flag per process is what this is about)
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
