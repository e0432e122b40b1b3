"""The short form of the crash test for the Java client's transactions."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.java_campaign import JavaCampaign
from tests.crash.kills import Kills

pytestmark = [pytest.mark.crash, pytest.mark.java, pytest.mark.timeout(300)]

CYCLES = 8


def test_transactions_of_the_java_client_survive_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    kills = Kills(tmp_path, seed)
    JavaCampaign(kills)
    summary = kills.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{kills.server.log_tail()}"
    assert min(summary.checked.values()) > 0, summary
    assert "Traceback" not in kills.server.log.read_text(errors="replace"), kills.server.log_tail()
