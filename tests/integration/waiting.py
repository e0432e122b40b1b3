"""Waiting for a condition instead of sleeping and hoping.

Deadlines are generous, because the machine may be loaded; success is fast, because the condition is tried often.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

DEADLINE_SECONDS = 45.0
RETRY_SECONDS = 0.02


def wait_until(condition: Callable[[], Found], timeout: float = DEADLINE_SECONDS, what: str = "the condition") -> Found:
    """Call `condition` until it returns something true, and return that; fail with the last value after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last value: {found!r}")
        time.sleep(RETRY_SECONDS)
