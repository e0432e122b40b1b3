"""The short form of the crash test; `make crash` is the long one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.campaign import Campaign

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

CYCLES = 10


def test_every_promise_survives_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    campaign = Campaign(tmp_path, seed)
    summary = campaign.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{campaign.server.log_tail()}"
    assert summary.kills >= CYCLES
    assert summary.records > 0
    assert summary.transactions > 0
    assert "Traceback" not in campaign.server.log.read_text(errors="replace"), campaign.server.log_tail()
