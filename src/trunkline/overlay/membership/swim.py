"""SWIM: who is alive, found out by probing one member a period, and spread on the probes themselves.

Das, Gupta, Motivala, "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership Protocol" (2002).

    t                      ping a member, the next in a shuffled order
    t + timeout            no ack: ask k others to ping it for us (indirect probe)
    t + period             still none: suspect it, and tell everybody
    + suspicion time       it did not refute: dead, and everybody is told

Rules:
1. Load per member and period is constant: one ping, at most k indirect ones, whatever the size of the group. While there is
   news, a few messages that carry nothing else are added (memberlist does so): on the probes alone, a refutation often
   comes too late on a lossy network.
2. A member that hears that it is suspected or dead raises its incarnation and says that it is alive. Others say so too to
   whoever has missed it.
3. An ack counts only with the number of a probe that is under way, and only from the one who was asked. News of the sender
   in a message is news like any other: nobody is believed to be alive because a message came.
4. A member that is first heard of is told what this node knows in pages (`Roster`), at its request (`Join`).
5. Now and then a member that is believed dead is knocked at with that belief: after a cut between two halves of the group has
   healed, it refutes, and the halves are one group again.
6. Everything is bounded: members, news in a message, relayed probes, roster pages. What exceeds a bound is dropped and counted.

The first to find out a crash does so, in the mean, e/(e-1) periods after it. With random probing and without suspicion, a probe
accuses a living member with the probability (1 - q²)(1 - q⁴)^k, q being that of a message to arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import NamedTuple, TypeAlias

from trunkline.clock import Clock
from trunkline.deadlines import Deadlines
from trunkline.overlay.machine import Peer, Send
from trunkline.overlay.membership.members import MAX_INCARNATION, Members, State, Update
from trunkline.overlay.membership.news import News

MAX_NEWS = 32
"""Pieces of news in a message: about as many as fit into a datagram."""
MAX_ROSTER = 32
MAX_PEER_CHARACTERS = 255
_KNOCK = 0.1
"""In which part of the periods one of the dead is knocked at."""


class Probing(Enum):
    SHUFFLED = "shuffled"
    """Round after round in a new random order: a crash is found by everybody within 2N - 1 periods."""
    RANDOM = "random"
    """Anybody each time, as in the analysis of the published figures."""


@dataclass(frozen=True)
class Settings:
    period_ms: float = 1_000.0
    timeout_ms: float = 500.0
    """How long to wait for a direct ack; indirect ones have until the end of the period."""
    indirect: int = 3
    suspicion_factor: float = 4.0
    """A suspect has factor · log10(N + 1) periods, at least factor of them, to refute; 0: it is dead at once."""
    gossip_ms: float = 200.0
    gossip_fanout: int = 3
    """While there is news, it is also sent to so many random members each gossip_ms; 0: it only rides on probes."""
    probing: Probing = Probing.SHUFFLED
    max_members: int = 10_000
    max_relayed: int = 1_000

    def __post_init__(self) -> None:
        if not 0 < self.timeout_ms < self.period_ms:
            raise ValueError("the time-out of a ping is shorter than the period")
        if self.gossip_ms <= 0 or self.gossip_fanout < 0:
            raise ValueError("gossip has an interval, and goes to some or none")
        if self.indirect < 0 or self.suspicion_factor < 0 or self.max_members < 1 or self.max_relayed < 1:
            raise ValueError("counts and factors are not negative")

    def suspicion_ms(self, group_size: int) -> float:
        return self.suspicion_factor * max(1.0, math.log10(group_size + 1)) * self.period_ms


class Ping(NamedTuple):
    number: int
    news: tuple[Update, ...] = ()


class PingRequest(NamedTuple):
    number: int
    target: Peer
    news: tuple[Update, ...] = ()


class Ack(NamedTuple):
    number: int
    news: tuple[Update, ...] = ()


class Gossip(NamedTuple):
    news: tuple[Update, ...]


class Join(NamedTuple):
    incarnation: int
    start: int = 0
    """Of which page of the roster on."""


class Roster(NamedTuple):
    news: tuple[Update, ...]
    start: int
    total: int


Message: TypeAlias = Ping | PingRequest | Ack | Gossip | Join | Roster


class _Due(NamedTuple):
    what: str  # period, timeout, gossip, suspicion, relayed
    key: Peer = ""


class _Probe(NamedTuple):
    number: int
    target: Peer
    asked: frozenset[Peer]
    """Who may acknowledge: the target itself, and those who ping it for us."""


class _Relayed(NamedTuple):
    asker: Peer
    number: int
    target: Peer


class Swim:
    """The machine of one member."""

    def __init__(
        self, own: Peer, clock: Clock, random: Random, settings: Settings | None = None, known: Iterable[Peer] = ()
    ) -> None:
        """`known` are believed to be alive from the start; others come by `join` and by hearsay."""
        self.own = own
        self.incarnation = 0
        self.dropped = 0
        """Messages that were out of bounds, or acks that belonged to no probe."""
        self.probes = 0
        self.unanswered = 0
        """Probes that ended without an ack, direct or indirect."""
        self._settings = settings or Settings()
        self._clock = clock
        self._random = random
        self._members = Members(self._settings.max_members)
        self._news = News()
        self._order: list[Peer] = []
        self._probe: _Probe | None = None
        self._number = random.getrandbits(32)
        self._knock: int | None = None  # the number of the last ping to one of the dead
        self._relayed: dict[int, _Relayed] = {}
        self._due: Deadlines[_Due] = Deadlines()
        self._changes: list[Update] = []
        self._left = False
        for member in known:
            if member != own:
                self._members.take(Update(member, State.ALIVE, 0))
        self._due.set(_Due("period"), clock.monotonic_ms() + self._settings.period_ms)

    def members(self) -> list[Peer]:
        """Who is believed to be there, suspects included, without this one."""
        return list(self._members)

    def state_of(self, member: Peer) -> State | None:
        believed = self._members.get(member)
        return None if believed is None else believed.state

    def changes(self) -> list[Update]:
        """What has changed since this was asked last."""
        changes, self._changes = self._changes, []
        return changes

    def join(self, seed: Peer) -> list[Send[Message]]:
        """Make this node known to a member, which answers with those it knows. Repeat it until there are members."""
        return [Send(seed, Join(self.incarnation))]

    def leave(self) -> list[Send[Message]]:
        """Tell a few that this one goes; they tell the others."""
        self._left = True
        self._due.clear()
        gone = Update(self.own, State.LEFT, self.incarnation)
        peers = list(self._members)
        chosen = self._random.sample(peers, min(len(peers), self._settings.indirect + 1))
        return [Send(peer, Ping(self._next_number(), (gone,))) for peer in chosen]

    def next_ms(self) -> float | None:
        return self._due.next_ms()

    def wake(self) -> list[Send[Message]]:
        sends: list[Send[Message]] = []
        for due in self._due.due(self._clock.monotonic_ms()):
            if due.what == "period":
                sends += self._begin_period()
            elif due.what == "timeout":
                sends += self._probe_indirectly()
            elif due.what == "gossip":
                sends += self._gossip()
            elif due.what == "suspicion":
                self._declare_dead(due.key)
            else:
                self._relayed.pop(int(due.key), None)
        return sends

    def receive(self, sender: Peer, message: Message) -> list[Send[Message]]:
        if self._left:
            return []
        if not _in_bounds(sender, message):
            self.dropped += 1
            return []
        if isinstance(message, Join):
            return self._welcome(sender, message)
        for update in message.news:
            self._hear(update)
        if isinstance(message, Ping):
            return [Send(sender, Ack(message.number, self._take_news()))]
        if isinstance(message, PingRequest):
            return self._relay(sender, message)
        if isinstance(message, Ack):
            return self._acknowledge(sender, message)
        if isinstance(message, Gossip):
            return []
        following = message.start + len(message.news)
        return [Send(sender, Join(self.incarnation, following))] if message.news and following < message.total else []

    # -- probing

    def _begin_period(self) -> list[Send[Message]]:
        now_ms = self._clock.monotonic_ms()
        self._due.set(_Due("period"), now_ms + self._settings.period_ms)
        if self._probe is not None:
            self.unanswered += 1
            self._suspect(self._probe.target)
            self._probe = None
        sends = self._knock_at_the_dead()
        target = self._next_target()
        if target is None:
            return sends
        number = self._next_number()
        self.probes += 1
        self._probe = _Probe(number, target, frozenset((target,)))
        self._due.set(_Due("timeout"), now_ms + self._settings.timeout_ms)
        news = self._take_news()
        believed = self._members.get(target)
        if believed is not None and believed.state is State.SUSPECT and believed not in news:
            news = (believed, *news[: MAX_NEWS - 1])  # who is suspected hears of it, and can refute it
        return [*sends, Send(target, Ping(number, news))]

    def _knock_at_the_dead(self) -> list[Send[Message]]:
        dead = self._members.dead()
        if not dead or self._random.random() >= _KNOCK:
            return []
        believed = self._random.choice(dead)
        self._knock = self._next_number()
        return [Send(believed.member, Ping(self._knock, (believed,)))]

    def _next_target(self) -> Peer | None:
        if self._settings.probing is Probing.RANDOM:
            peers = list(self._members)
            return self._random.choice(peers) if peers else None
        for _ in range(2):
            while self._order:
                target = self._order.pop()
                if target in self._members:
                    return target
            self._order = list(self._members)
            self._random.shuffle(self._order)
        return None

    def _probe_indirectly(self) -> list[Send[Message]]:
        probe = self._probe
        if probe is None:
            return []
        peers = [peer for peer in self._members if peer != probe.target]
        chosen = self._random.sample(peers, min(len(peers), self._settings.indirect))
        self._probe = probe._replace(asked=probe.asked | frozenset(chosen))
        return [Send(peer, PingRequest(probe.number, probe.target, self._take_news())) for peer in chosen]

    def _relay(self, asker: Peer, request: PingRequest) -> list[Send[Message]]:
        if len(self._relayed) >= self._settings.max_relayed:
            self.dropped += 1
            return []
        number = self._next_number()
        self._relayed[number] = _Relayed(asker, request.number, request.target)
        self._due.set(_Due("relayed", str(number)), self._clock.monotonic_ms() + self._settings.period_ms)
        return [Send(request.target, Ping(number, self._take_news()))]

    def _acknowledge(self, sender: Peer, ack: Ack) -> list[Send[Message]]:
        probe = self._probe
        if probe is not None and ack.number == probe.number and sender in probe.asked:
            self._probe = None
            self._due.cancel(_Due("timeout"))
            return []
        relayed = self._relayed.get(ack.number)
        if relayed is not None and relayed.target == sender:
            del self._relayed[ack.number]
            self._due.cancel(_Due("relayed", str(ack.number)))
            return [Send(relayed.asker, Ack(relayed.number, self._take_news()))]
        if ack.number != self._knock:
            self.dropped += 1
        return []

    # -- what is believed

    def _suspect(self, member: Peer) -> None:
        believed = self._members.get(member)
        if believed is not None and believed.state is State.ALIVE:
            self._hear(Update(member, State.SUSPECT, believed.incarnation))

    def _declare_dead(self, member: Peer) -> None:
        believed = self._members.get(member)
        if believed is not None and believed.state is State.SUSPECT:
            self._hear(Update(member, State.DEAD, believed.incarnation))

    def _hear(self, update: Update) -> None:
        if update.member == self.own:
            self._hear_of_self(update)
        elif self._members.take(update):
            self._tell(update)
            self._changes.append(update)
            if update.state is State.SUSPECT:
                after_ms = self._settings.suspicion_ms(len(self._members) + 1)
                if after_ms > 0:
                    self._due.set(_Due("suspicion", update.member), self._clock.monotonic_ms() + after_ms)
                else:
                    self._declare_dead(update.member)
            else:
                self._due.cancel(_Due("suspicion", update.member))
        else:
            self._contradict(update)

    def _contradict(self, update: Update) -> None:
        """Whoever still says that somebody is suspect or dead who has refuted it has missed that: say it again."""
        believed = self._members.get(update.member)
        if believed is not None and update.state > State.ALIVE and update.incarnation < believed.incarnation:
            self._tell(believed)

    def _hear_of_self(self, update: Update) -> None:
        if update.state is State.ALIVE and update.incarnation <= self.incarnation:
            return
        self.incarnation = max(self.incarnation, update.incarnation + 1)
        self._tell(Update(self.own, State.ALIVE, self.incarnation))

    # -- telling the others

    def _tell(self, update: Update) -> None:
        self._news.add(update)
        if self._settings.gossip_fanout and _Due("gossip") not in self._due:
            self._due.set(_Due("gossip"), self._clock.monotonic_ms() + self._settings.gossip_ms)

    def _gossip(self) -> list[Send[Message]]:
        if not len(self._news):
            return []
        self._due.set(_Due("gossip"), self._clock.monotonic_ms() + self._settings.gossip_ms)
        peers = list(self._members)
        chosen = self._random.sample(peers, min(len(peers), self._settings.gossip_fanout))
        return [Send(peer, Gossip(news)) for peer in chosen if (news := self._take_news())]

    # -- joining

    def _welcome(self, sender: Peer, join: Join) -> list[Send[Message]]:
        believed = self._members.get(sender)
        incarnation = join.incarnation
        if believed is not None and not believed.state.is_present:
            incarnation = max(incarnation, believed.incarnation + 1)  # it came back, perhaps without its memory
        self._hear(Update(sender, State.ALIVE, incarnation))
        roster = [Update(self.own, State.ALIVE, self.incarnation)]
        roster += self._members.present()
        page = tuple(roster[join.start : join.start + MAX_ROSTER])
        return [Send(sender, Roster(page, join.start, len(roster)))]

    def _take_news(self) -> tuple[Update, ...]:
        return self._news.take(MAX_NEWS, len(self._members) + 1)

    def _next_number(self) -> int:
        self._number = (self._number + 1) & 0xFFFFFFFF
        return self._number


def _in_bounds(sender: Peer, message: Message) -> bool:
    if len(sender) > MAX_PEER_CHARACTERS:
        return False
    if isinstance(message, Join):
        return 0 <= message.incarnation < MAX_INCARNATION and message.start >= 0
    most = MAX_ROSTER if isinstance(message, Roster) else MAX_NEWS
    if isinstance(message, PingRequest) and not 0 < len(message.target) <= MAX_PEER_CHARACTERS:
        return False
    return len(message.news) <= most and all(
        0 <= update.incarnation < MAX_INCARNATION and 0 < len(update.member) <= MAX_PEER_CHARACTERS
        for update in message.news
    )
