"""What members make of their team's records: all of them the same, whoever joins, dies and hands over the state when."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trunkline.api.team_view import (
    Evicted,
    Membership,
    Received,
    StateInstalled,
    StateWanted,
    ViewChanged,
)
from trunkline.broker.messaging.refusals import Refused
from trunkline.broker.shared.team import Team
from trunkline.clock import ManualClock
from trunkline.log.embedded.store import EmbeddedStore

LEASE_MS = 1_000


class Member:
    """A replica: its state is everything that was delivered to it, or handed over."""

    def __init__(self, name: str, offset: int) -> None:
        self.membership = Membership(name)
        self.following = offset
        self.state: list[str] = []
        self.seen: list[str] = []  # what was delivered to it itself
        self.owes: list[tuple[int, list[str]]] = []
        self.installed = False
        self.alive = True

    def read(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            for step in self.membership.take(record):
                if isinstance(step, Received):
                    self._deliver(f"{step.sender}:{step.body}")
                elif isinstance(step, ViewChanged):
                    self.installed = True
                    self._deliver(f"view {step.view.number} {','.join(step.view.members)}")
                elif isinstance(step, StateInstalled):
                    self.state = json.loads(str(step.body))
                elif isinstance(step, StateWanted):
                    self.owes.append((step.view, list(self.state)))
                elif isinstance(step, Evicted):
                    self.alive = False

    def _deliver(self, what: str) -> None:
        self.state.append(what)
        self.seen.append(what)


STEP = st.tuples(
    st.sampled_from(
        ["join", "join", "send", "send", "send", "read", "read", "read", "die", "leave", "hand over", "restart"]
    ),
    st.integers(0, 7),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, max_size=60))
def test_members_have_one_sequence_of_views_and_messages(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("team"), steps))


async def _play(directory: Path, steps: list[tuple[str, int]]) -> None:
    clock = ManualClock(1_700_000_000_000)
    store = EmbeddedStore(directory, clock=clock)
    await store.start()
    team = Team(store, clock, "team.t")
    await team.open()
    members: list[Member] = []
    count = 0

    async def read(member: Member) -> None:
        records, member.following = await team.receive(member.following, 0)
        member.read(records)

    for step, number in steps:
        here = [member for member in members if member.alive]
        chosen = here[number % len(here)] if here else None
        if step == "join" and len(here) < 5:
            name = f"m{len(members)}"
            members.append(Member(name, await team.join(name, LEASE_MS, closed=True)))
        elif step == "restart":
            team = Team(store, clock, "team.t")
            await team.open()
        elif chosen is None:
            continue
        elif step == "send":
            count += 1
            await team.send(chosen.membership.me, count, str(count), "text/plain")
            assert await team.send(chosen.membership.me, count, str(count), "text/plain") == -1, "twice is once"
        elif step == "read":
            await read(chosen)
        elif step == "hand over" and chosen.owes:
            view, state = chosen.owes.pop(0)
            await team.give_state(chosen.membership.me, view, json.dumps(state), "application/json")
        elif step == "leave":
            chosen.alive = False
            await team.leave([chosen.membership.me].copy)
        elif step == "die":
            chosen.alive = False
            clock.advance(LEASE_MS + 1)
            for member in members:
                if member.alive:
                    team.heard_of(member.membership.me)
            await team.leave(team.silent)
            assert chosen.membership.me not in team.members
    # Everybody who is left hands over what it owes, and reads to the end.
    for _ in range(4):
        for member in [member for member in members if member.alive]:
            await read(member)
            while member.owes:
                view, state = member.owes.pop(0)
                await team.give_state(member.membership.me, view, json.dumps(state), "application/json")
    alive = [member for member in members if member.alive]
    assert sorted(member.membership.me for member in alive) == sorted(team.members)
    assert all(member.installed for member in alive), "a joiner waits for a state that nobody hands over"
    for member in alive:
        assert member.state == alive[0].state, "replicas differ"
    # Whoever was a member for a while saw a piece of the sequence without gaps.
    for member in members:
        if member.seen and alive:
            text = "\n".join(alive[0].state)
            assert "\n".join(member.seen) in text or member.seen[0] not in alive[0].state
    await store.close()


def test_who_is_not_a_member_cannot_send_to_a_closed_team(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = EmbeddedStore(tmp_path, clock=ManualClock(0))
        await store.start()
        team = Team(store, ManualClock(0), "team.t")
        await team.open()
        await team.join("a", LEASE_MS, closed=True)
        with pytest.raises(Refused):
            await team.send("b", 0, "", "text/plain")
        await team.leave(lambda: ["a"])
        await team.join("c", LEASE_MS, closed=False)
        assert await team.send("b", 0, "", "text/plain") > 0
        with pytest.raises(Refused):
            await team.send("a", 5, "", "text/plain")
        await store.close()

    asyncio.run(scenario())
