"""The ledger itself: each kind of broken promise is noticed. A crash test whose judge is blind proves nothing."""

from __future__ import annotations

from tests.crash.ledger import Fate, Ledger, Place, value_of

T = Place("t", 0)


def test_a_kept_promise_is_no_complaint() -> None:
    ledger = Ledger()
    ledger.record_acknowledged(T, 0, b"0|")
    ledger.record_seen("g", T, 0, b"0|")
    ledger.commit_acknowledged("g", T, 1)
    ledger.sent["t"] = 1
    stored = {T: {0: b"0|"}}
    ledger.check_acknowledged(stored)
    ledger.check_idempotent("t", stored)
    ledger.check_coverage("g", stored, ["t"])
    assert ledger.complaints == []
    assert ledger.promised_ends() == {T: 1}
    assert ledger.promised_commits() == {"g": {T: 1}}


def test_a_lost_acknowledged_record_is_noticed() -> None:
    ledger = Ledger()
    ledger.record_acknowledged(T, 3, b"3|")
    ledger.check_acknowledged({T: {2: b"2|"}})
    assert "acknowledged on" in ledger.complaints[0]


def test_an_offset_given_twice_is_noticed() -> None:
    ledger = Ledger()
    ledger.record_acknowledged(T, 3, b"3|")
    ledger.record_acknowledged(T, 3, b"4|")
    assert "gave offset 3 to both" in ledger.complaints[0]


def test_a_record_that_changes_after_it_was_seen_is_noticed() -> None:
    ledger = Ledger()
    ledger.record_seen("g", T, 3, b"3|")
    ledger.record_seen("g", T, 3, b"4|")
    ledger.check_acknowledged({T: {3: b"4|"}})
    assert len(ledger.complaints) == 2


def test_a_commit_that_goes_back_is_noticed() -> None:
    ledger = Ledger()
    ledger.commit_acknowledged("g", T, 10)
    ledger.commit_acknowledged("g", T, 9)
    assert "went on at 9" in ledger.complaints[0]


def test_idempotent_records_twice_missing_or_swapped_are_noticed() -> None:
    ledger = Ledger()
    ledger.sent["t"] = 4
    ledger.check_idempotent("t", {T: {0: value_of(1, 0), 1: value_of(0, 0), 2: value_of(2, 0), 3: value_of(2, 9)}})
    told = " ".join(ledger.complaints)
    assert "out of order" in told
    assert "twice, e.g. [2]" in told
    assert "missing in t, e.g. [3]" in told


def test_broken_transactions_are_noticed() -> None:
    ledger = Ledger()
    ledger.sent["t"] = 5
    fates = [Fate.COMMITTED, Fate.ABORTED, Fate.OPEN, Fate.ENDING, Fate.ENDING]
    for fate in fates:
        ledger.attempt_is(ledger.attempt_begun(2), fate)
    visible = [b"0|0|", b"1|1|", b"2|2|", b"3|3|", b"4|4|", b"4|4|"]
    ledger.check_transactions("t", visible)
    assert ledger.complaints == [
        "transaction 0 is committed, but 1 of its 2 records show",
        "transaction 1 is aborted, but 1 of its 2 records show",
        "transaction 2 is open, but 1 of its 2 records show",
        "transaction 3 is ending, but 1 of its 2 records show",
        "1 records of t processed twice, e.g. [4]",
    ]


def test_what_a_group_never_got_is_noticed() -> None:
    ledger = Ledger()
    ledger.record_seen("g", T, 0, b"0|")
    ledger.check_coverage("g", {T: {0: b"0|", 1: b"1|"}}, ["t"])
    assert "never got, e.g. [1]" in ledger.complaints[0]
