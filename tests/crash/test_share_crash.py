"""The short form of the crash test for share groups, and the ledger that judges it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.kills import Kills
from tests.crash.share_campaign import ShareCampaign
from tests.crash.share_ledger import ShareLedger

CYCLES = 4


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_promise_to_a_share_group_survives_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    kills = Kills(tmp_path, seed)
    ShareCampaign(kills)
    summary = kills.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{kills.server.log_tail()}"
    assert summary.kills > CYCLES
    assert summary.checked["accepted records"] > 0, (
        summary
    )  # whether a kill makes one come again is chance in so short a run
    assert "Traceback" not in kills.server.log.read_text(errors="replace"), kills.server.log_tail()


def test_the_ledger_complains_of_what_comes_back_after_it_was_accepted() -> None:
    ledger = ShareLedger()
    ledger.was_delivered([(0, 1)], 1, "a", 0)
    ledger.was_accepted([(0, 1)], 0)
    ledger.was_delivered([(0, 1)], 2, "a", 1)
    assert ledger.complaints == ["(0, 1) was delivered again after it was accepted"]


def test_the_ledger_complains_of_a_lost_record() -> None:
    ledger = ShareLedger()
    ledger.will_be_accepted([(0, 1)])
    ledger.check_accepted([(0, 1), (0, 2)])
    assert ledger.complaints == ["1 records are lost to the group, e.g. [(0, 2)]"]


def test_the_ledger_complains_of_a_count_that_falls() -> None:
    ledger = ShareLedger()
    ledger.was_delivered([(0, 1)], 2, "a", 0)
    ledger.was_delivered([(0, 1)], 1, "a", 1)
    assert ledger.complaints == ["(0, 1) was delivered 2 times, and now 1 times"]


def test_the_ledger_complains_of_two_holders_but_not_after_a_release_or_a_crash() -> None:
    ledger = ShareLedger()
    ledger.was_delivered([(0, 1)], 1, "a", 0)
    ledger.will_be_let_go([(0, 1)])
    ledger.was_delivered([(0, 1)], 2, "b", 0)
    ledger.was_delivered([(0, 1)], 3, "a", 1)
    assert ledger.complaints == []
    ledger.was_delivered([(0, 1)], 4, "b", 1)
    assert ledger.complaints == ["(0, 1) is held by a and b"]
