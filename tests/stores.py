"""The store that tests run over, as `--store` names it.

`memory` and `embedded` are what tests choose for themselves; `late` puts a LateLog before it. What it draws comes from one
seed, which the run shows: `LATE_SEED=... pytest --store late` draws the same again.
"""

from __future__ import annotations

import os
from random import Random, SystemRandom

from tests.late_log import LateLog
from trunkline.log.store import LogStore

STORES = ("memory", "embedded", "late")
STORE_VARIABLE = "LATE_STORE"  # set for the processes that a run starts, workers and servers
SEED_VARIABLE = "LATE_SEED"


def choose(store: str | None) -> None:
    """For this run and every process that it starts."""
    os.environ.setdefault(SEED_VARIABLE, str(SystemRandom().randrange(1 << 32)))
    if store == "late":
        os.environ[STORE_VARIABLE] = "1"


def is_late() -> bool:
    return STORE_VARIABLE in os.environ


def seed() -> int:
    return int(os.environ.get(SEED_VARIABLE, "0"))


def late(below: LogStore, *, faults: float = 0.0) -> LateLog:
    return LateLog(below, Random(seed()), faults=faults)


def below(store: LogStore) -> LogStore:
    """The store itself, without a late one before it."""
    return store.below if isinstance(store, LateLog) else store


def as_chosen(store: LogStore) -> LogStore:
    """The store, or a late one before it."""
    return late(store) if is_late() else store
