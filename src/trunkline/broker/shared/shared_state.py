"""All maps and teams of a broker: opened when they are first asked for, each once.

One task waits for the next member whose lease ends; teams that had members before a restart are opened with it, so that whoever
does not come back is missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from trunkline.broker.messaging import refusals
from trunkline.broker.shared.log import SharedLog
from trunkline.broker.shared.shared_map import SharedMap
from trunkline.broker.shared.team import Team
from trunkline.clock import Clock
from trunkline.log.errors import InvalidTopicName, LogError
from trunkline.log.names import check_topic_name
from trunkline.log.store import LogStore

logger = logging.getLogger(__name__)

MAX_OPEN: Final = 10_000
MAP_PREFIX: Final = "map."
TEAM_PREFIX: Final = "team."
_LONGEST_SLEEP_MS: Final = 1_000
_DEFAULT_VHOST: Final = "/"

S = TypeVar("S", bound=SharedLog)


class SharedState:
    def __init__(self, store: LogStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._maps: dict[str, SharedMap] = {}
        self._teams: dict[str, Team] = {}
        self._opening = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for topic in [name for name in self._store.topics() if name.startswith(TEAM_PREFIX)]:
            await self._opened(self._teams, topic, Team)
        if any(team.members for team in self._teams.values()):
            self.watch()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def map(self, vhost: str, name: str) -> SharedMap:
        return await self._opened(self._maps, _topic_of(MAP_PREFIX, vhost, name), SharedMap)

    async def team(self, vhost: str, name: str) -> Team:
        team = await self._opened(self._teams, _topic_of(TEAM_PREFIX, vhost, name), Team)
        self.watch()
        return team

    async def _opened(self, known: dict[str, S], topic: str, kind: Callable[[LogStore, Clock, str], S]) -> S:
        found = known.get(topic)
        if found is not None and self._store.topic(topic) is not None:
            return found
        async with self._opening:
            found = known.get(topic)
            if found is not None and self._store.topic(topic) is not None:
                return found
            if len(known) >= MAX_OPEN:
                raise refusals.precondition(f"there are at most {MAX_OPEN} maps, and as many teams")
            found = kind(self._store, self._clock, topic)
            await found.open()
            known[topic] = found
            return found

    # -- who is silent -----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """See to it that the leases of members are watched."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch_leases(), name="team leases")

    async def _watch_leases(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            deadlines = [at_ms for team in self._teams.values() if (at_ms := team.next_deadline_ms()) is not None]
            if not deadlines:
                return
            await asyncio.sleep(min(max(min(deadlines) - now_ms, 0.0) + 5.0, _LONGEST_SLEEP_MS) / 1000)
            for team in [team for team in self._teams.values() if team.silent()]:
                try:
                    await team.leave(team.silent)
                except LogError as error:
                    logger.error("the members of %s whose lease is over cannot be removed: %s", team.name, error)


def _topic_of(prefix: str, vhost: str, name: str) -> str:
    topic = prefix + ("" if vhost == _DEFAULT_VHOST else f"{vhost}.") + name
    try:
        check_topic_name(topic)
    except InvalidTopicName as error:
        raise refusals.precondition(str(error)) from None
    return topic
