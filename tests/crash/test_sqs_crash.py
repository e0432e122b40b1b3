"""The short form of the crash test for SQS, and the ledger that judges it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.kills import Kills
from tests.crash.sqs_campaign import SqsCampaign
from tests.crash.sqs_ledger import SqsLedger

CYCLES = 6


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_sqs_promise_survives_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    kills = Kills(tmp_path, seed)
    SqsCampaign(kills)
    summary = kills.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{kills.server.log_tail()}"
    assert summary.kills > CYCLES
    assert min(summary.checked.values()) > 0, summary
    assert "Traceback" not in kills.server.log.read_text(errors="replace"), kills.server.log_tail()


def test_the_ledger_complains_of_what_is_lost_back_doubled_or_out_of_order() -> None:
    ledger = SqsLedger()
    ledger.sent(["a", "b"])
    ledger.got("a", "1")
    ledger.check_all_received()
    ledger.gone("a", 0)
    ledger.got("a", "1")
    ledger.got("g-0", "2", "g")
    ledger.got("g-0", "3", "g")
    ledger.got("g-2", "4", "g")
    assert ledger.complaints == [
        "1 messages are lost, e.g. ['b']",
        "a was received after its deletion",
        "g-0 is there twice, as 2 and as 3",
        "g-2 came before what was sent before it to its group",
    ]


def test_a_deletion_by_a_handle_of_an_earlier_broker_promises_nothing() -> None:
    ledger = SqsLedger()
    ledger.got("a", "1")
    ledger.generation += 1
    ledger.gone("a", 0)
    ledger.got("a", "1")
    assert not ledger.complaints
