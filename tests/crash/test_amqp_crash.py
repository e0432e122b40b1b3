"""The short form of the crash test for AMQP, and the ledger that judges it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.amqp_campaign import AmqpCampaign
from tests.crash.amqp_ledger import AmqpLedger
from tests.crash.kills import Kills
from tests.crash.ledger import Fate

CYCLES = 8


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_amqp_promise_survives_kill_9(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    kills = Kills(tmp_path, seed)
    AmqpCampaign(kills)
    summary = kills.run(CYCLES)
    assert not summary.complaints, f"{summary}\n{kills.server.log_tail()}"
    assert summary.kills > CYCLES
    assert min(summary.checked.values()) > 0, summary
    assert "Traceback" not in kills.server.log.read_text(errors="replace"), kills.server.log_tail()


def test_the_ledger_complains_of_a_lost_message() -> None:
    ledger = AmqpLedger()
    ledger.confirmed("q", [1, 2, 3])
    ledger.delivered("q", 1, False, 0)
    ledger.delivered("q", 3, False, 0)
    ledger.check_delivered("q")
    assert ledger.complaints == ["1 confirmed messages of q are lost, e.g. [2]"]


def test_the_ledger_complains_of_a_rejected_message_that_is_nowhere() -> None:
    ledger = AmqpLedger()
    ledger.confirmed("q", [1, 2, 3])
    ledger.check_buried("q", left=[3], buried=[1, 1])
    assert ledger.complaints == ["1 rejected messages of q are lost, e.g. [2]"]


def test_the_ledger_complains_of_a_message_after_its_acknowledgement() -> None:
    ledger = AmqpLedger()
    ledger.delivered("q", 1, False, 0)
    ledger.settled("q", [1], 0)
    ledger.delivered("q", 1, True, 1)
    assert ledger.complaints == ["q delivered 1 again after it was acknowledged"]


def test_the_ledger_ignores_what_is_read_late_from_a_dead_connection() -> None:
    ledger = AmqpLedger()
    ledger.delivered("q", 1, False, 0)
    ledger.settled("q", [1], 1)
    ledger.delivered("q", 1, True, 0)
    assert ledger.complaints == []


def test_the_ledger_complains_of_an_unmarked_redelivery() -> None:
    ledger = AmqpLedger()
    ledger.delivered("q", 1, False, 0)
    ledger.delivered("q", 1, False, 1)
    assert ledger.complaints == ["q delivered 1 again without saying so"]


@pytest.mark.parametrize(
    ("fate", "shown", "kept"),
    [
        (Fate.COMMITTED, 3, True),
        (Fate.COMMITTED, 2, False),
        (Fate.COMMITTED, 0, False),
        (Fate.ENDING, 0, True),
        (Fate.ENDING, 3, True),
        (Fate.ENDING, 1, False),
        (Fate.ABORTED, 1, False),
        (Fate.OPEN, 3, False),
        (Fate.OPEN, 0, True),
    ],
)
def test_the_ledger_knows_what_may_show_of_a_transaction(fate: Fate, shown: int, kept: bool) -> None:
    ledger = AmqpLedger()
    ledger.attempt_is(ledger.attempt_begun(3), fate)
    ledger.check_transactions([0] * shown)
    assert (ledger.complaints == []) is kept
