"""Incremental fetch sessions: what the broker remembers of a reader, and when it refuses."""

from __future__ import annotations

import pytest

from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.fetch_sessions import FetchSessions, SessionError
from trunkline.protocols.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

VERSION = 12


def request(
    session_id: int, epoch: int, *, reads: dict[int, int] | None = None, forgets: list[int] | None = None
) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=100)
                    for index, offset in (reads or {}).items()
                ],
            )
        ],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=forgets)] if forgets else [],
    )


def test_a_full_fetch_opens_a_session_and_the_next_names_only_changes() -> None:
    sessions = FetchSessions()
    first = sessions.plan(request(0, 0, reads={0: 5, 1: 7}), VERSION)
    assert first.session_id != 0
    assert not first.incremental
    second = sessions.plan(request(first.session_id, 1, reads={1: 9, 2: 0}), VERSION)
    assert second.incremental
    assert {key[1]: part.fetch_offset for key, part in second.partitions.items()} == {0: 5, 1: 9, 2: 0}
    third = sessions.plan(request(first.session_id, 2, forgets=[0, 2]), VERSION)
    assert [key[1] for key in third.partitions] == [1]


def test_an_unknown_session_and_a_wrong_epoch_are_refused() -> None:
    sessions = FetchSessions()
    opened = sessions.plan(request(0, 0, reads={0: 0}), VERSION)
    with pytest.raises(SessionError) as unknown:
        sessions.plan(request(opened.session_id + 1, 1), VERSION)
    assert unknown.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    with pytest.raises(SessionError) as wrong:
        sessions.plan(request(opened.session_id, 2), VERSION)
    assert wrong.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_epoch_minus_1_closes_the_session_and_stands_alone() -> None:
    sessions = FetchSessions()
    opened = sessions.plan(request(0, 0, reads={0: 0}), VERSION)
    closing = sessions.plan(request(opened.session_id, -1, reads={0: 3}), VERSION)
    assert closing.session_id == 0
    assert len(sessions) == 0


def test_old_versions_have_no_sessions() -> None:
    sessions = FetchSessions()
    assert sessions.plan(request(0, 0, reads={0: 0}), 6).session_id == 0
    assert len(sessions) == 0


def test_the_session_unused_for_longest_makes_room() -> None:
    sessions = FetchSessions(max_sessions=2)
    first = sessions.plan(request(0, 0, reads={0: 0}), VERSION)
    second = sessions.plan(request(0, 0, reads={0: 0}), VERSION)
    sessions.plan(request(first.session_id, 1), VERSION)
    sessions.plan(request(0, 0, reads={0: 0}), VERSION)
    assert len(sessions) == 2
    sessions.plan(request(first.session_id, 2), VERSION)
    with pytest.raises(SessionError):
        sessions.plan(request(second.session_id, 1), VERSION)


def test_the_epoch_wraps_to_1() -> None:
    sessions = FetchSessions()
    opened = sessions.plan(request(0, 0, reads={0: 0}), VERSION)
    sessions._sessions[opened.session_id].epoch = 2**31 - 1
    sessions.plan(request(opened.session_id, 2**31 - 1), VERSION)
    assert sessions.plan(request(opened.session_id, 1), VERSION).incremental


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    sessions = FetchSessions(max_partitions=10)
    first = sessions.plan(request(0, 0, reads=dict.fromkeys(range(6), 0)), VERSION)
    second = sessions.plan(request(0, 0, reads=dict.fromkeys(range(4), 0)), VERSION)
    sessions.plan(request(second.session_id, 1, reads={9: 0}), VERSION)
    with pytest.raises(SessionError):
        sessions.plan(request(first.session_id, 1), VERSION)
    alone = sessions.plan(request(0, 0, reads=dict.fromkeys(range(11), 0)), VERSION)
    assert (alone.session_id, len(alone.partitions)) == (0, 11), "it is answered, without a session"
    sessions.plan(request(second.session_id, 2), VERSION)


def test_closed_sessions_do_not_count() -> None:
    sessions = FetchSessions(max_partitions=10)
    for _ in range(5):
        one = sessions.plan(request(0, 0, reads=dict.fromkeys(range(8), 0)), VERSION)
        sessions.plan(request(one.session_id, -1), VERSION)
    kept = sessions.plan(request(0, 0, reads=dict.fromkeys(range(8), 0)), VERSION)
    sessions.plan(request(0, 0, reads={0: 0, 1: 0}), VERSION)
    sessions.plan(request(kept.session_id, 1), VERSION)
