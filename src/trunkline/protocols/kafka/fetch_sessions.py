"""Incremental fetch sessions (KIP-227): the broker remembers which partitions a client reads, and answers with changes.

A session is created by a full fetch (id 0, epoch 0). Each later fetch carries the next epoch and names only what it
adds, moves or forgets; each response leaves out partitions with nothing new. A fetch with epoch -1 closes the session
and stands alone. Sessions are in memory only: after a restart, clients are told that the session is unknown and begin a
new one. At most `max_sessions` are kept, with `max_partitions` in all of them; the one unused for longest makes room. Who
asks for more than that by itself is answered without a session.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from trunkline.protocols.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from trunkline.protocols.kafka.messages.fetch import FetchRequest

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1
MAX_SESSIONS = 1000
MAX_PARTITIONS = 500_000
NO_SESSION = 0

PartitionKey = tuple[str | UUID, int]


@dataclass(slots=True)
class FetchedPartition:
    """One partition that a client reads: what it asked for, and what it was last told."""

    topic: str | UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    log_start_offset: int = -1
    last_high_watermark: int = -1
    last_log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    id: int
    epoch: int
    partitions: OrderedDict[PartitionKey, FetchedPartition] = field(default_factory=OrderedDict)


class SessionError(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class FetchPlan:
    """What one fetch is to read. `incremental` responses leave out partitions without news."""

    session_id: int
    incremental: bool
    partitions: OrderedDict[PartitionKey, FetchedPartition]


class FetchSessions:
    def __init__(
        self,
        max_sessions: int = MAX_SESSIONS,
        random_source: Callable[[], int] | None = None,
        max_partitions: int = MAX_PARTITIONS,
    ) -> None:
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._partitions = 0  # in all sessions
        self._random_source = random_source or (lambda: random.randint(1, MAX_EPOCH))

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, version: int) -> FetchPlan:
        """Turn a request into the partitions to read; raises SessionError for an unknown session or a wrong epoch."""
        asked = _asked(request, version)
        epoch = request.session_epoch
        if version < 7 or epoch == FINAL_EPOCH:
            self._forget(request.session_id)
            return FetchPlan(NO_SESSION, False, asked)
        if epoch == INITIAL_EPOCH:
            self._forget(request.session_id)
            if len(asked) > self._max_partitions:
                return FetchPlan(NO_SESSION, False, asked)
            session = self._create(asked)
            return FetchPlan(session.id, False, session.partitions)
        found = self._sessions.get(request.session_id)
        if found is None:
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if found.epoch != epoch:
            raise SessionError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        found.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        self._sessions.move_to_end(found.id)
        before = len(found.partitions)
        _update(found, asked, request, version)
        self._partitions += len(found.partitions) - before
        while self._partitions > self._max_partitions:  # it may have to go itself, after this answer
            self._forget(next(iter(self._sessions)))
        return FetchPlan(found.id, True, found.partitions)

    def _forget(self, session_id: int) -> None:
        gone = self._sessions.pop(session_id, None)
        if gone is not None:
            self._partitions -= len(gone.partitions)

    def _create(self, partitions: OrderedDict[PartitionKey, FetchedPartition]) -> FetchSession:
        while self._sessions and (
            len(self._sessions) >= self._max_sessions or self._partitions + len(partitions) > self._max_partitions
        ):
            self._forget(next(iter(self._sessions)))
        self._partitions += len(partitions)
        session_id = self._random_source()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random_source()
        session = FetchSession(session_id, INITIAL_EPOCH + 1, partitions)
        self._sessions[session_id] = session
        return session


def _asked(request: FetchRequest, version: int) -> OrderedDict[PartitionKey, FetchedPartition]:
    by_id = version >= 13
    asked: OrderedDict[PartitionKey, FetchedPartition] = OrderedDict()
    for topic in request.topics:
        name: str | UUID = topic.topic_id if by_id else topic.topic
        for part in topic.partitions:
            asked[(name, part.partition)] = FetchedPartition(
                name,
                part.partition,
                part.fetch_offset,
                part.partition_max_bytes,
                part.current_leader_epoch,
                part.log_start_offset,
            )
    return asked


def _update(
    session: FetchSession,
    asked: OrderedDict[PartitionKey, FetchedPartition],
    request: FetchRequest,
    version: int,
) -> None:
    for key, part in asked.items():
        known = session.partitions.get(key)
        if known is None:
            session.partitions[key] = part
        else:
            known.fetch_offset = part.fetch_offset
            known.max_bytes = part.max_bytes
            known.current_leader_epoch = part.current_leader_epoch
            known.log_start_offset = part.log_start_offset
    for forgotten in request.forgotten_topics_data:
        name: str | UUID = forgotten.topic_id if version >= 13 else forgotten.topic
        for partition in forgotten.partitions:
            session.partitions.pop((name, partition), None)
