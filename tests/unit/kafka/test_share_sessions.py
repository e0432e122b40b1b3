"""Share sessions: epochs, limits, and whose they are."""

from __future__ import annotations

from uuid import UUID

import pytest

from trunkline.protocols.kafka.errors import RefusedError
from trunkline.protocols.kafka.share_sessions import FINAL_EPOCH, MAX_EPOCH, ShareSessions

KEY = ("group", "member")
A, B = (UUID(int=1), 0), (UUID(int=1), 1)


def refusal(sessions: ShareSessions, epoch: int) -> str:
    with pytest.raises(RefusedError) as caught:
        sessions.resume(KEY, epoch)
    return caught.value.name


def test_each_request_carries_the_next_epoch() -> None:
    sessions = ShareSessions()
    assert refusal(sessions, 1) == "SHARE_SESSION_NOT_FOUND"
    session = sessions.open(KEY, [A])
    assert sessions.resume(KEY, 1) is session
    assert refusal(sessions, 1) == "INVALID_SHARE_SESSION_EPOCH"
    assert sessions.resume(KEY, 2) is session
    assert sessions.resume(KEY, FINAL_EPOCH) is session
    session.epoch = MAX_EPOCH
    sessions.resume(KEY, MAX_EPOCH)
    assert session.epoch == 1


def test_partitions_are_added_and_forgotten_but_stay_to_be_given_back() -> None:
    sessions = ShareSessions()
    session = sessions.open(KEY, [A])
    sessions.update(session, [B], [A])
    assert list(session.partitions) == [B]
    assert session.touched == {A, B}


def test_a_new_session_takes_the_place_of_the_old_one() -> None:
    sessions = ShareSessions()
    old = sessions.open(KEY, [A])
    new = sessions.open(KEY, [B])
    assert new.touched == {A, B}
    assert not sessions.close(old)
    assert sessions.close(new)
    assert len(sessions) == 0


def test_there_are_only_so_many() -> None:
    sessions = ShareSessions(max_sessions=1, max_partitions=2)
    session = sessions.open(KEY, [A])
    with pytest.raises(RefusedError, match="limit"):
        sessions.open(("group", "another"), [A])
    sessions.update(session, [B])
    with pytest.raises(RefusedError):
        sessions.update(session, [(UUID(int=2), 0)])
    sessions.close(session)
    with pytest.raises(RefusedError):
        sessions.open(KEY, [A, B, (UUID(int=2), 0)])
