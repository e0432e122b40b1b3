"""The short form of the crash test for the Java client's transactions."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.java_campaign import JavaCampaign

pytestmark = [pytest.mark.crash, pytest.mark.java, pytest.mark.timeout(300)]

CYCLES = 8


def test_transactions_of_the_java_client_survive_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    campaign = JavaCampaign(tmp_path, seed)
    summary = campaign.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{campaign.server.log_tail()}"
    assert min(summary.committed, summary.aborted) > 0, summary
    assert "Traceback" not in campaign.server.log.read_text(errors="replace"), campaign.server.log_tail()
