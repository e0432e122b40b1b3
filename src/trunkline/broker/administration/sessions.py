"""Sessions that outlive a connection, their subscriptions, and retained messages: looked at and ended.

The protocol that has them (MQTT) keeps them, and registers who can tell of them (`SessionKeeper`). Without such a listener
there are none to be seen.

Bounded: a list has `MAX_LISTED` entries; `total` says how many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from trunkline.broker.administration.definitions import Json
from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.routing.errors import InvalidPattern

MAX_LISTED: Final = 10_000


class SessionKeeper(Protocol):
    def session_names(self) -> Collection[str]: ...

    def describe_session(self, name: str, *, whole: bool) -> Json | None:
        """One session, `whole` with its subscriptions and its places in the log; None if it is not there."""

    def end_session(self, name: str) -> bool:
        """End it, and its connection; False if it is not there."""

    def retained_names(self, topic_filter: str) -> Sequence[str]:
        """The topics with a retained message that a filter matches; InvalidPattern if it is none."""

    def describe_retained(self, topic: str) -> Json | None: ...

    def forget_retained(self, topics: Sequence[str]) -> None: ...


class Sessions:
    def __init__(self) -> None:
        self._keeper: SessionKeeper = _Nobody()

    def kept_by(self, keeper: SessionKeeper) -> None:
        self._keeper = keeper

    def listed(self, wanted: str = "") -> Json:
        """Those with this text in their name."""
        names = [name for name in self._keeper.session_names() if wanted in name]
        found = (self._keeper.describe_session(name, whole=False) for name in heapq.nsmallest(MAX_LISTED, names))
        return {"total": len(names), "sessions": [each for each in found if each is not None]}

    def one(self, name: str) -> Json:
        found = self._keeper.describe_session(name, whole=True)
        if found is None:
            raise _no_session(name)
        return found

    def end(self, name: str) -> None:
        if not self._keeper.end_session(name):
            raise _no_session(name)

    def retained(self, topic_filter: str = "#") -> Json:
        names = self._retained_names(topic_filter)
        found = (self._keeper.describe_retained(name) for name in heapq.nsmallest(MAX_LISTED, names))
        return {"total": len(names), "messages": [each for each in found if each is not None]}

    def clear_retained(self, topic_filter: str) -> int:
        """Forget retained messages; returns how many."""
        names = self._retained_names(topic_filter)
        self._keeper.forget_retained(names)
        return len(names)

    def _retained_names(self, topic_filter: str) -> Sequence[str]:
        try:
            return self._keeper.retained_names(topic_filter)
        except InvalidPattern as error:
            raise refusals.precondition(str(error)) from None


def _no_session(name: str) -> Refused:
    return Refused(Reason.NOT_FOUND, f"there is no session {name}")


class _Nobody:
    """Where no listener has sessions."""

    def session_names(self) -> Collection[str]:
        return ()

    def describe_session(self, name: str, *, whole: bool) -> Json | None:
        return None

    def end_session(self, name: str) -> bool:
        return False

    def retained_names(self, topic_filter: str) -> Sequence[str]:
        return ()

    def describe_retained(self, topic: str) -> Json | None:
        return None

    def forget_retained(self, topics: Sequence[str]) -> None:
        return None
