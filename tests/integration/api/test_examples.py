"""The examples do what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
DELIVERIES = ("at-most-once", "at-least-once", "exactly-once", "transaction", "timeout")


def ran(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_each_delivery_keeps_its_promise_while_workers_and_broker_are_killed(delivery: str) -> None:
    program = str(EXAMPLES / "semantics" / "semantics.py")
    outcome = json.loads(ran(program, delivery, "--jobs", "24", "--kills", "1", "--json"))
    assert outcome["kept"] is True
    assert outcome["jobs"] == 24


def test_every_order_is_confirmed_once_with_all_its_parts() -> None:
    assert ran(str(EXAMPLES / "collaboration" / "retailer.py")).splitlines() == [
        "order 1: frame from metalworks, wheels from metalworks",
        "order 2: bulb from glassworks, frame from metalworks, shade from glassworks, wheels from metalworks",
        "order 3: bulb from glassworks, shade from glassworks",
    ]


def test_dealers_hear_what_they_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "collaboration"))
    import dealing_room  # type: ignore[import-not-found]

    dealers, board = dealing_room.run("memory:", 120)
    assert len(board) == 120
    for dealer in dealers:
        assert dealer.heard == dealing_room.expected(dealer, board)
        assert dealer.heard
