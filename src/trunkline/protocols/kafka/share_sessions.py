"""Share sessions (KIP-932): the broker remembers which partitions a member of a share group reads.

A session belongs to a group and a member. It is opened by a ShareFetch with epoch 0, each later request of the member carries
the next epoch, and -1 closes it. ShareFetch names only what it adds, acknowledges or forgets. A session also ends with the
connection on which it was opened: what its member holds can then be had by others. At most `max_sessions` are kept, of
`max_partitions` in all; who comes too late is told to try again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from trunkline.protocols.kafka.errors import ErrorCode, RefusedError

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1
MAX_SESSIONS = 2_000  # group.share.max.share.sessions
MAX_PARTITIONS = 500_000

PartitionKey = tuple[UUID, int]
SessionKey = tuple[str, str]  # group, member


@dataclass(slots=True, eq=False)
class ShareSession:
    key: SessionKey
    epoch: int
    partitions: OrderedDict[PartitionKey, None] = field(default_factory=OrderedDict)
    # Where its member may hold something: all that it has read, also what it reads no more.
    touched: set[PartitionKey] = field(default_factory=set)


class ShareSessions:
    def __init__(self, max_sessions: int = MAX_SESSIONS, max_partitions: int = MAX_PARTITIONS) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, partitions: Iterable[PartitionKey]) -> ShareSession:
        """Begin a session, instead of the one that the member had."""
        before = self._sessions.get(key)
        asked = OrderedDict.fromkeys(partitions)
        kept = 0 if before is None else len(before.partitions)
        if (before is None and len(self._sessions) >= self._max_sessions) or (
            self._partitions - kept + len(asked) > self._max_partitions
        ):
            raise RefusedError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, "The limit of share sessions has been reached.")
        session = ShareSession(key, INITIAL_EPOCH + 1, asked, set(asked))
        if before is not None:
            session.touched |= before.touched  # the member is the same, and holds what it held
        self._sessions[key] = session
        self._partitions += len(asked) - kept
        return session

    def resume(self, key: SessionKey, epoch: int) -> ShareSession:
        """The member's session, at its next epoch; -1 is good for any, and is to be followed by `close`."""
        session = self._sessions.get(key)
        if session is None:
            raise RefusedError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session was not found.")
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise RefusedError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "The share session epoch is invalid.")
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return session

    def update(
        self, session: ShareSession, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey] = ()
    ) -> None:
        before = len(session.partitions)
        for key in added:
            session.partitions.setdefault(key)
            session.touched.add(key)
        for key in forgotten:
            session.partitions.pop(key, None)
        if self._sessions.get(session.key) is session:
            self._partitions += len(session.partitions) - before
            if self._partitions > self._max_partitions:
                raise RefusedError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, "Too many partitions in share sessions.")

    def close(self, session: ShareSession) -> bool:
        """End a session. False if it has ended already, or another has taken its place."""
        if self._sessions.get(session.key) is not session:
            return False
        del self._sessions[session.key]
        self._partitions -= len(session.partitions)
        return True
