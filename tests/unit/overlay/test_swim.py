"""SWIM between machines on a simulated network: from two members to a thousand."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.clock import ManualClock
from trunkline.overlay.lab.network import SimulatedNetwork
from trunkline.overlay.machine import Peer
from trunkline.overlay.membership.members import Members, State, Update, overrides
from trunkline.overlay.membership.news import News, transmissions
from trunkline.overlay.membership.swim import (
    MAX_NEWS,
    Ack,
    Gossip,
    Join,
    Message,
    Ping,
    PingRequest,
    Probing,
    Roster,
    Settings,
    Swim,
)

PERIOD_MS = 1_000.0


class Group:
    """Members that all know each other, in step."""

    def __init__(self, size: int, seed: int, settings: Settings | None = None, loss: float = 0.0) -> None:
        self.random = Random(seed)
        self.network: SimulatedNetwork[Message] = SimulatedNetwork(
            self.random, delay_ms=lambda random: random.uniform(1, 20), loss=loss
        )
        self.peers = [f"n{number}" for number in range(size)]
        self.settings = settings or Settings()
        self.nodes: dict[Peer, Swim] = {}
        for peer in self.peers:
            self.start(peer, self.peers)

    def start(self, peer: Peer, known: list[Peer]) -> Swim:
        node = Swim(peer, self.network.clock, self.random, self.settings, known)
        self.nodes[peer] = node
        self.network.add(peer, node)
        return node

    def run(self, periods: float) -> None:
        self.network.run(self.network.clock.monotonic_ms() + periods * PERIOD_MS)

    def states_of(self, member: Peer) -> set[State | None]:
        return {node.state_of(member) for peer, node in self.nodes.items() if peer != member}


def test_a_quiet_group_stays_as_it_is() -> None:
    group = Group(20, 1)
    group.run(50)
    assert all(len(node.members()) == 19 for node in group.nodes.values())
    assert not any(node.changes() for node in group.nodes.values())
    assert not any(node.dropped for node in group.nodes.values())


def test_a_crash_is_told_to_everybody() -> None:
    group = Group(30, 2)
    group.run(3)
    group.network.crash("n7")
    del group.nodes["n7"]
    group.run(25)
    assert group.states_of("n7") == {State.DEAD}
    assert all(len(node.members()) == 28 for node in group.nodes.values())


def test_an_indirect_probe_spares_a_member_that_one_other_cannot_reach() -> None:
    group = Group(6, 3)
    group.network.cut("n0", "n1")
    group.run(60)
    assert group.states_of("n0") | group.states_of("n1") == {State.ALIVE}


def test_a_suspect_that_lives_refutes() -> None:
    group = Group(10, 4)
    group.nodes["n3"].receive("n1", Ping(1, (Update("n0", State.SUSPECT, 0),)))
    group.run(30)
    assert group.states_of("n0") == {State.ALIVE}
    assert group.nodes["n0"].incarnation >= 1
    assert all(len(node.members()) == 9 for node in group.nodes.values())


def test_who_leaves_is_not_suspected() -> None:
    group = Group(12, 5)
    node = group.nodes.pop("n4")
    group.network.post("n4", node.leave())
    group.run(10)
    assert group.states_of("n4") == {State.LEFT}
    assert all(change.state is State.LEFT for other in group.nodes.values() for change in other.changes())


def test_a_newcomer_learns_of_all_in_pages_and_all_learn_of_it() -> None:
    group = Group(150, 6)
    newcomer = group.start("new", [])
    group.network.post("new", newcomer.join("n0"))
    group.run(12)
    assert sorted(newcomer.members()) == sorted(group.peers)
    assert group.states_of("new") == {State.ALIVE}


def test_a_member_that_comes_back_without_its_memory_is_alive_again() -> None:
    group = Group(10, 7)
    group.network.crash("n2")
    group.run(20)
    back = group.start("n2", [])
    group.network.post("n2", back.join("n5"))
    group.run(10)
    assert group.states_of("n2") == {State.ALIVE}
    assert len(back.members()) == 9


def test_two_halves_that_were_cut_apart_become_one_group_again() -> None:
    group = Group(12, 8)
    halves = group.peers[:6], group.peers[6:]
    for one in halves[0]:
        for other in halves[1]:
            group.network.cut(one, other)
    group.run(40)
    assert all(len(node.members()) == 5 for node in group.nodes.values())
    for one in halves[0]:
        for other in halves[1]:
            group.network.heal(one, other)
    group.run(60)
    assert all(len(node.members()) == 11 for node in group.nodes.values())


def test_the_first_to_find_a_crash_does_so_after_e_by_e_minus_one_periods() -> None:
    periods: list[int] = []
    for seed in range(150):
        group = Group(30, seed, Settings(probing=Probing.RANDOM, suspicion_factor=0))
        group.run(1)  # everybody begins to probe just after this
        group.network.crash("n0")
        del group.nodes["n0"]
        begun_ms = group.network.clock.monotonic_ms()
        seen = group.nodes.values()
        group.network.run(stop=lambda seen=seen: any(node.state_of("n0") is State.DEAD for node in seen))  # type: ignore[misc]
        periods.append(round((group.network.clock.monotonic_ms() - begun_ms) / PERIOD_MS))
    mean = sum(periods) / len(periods)
    assert mean == pytest.approx(1 / (1 - (1 - 1 / 29) ** 29), abs=3 * 0.96 / math.sqrt(len(periods)))


def test_loss_accuses_as_often_as_published_and_suspicion_acquits() -> None:
    """Without suspicion, a probe fails with (1 - q²)(1 - q⁴)^k; with it, hardly any member is lost."""
    loss, size, periods = 0.15, 60, 60
    arrives = 1 - loss
    published = (1 - arrives**2) * (1 - arrives**4) ** 2
    strict = Group(size, 9, Settings(indirect=2, probing=Probing.RANDOM, suspicion_factor=1000), loss)
    strict.run(periods + 1.5)
    accused = sum(node.unanswered for node in strict.nodes.values())
    expected = size * periods * published
    assert abs(accused - expected) < 3.5 * math.sqrt(expected)
    patient = Group(size, 10, Settings(indirect=2), loss)
    patient.run(60)
    dead = sum(change.state is State.DEAD for node in patient.nodes.values() for change in node.changes())
    assert dead <= 0.002 * expected * size  # of all that could have believed it


@pytest.mark.slow
def test_a_thousand_members_agree_on_a_crash() -> None:
    group = Group(1_000, 11)
    group.network.crash("n500")
    del group.nodes["n500"]
    group.run(3)
    found = sum(node.state_of("n500") is not State.ALIVE for node in group.nodes.values())
    assert found >= 1
    group.run(25)
    assert group.states_of("n500") == {State.DEAD}
    assert {len(node.members()) for node in group.nodes.values()} == {998}


def test_the_load_of_a_member_does_not_grow_with_the_group() -> None:
    sent = {}
    for size in (10, 100):
        group = Group(size, 12)
        group.run(20)
        sent[size] = group.network.sent / size / 20
    assert sent[100] == pytest.approx(sent[10], rel=0.05)
    assert sent[10] == pytest.approx(2.0, rel=0.1)  # a ping and an ack each


updates = st.builds(Update, st.sampled_from(["a", "b"]), st.sampled_from(State), st.integers(0, 3))


@given(st.lists(updates, max_size=30), st.randoms())
def test_the_order_of_news_does_not_matter(heard: list[Update], random: Random) -> None:
    """Members that hear the same of somebody they know believe the same in the end."""
    believed = []
    for _ in range(2):
        members = Members(10)
        for name in "ab":
            members.take(Update(name, State.ALIVE, 0))
        for update in heard:
            members.take(update)
        believed.append({name: members.get(name) for name in "ab"})
        heard = random.sample(heard, len(heard))
    assert believed[0] == believed[1]


@given(updates, updates)
def test_of_two_pieces_of_news_at_most_one_overrides_the_other(one: Update, other: Update) -> None:
    assert not (overrides(one, other) and overrides(other, one))


messages = st.one_of(
    st.builds(Ping, st.integers(), st.lists(updates, max_size=40).map(tuple)),
    st.builds(PingRequest, st.integers(), st.text(max_size=300), st.lists(updates, max_size=40).map(tuple)),
    st.builds(Ack, st.integers(), st.lists(updates, max_size=40).map(tuple)),
    st.builds(Gossip, st.lists(updates, max_size=40).map(tuple)),
    st.builds(Join, st.integers(), st.integers()),
    st.builds(Roster, st.lists(updates, max_size=80).map(tuple), st.integers(), st.integers()),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "me", "x" * 300]), messages), max_size=20))
def test_no_message_makes_a_member_fail_or_amplify(heard: list[tuple[Peer, Message]]) -> None:
    clock = ManualClock()
    node = Swim("me", clock, Random(1), Settings(max_members=4, max_relayed=3), ["a", "b"])
    for sender, message in heard:
        sends = node.receive(sender, message)
        assert len(sends) <= 1
        clock.advance(300)
        for send in [*sends, *node.wake()]:
            assert len(getattr(send.message, "news", ())) <= MAX_NEWS
    assert len(node.members()) <= 4
    assert len(node._relayed) <= 3


def test_news_is_passed_on_a_bounded_number_of_times_and_the_freshest_first() -> None:
    news = News()
    news.add(Update("old", State.ALIVE, 1))
    times = 0
    while any(update.member == "old" for update in news.take(MAX_NEWS, 100)):
        times += 1
    assert times == transmissions(100)
    news.add(Update("old", State.ALIVE, 2))
    news.take(1, 100)
    news.add(Update("new", State.DEAD, 1))
    assert [update.member for update in news.take(1, 100)] == ["new"]


def test_acks_that_nobody_asked_for_are_dropped() -> None:
    group = Group(3, 13)
    group.nodes["n0"].receive("n1", Ack(12345))
    assert group.nodes["n0"].dropped == 1


def test_the_longest_gone_make_room_and_a_full_house_refuses() -> None:
    members = Members(2)
    for name in "ab":
        members.take(Update(name, State.ALIVE, 0))
    assert not members.take(Update("c", State.ALIVE, 0))
    assert members.refused == 1
    members.take(Update("a", State.DEAD, 0))
    assert members.take(Update("c", State.ALIVE, 0))
    assert sorted(members) == ["b", "c"]
