"""The content index: which filters are true for a publication, without asking each.

A filter is taken apart into conjunctions (`conjunctions`), each into predicates (`predicates`), and these lie in one tree,
under whichever of their predicates tells the most apart (`rule_tree`). So the cost of a publication grows with the fields
that filters name and with what is found, not with the filters that ask for other values or other ranges. The weak spot, on
purpose: a conjunction with neither an equality nor a range (only `a like '%x'`, `a <> 1`, `a is null`, `a + b > 5`) is
tested for every publication; `residual_count` says how many there are.

Equal filters are held once, however many values are bound to them, and only as text beside their predicates: about 0.7 KB
for a filter of an equality and a range, and 50 us to add it, parsing included.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar, cast

from trunkline.routing.conjunctions import conjunctions_of
from trunkline.routing.fields import Fields
from trunkline.routing.filter import Filter, compile_condition
from trunkline.routing.predicates import Predicates, predicates_of
from trunkline.routing.rule_tree import NO_SLOT, Rule, RuleTree

T = TypeVar("T", bound=Hashable)


class _Entry:
    """One distinct filter and the values bound to it: nearly always one, so a dictionary waits for the second."""

    __slots__ = ("more", "rules", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        self.more: dict[object, None] | None = None
        self.rules: tuple[Rule, ...] = ()

    def values(self) -> tuple[object, ...]:
        return (self.value,) if self.more is None else tuple(self.more)


class ContentIndex(Generic[T]):
    """Values bound to filters. `steps` counts nodes and candidates of all matches so far."""

    __slots__ = ("_entries", "_size", "_tree")

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._tree = RuleTree()
        self._size = 0

    def __len__(self) -> int:
        """The number of (filter, value) pairs."""
        return self._size

    @property
    def steps(self) -> int:
        return self._tree.steps

    @property
    def residual_count(self) -> int:
        """Conjunctions that are tested for every publication."""
        rules = self._tree.root.rules
        return sum(not rule.equality_slots and rule.slot_a < 0 and rule.text_slot < 0 for rule in rules)

    def is_empty(self) -> bool:
        """Whether nothing is left behind, for those who test that."""
        return not self._entries and self._tree.is_empty()

    def add(self, filter_: Filter, value: T) -> bool:
        """Bind the value; False if it was bound to this filter already."""
        entry = self._entries.get(filter_.text)
        if entry is None:
            entry = self._entries[filter_.text] = _Entry(value)
            entry.rules = tuple(self._rules(entry, filter_))
            for rule in entry.rules:
                self._tree.add(rule)
        elif entry.more is None:
            if entry.value == value:
                return False
            entry.more = {entry.value: None, value: None}
        elif value in entry.more:
            return False
        else:
            entry.more[value] = None
        self._size += 1
        return True

    def remove(self, filter_: Filter, value: T) -> bool:
        """Unbind the value; False if it was not bound to this filter."""
        entry = self._entries.get(filter_.text)
        if entry is None:
            return False
        if entry.more is None:
            if entry.value != value:
                return False
            del self._entries[filter_.text]
            for rule in entry.rules:
                self._tree.remove(rule)
        elif value not in entry.more:
            return False
        else:
            del entry.more[value]
            if len(entry.more) == 1:
                entry.value = next(iter(entry.more))
                entry.more = None
        self._size -= 1
        return True

    def filters(self) -> Iterator[tuple[Filter, T]]:
        """All (filter, value) pairs. The index must not change meanwhile."""
        for text, entry in self._entries.items():
            for value in entry.values():
                yield Filter(text), cast(T, value)

    def match(self, fields: Fields) -> tuple[T, ...]:
        """The values of all filters that are true for the fields, each once."""
        entries = cast("list[_Entry]", self._tree.search(fields))
        found: dict[object, None] = {}
        for entry in entries:
            if entry.more is None:
                found[entry.value] = None
            else:
                found.update(entry.more)
        return cast("tuple[T, ...]", tuple(found))

    def _rules(self, entry: _Entry, filter_: Filter) -> Iterator[Rule]:
        for conjunction in conjunctions_of(filter_.condition):
            predicates = predicates_of(conjunction)
            if predicates is not None:
                yield self._rule(entry, predicates)

    def _rule(self, entry: _Entry, predicates: Predicates) -> Rule:
        slot_of = self._tree.slot_of
        ranges = [(slot_of(path), low, high) for path, low, high in predicates.ranges]
        text_slot, interval = NO_SLOT, None
        if predicates.text_range is not None:
            path, interval = predicates.text_range
            text_slot = slot_of(path)
        slots = tuple([slot_of(path) for path in predicates.paths])
        tests = tuple([compile_condition(condition) for condition in predicates.rest])
        return Rule(entry, slots, predicates.keys, ranges, text_slot, interval, tests)
