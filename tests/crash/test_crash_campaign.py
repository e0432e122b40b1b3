"""The short form of the crash test; `make crash` is the long one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.kafka_campaign import KafkaCampaign
from tests.crash.kills import Kills

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

CYCLES = 10


def test_every_promise_survives_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    kills = Kills(tmp_path, seed)
    KafkaCampaign(kills)
    summary = kills.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{kills.server.log_tail()}"
    assert summary.kills >= CYCLES
    assert min(summary.checked.values()) > 0, summary
    assert "Traceback" not in kills.server.log.read_text(errors="replace"), kills.server.log_tail()
