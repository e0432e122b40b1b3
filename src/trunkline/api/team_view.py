"""What a member makes of the records of its team, in order: which views and messages to deliver, and who needs a state.

Without input or output: `Membership.take` is given records and says what is to be done, in order. All members see the same
records, so all come to the same conclusions without asking each other.

- A member that joined is *without state* until a state record of its view, or of a later one, has come. Views say who is.
- In each view the first member with state hands it to those without, if there are any: as it is just before that view.
- A joiner keeps what comes, and when the state of view w comes it passes over everything up to w and goes on behind it.
- If nobody in a view would have the state, because all who had it are gone, everybody begins anew with that view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class View:
    """Who is in the team, from the eldest to the youngest."""

    number: int
    members: tuple[str, ...]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewChanged:
    view: View


@dataclass(frozen=True, slots=True)
class Received:
    """A message, in this view."""

    sender: str
    body: object
    type: object
    offset: int


@dataclass(frozen=True, slots=True)
class StateInstalled:
    body: object
    type: object


@dataclass(frozen=True, slots=True)
class StateWanted:
    """This member is to send its state as it is now, before it is told of this view."""

    view: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """The others go on without this member: it was not heard of for too long."""


Step = ViewChanged | Received | StateInstalled | StateWanted | Evicted


class Membership:
    def __init__(self, me: str) -> None:
        self.me = me
        self.view = View(0, ())
        self._joined_at: dict[str, int] = {}  # members without state, and the view that they joined with
        self._installed = False
        self._kept: list[Json] = []  # what came before the state did

    def take(self, record: Json) -> list[Step]:
        kind = record.get("kind")
        if kind == "view":
            return self._take_view(record)
        if kind == "state":
            return self._take_state(record)
        if kind != "message":
            return []
        if not self._installed:
            self._kept.append(record)
            return []
        return [_received(record)]

    def _take_view(self, record: Json) -> list[Step]:
        view = _view(record)
        before = self.view
        self.view = view
        if self.me not in view.members:
            return [Evicted()] if self.me in before.members else []
        self._joined_at = dict(cast("dict[str, int]", record["stateless"]))
        if not self._installed and self.me not in self._joined_at:
            # The first of all, or nobody is left who has the state: it begins with this view.
            self._kept.clear()
            self._installed = True
        if not self._installed:
            self._kept.append(record)
            return []
        changed = ViewChanged(view)
        if self._joined_at and next(member for member in view.members if member not in self._joined_at) == self.me:
            return [StateWanted(view.number), changed]
        return [changed]

    def _take_state(self, record: Json) -> list[Step]:
        number = cast(int, record["view"])
        mine = self._joined_at.get(self.me)
        self._joined_at = {member: at for member, at in self._joined_at.items() if at > number}
        if self._installed or mine is None or mine > number:
            return []
        self._installed = True
        kept, self._kept = self._kept, []
        places = [place for place, each in enumerate(kept) if each.get("kind") == "view" and each["number"] == number]
        steps: list[Step] = [StateInstalled(record.get("body"), record.get("type"))]
        for each in kept[places[0] :] if places else kept:
            if each.get("kind") == "view":
                steps.append(ViewChanged(_view(each)))
            else:
                steps.append(_received(each))
        return steps


def _view(record: Json) -> View:
    members, joined, left = (tuple(cast("list[str]", record[name])) for name in ("members", "joined", "left"))
    return View(cast(int, record["number"]), members, joined, left)


def _received(record: Json) -> Received:
    return Received(str(record["from"]), record.get("body"), record.get("type"), cast(int, record["offset"]))
