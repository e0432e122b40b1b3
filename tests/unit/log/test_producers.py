"""What a partition remembers of its producers is bounded, however many there are."""

from __future__ import annotations

import pytest

from trunkline.log import producers
from trunkline.log.batch import NewRecord, build_batch, parse_header
from trunkline.log.producers import ProducerTable


def test_producers_that_were_silent_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 80)
    table = ProducerTable()
    for producer_id in range(1_000):
        batch = build_batch(
            [NewRecord(None, b"v")],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=producer_id == 3,
        )
        table.apply(parse_header(batch), producer_id, now_ms=producer_id)
    known = {state.producer_id for state in table.describe()}
    assert len(known) <= 80
    assert 3 in known, "who has a transaction open stays"
    assert known >= set(range(990, 1_000))
