"""A team: processes that get the same messages and the same views of who is there, in the same order.

Everything that concerns a team is a record of one topic: a *view* (who is in it from here on), a *message*, a *state* that a
member hands to those who joined. Members read the topic in order. So all of them see one sequence of views and messages, and
between two views the same messages: virtual synchrony is the order of the log. It is a total order, and it contains the causal
and the first-in-first-out one: what somebody sends after he has received something stands behind it.

Membership is decided here. Who joins is in the next view; who leaves, or was not heard of for its lease (every question is a
sign of life), is in none after it, and what it sends then is refused. A member that was only cut off finds the view
without it when it comes back, and joins anew.

A joiner needs the state that the others have reached at its view. The first member of that view takes it when it comes to the view,
and sends it as a record that says of which view it is; the joiner passes over everything up to that view. If that member dies, the next
view is without it, and the first of that one does so. A view says who has no state yet; if that would be everybody, they begin anew.

A message has its sender's number, so that one sent again after a lost connection is not there twice. In a closed team only
members send.

    topic       team.<name>, or team.<virtual host>.<name>
    record      value: JSON {"kind": "view" | "message" | "state", …}; body and type of messages and states beside it
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from trunkline.broker.messaging import refusals
from trunkline.broker.shared.log import SharedLog
from trunkline.clock import Clock
from trunkline.log.records import NO_HEADERS, LightNewRecord, LightRecord
from trunkline.log.store import LogStore

MAX_MEMBERS: Final = 1_000
MAX_BODY_CHARS: Final = 16 << 20  # of a message or a state, in base64
MIN_LEASE_MS: Final = 200
MAX_LEASE_MS: Final = 600_000
_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": str(86_400_000), "segment.bytes": str(16 << 20)}

Json = dict[str, object]


class Team(SharedLog):
    def __init__(self, store: LogStore, clock: Clock, topic: str) -> None:
        super().__init__(store, clock, topic, _CONFIG)
        self._clock = clock
        self.members: list[str] = []  # in the order in which they came
        self.view = 0
        self.closed = False
        self._stateless: dict[str, int] = {}  # members that have no state yet, and the view that they joined with
        self._last_sent: dict[str, int] = {}  # sender -> the number of its last message
        self._leases_ms: dict[str, int] = {}
        self._deadlines_ms: dict[str, float] = {}

    def fold(self, record: LightRecord) -> None:
        document = read_document(record)
        if document is None:
            return
        if document.get("kind") == "view":
            members, leases, stateless = (document.get(name) for name in ("members", "leases", "stateless"))
            if not isinstance(members, list) or not isinstance(leases, dict) or not isinstance(stateless, dict):
                return
            self._stateless = {str(member): int(view) for member, view in stateless.items()}
            self.members = [str(member) for member in members]
            number = document.get("number")
            self.view = number if isinstance(number, int) else self.view + 1
            self.closed = document.get("closed") is True
            self._leases_ms = {str(member): int(lease) for member, lease in leases.items()}
            self._last_sent = {sender: at for sender, at in self._last_sent.items() if sender in self._leases_ms}
            for gone in self._deadlines_ms.keys() - self._leases_ms.keys():
                del self._deadlines_ms[gone]
            for member in self.members:
                if member not in self._deadlines_ms:
                    self.heard_of(member)
        elif document.get("kind") == "message":
            sender, number = document.get("from"), document.get("number")
            if isinstance(sender, str) and isinstance(number, int):
                self._last_sent[sender] = number
        elif document.get("kind") == "state":
            view = document.get("view")
            if isinstance(view, int):
                self._stateless = {member: at for member, at in self._stateless.items() if at > view}

    # -- membership --------------------------------------------------------------------------------------------------

    async def join(self, member: str, lease_ms: int, *, closed: bool) -> int:
        """The offset of the view with the new member in it."""
        lease_ms = min(max(lease_ms, MIN_LEASE_MS), MAX_LEASE_MS)

        def decision() -> tuple[None, list[LightNewRecord]]:
            if member in self.members:
                raise refusals.precondition(f"'{member}' is a member already")
            if len(self.members) >= MAX_MEMBERS:
                raise refusals.precondition(f"a team has at most {MAX_MEMBERS} members")
            first = not self.members
            leases = {**self._leases_ms, member: lease_ms}
            return None, [
                self._view([*self.members, member], leases, joined=[member], closed=closed if first else self.closed)
            ]

        return (await self.decide(decision))[1]

    async def leave(self, members: Callable[[], list[str]]) -> bool:
        """A view without these, if any of them is a member."""

        def decision() -> tuple[bool, list[LightNewRecord]]:
            going = [member for member in members() if member in self.members]
            if not going:
                return False, []
            rest = [member for member in self.members if member not in going]
            leases = {member: lease for member, lease in self._leases_ms.items() if member in rest}
            return True, [self._view(rest, leases, left=going, closed=self.closed)]

        return (await self.decide(decision))[0]

    def _view(
        self,
        members: list[str],
        leases: dict[str, int],
        *,
        closed: bool,
        joined: list[str] | None = None,
        left: list[str] | None = None,
    ) -> LightNewRecord:
        number = self.view + 1
        stateless = {member: self._stateless[member] for member in members if member in self._stateless}
        stateless.update(dict.fromkeys(joined or [], number))
        if len(stateless) == len(members):
            stateless = {}  # nobody has a state to hand over: they begin anew
        return _record(
            {
                "kind": "view",
                "number": number,
                "stateless": stateless,
                "members": members,
                "joined": joined or [],
                "left": left or [],
                "leases": leases,
                "closed": closed,
            }
        )

    def heard_of(self, member: str) -> None:
        lease_ms = self._leases_ms.get(member)
        if lease_ms is not None:
            self._deadlines_ms[member] = self._clock.monotonic_ms() + lease_ms

    def silent(self) -> list[str]:
        """Members whose lease is over."""
        now_ms = self._clock.monotonic_ms()
        return [member for member, at_ms in self._deadlines_ms.items() if at_ms < now_ms]

    def next_deadline_ms(self) -> float | None:
        return min(self._deadlines_ms.values(), default=None)

    # -- messages ----------------------------------------------------------------------------------------------------

    async def send(self, sender: str, number: int, body: str, kind: str) -> int:
        """The offset of the message; -1 if it was sent already. `body` is base64."""
        _check_body(body)

        def decision() -> tuple[None, list[LightNewRecord]]:
            if sender not in self.members:
                # A stranger's messages have no number: nobody could forget it.
                if self.closed or number:
                    raise refusals.precondition(f"'{sender}' is not a member of the team")
            elif number <= self._last_sent.get(sender, 0):
                return None, []
            document: Json = {"kind": "message", "from": sender, "number": number, "type": kind, "body": body}
            return None, [_record(document)]

        return (await self.decide(decision))[1]

    async def give_state(self, giver: str, view: int, body: str, kind: str) -> None:
        """The state that the giver had at a view, for those who joined with it."""
        _check_body(body)

        def decision() -> tuple[None, list[LightNewRecord]]:
            if giver not in self.members:
                raise refusals.precondition(f"'{giver}' is not a member of the team")
            return None, [_record({"kind": "state", "from": giver, "view": view, "type": kind, "body": body})]

        await self.decide(decision)

    async def receive(self, offset: int, wait_s: float) -> tuple[list[Json], int]:
        """What happened from an offset on, and where to go on; waits for the first so long."""
        records, following = await self.read(offset, wait_s)
        found: list[Json] = []
        for record in records:
            document = read_document(record)
            if document is not None:
                document.pop("leases", None)
                found.append({"offset": record[0], **document})
        return found, following


def read_document(record: LightRecord) -> Json | None:
    """None for what somebody else wrote into the topic."""
    try:
        document = json.loads(record[3] or b"")
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _record(document: Json) -> LightNewRecord:
    return None, json.dumps(document, separators=(",", ":")).encode(), NO_HEADERS, -1


def _check_body(body: str) -> None:
    if len(body) > MAX_BODY_CHARS:
        raise refusals.precondition(f"a team takes messages and states of {MAX_BODY_CHARS * 3 // 4} bytes")
