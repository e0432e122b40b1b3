"""The window: packet identifiers, given and taken back in runs."""

from __future__ import annotations

import pytest

from trunkline.protocols.mqtt.sessions.window import (
    AWAIT_PUBACK,
    AWAIT_PUBCOMP,
    AWAIT_PUBREC,
    MAX_PACKET_ID,
    UNKEPT,
    Inflight,
    Window,
    WrongAcknowledgement,
)


def window_with(entry: Inflight, count: int) -> Window:
    window = Window(MAX_PACKET_ID)
    window.entries.update(dict.fromkeys(window.free_ids(count), entry))
    return window


def test_identifiers_go_round_and_pass_over_those_in_use() -> None:
    window = window_with(UNKEPT[AWAIT_PUBACK], MAX_PACKET_ID - 2)
    assert window.acknowledged([*range(1, 10), *range(20, MAX_PACKET_ID - 1)])
    assert window.free_ids(12) == [MAX_PACKET_ID - 1, MAX_PACKET_ID, *range(1, 10), 20]
    assert window.add(UNKEPT[AWAIT_PUBACK]) == 21


def test_every_identifier_can_be_in_use_at_once() -> None:
    window = window_with(UNKEPT[AWAIT_PUBACK], MAX_PACKET_ID)
    assert sorted(window.entries) == list(range(1, MAX_PACKET_ID + 1))
    assert window.room() == 0


def test_acknowledgements_of_nothing_change_nothing() -> None:
    window = window_with(UNKEPT[AWAIT_PUBREC], 3)
    assert not window.acknowledged([4])
    assert window.received([4]) == []
    assert not window.completed([4])
    assert not window.refused(4)
    assert len(window) == 3


def test_acknowledgements_of_the_wrong_kind_are_violations_and_change_nothing() -> None:
    for state, wrong in (
        (AWAIT_PUBACK, (Window.received, Window.completed)),
        (AWAIT_PUBREC, (Window.acknowledged, Window.completed)),
        (AWAIT_PUBCOMP, (Window.acknowledged,)),
    ):
        window = window_with(UNKEPT[state], 2)
        for acknowledge in wrong:
            with pytest.raises(WrongAcknowledgement, match="packet identifier 1, which waits for"):
                acknowledge(window, [1])
        if state != AWAIT_PUBREC:
            with pytest.raises(WrongAcknowledgement):
                window.refused(1)
        assert [entry.state for entry in window.entries.values()] == [state] * 2


def test_a_repeated_pubrec_is_known_until_pubcomp() -> None:
    window = window_with(UNKEPT[AWAIT_PUBREC], 3)
    assert window.received([1, 2, 1]) == [1, 2, 1]
    assert [entry.state for entry in window.entries.values()] == [AWAIT_PUBCOMP, AWAIT_PUBCOMP, AWAIT_PUBREC]
    assert window.completed([1])
    assert window.received([1, 2, 3]) == [2, 3]
