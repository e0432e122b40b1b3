"""The rule tree: which conjunctions are true for a publication, found by whatever tells the most of them apart.

A rule is one conjunction: equalities, up to two ranges of numbers, and tests for all else. It always knows all of itself, so
the tree only has to come by it: a rule that is met is checked whole, and where it lies is a matter of speed alone.

A node holds rules in a list. When there are more than SPLIT_AT it is split, once: each rule goes under one of its own
predicates on a field that the way to the node has not used yet, to the child that this leads to,

    equality        by value
    range           by cell. A range that is shorter than width, a power of two, lies under floor(low / width); a number x
                    is in none that do not lie under floor(x / width) or the cell before it. Widths follow the ranges'
                    lengths, so of those met a third and more contain x, and nothing is ever rebuilt
    half a range    by its bound, on a ladder
    range of texts  in an interval index

and to the child that is emptiest, if there is a choice: the predicate that many rules share attracts no more of them. Rules
without such a predicate stay in the node's list. A node goes when its last rule does.

Numbers are compared as floats. Below 2**53 that is exact, and an open end is the next float. Beyond, rounding never turns
the order around, so what is found is a superset, and whoever makes a rule with such a bound gives it an exact test.

add, remove: O(predicates * log n); searching: the fields that rules name at the nodes reached, two look-ups for each width
of a range there, and the rules met. If rules name many fields, only those are looked at that the publication has. Widths
are at most MAX_WIDTHS a field and node: then ranges take a greater width than they need, or count as half a range.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import frexp, inf, isnan, ldexp, nan
from typing import Final, cast, final

from trunkline.routing.fields import FieldPath, Fields
from trunkline.routing.interval_index import Interval, IntervalIndex
from trunkline.routing.ladder import Ladder
from trunkline.routing.limits import MAX_WIDTHS

SPLIT_AT: Final = 16
# From so many fields at one node on, the publication's fields are asked for instead of the node's.
MANY_FIELDS: Final = 32
NO_SLOT: Final = -1
_ROOT: Final = 0
_EQUALITY: Final = 1
_CELL: Final = 2
_LOW: Final = 3
_HIGH: Final = 4
_IN_TEXTS: Final = -1
_LONGEST: Final = 1 << 62


@final
class Rule:
    """One conjunction. `slot_a`, `slot_b`: the fields of its ranges, NO_SLOT if there is none; both ends are included."""

    def __init__(
        self,
        payload: object,
        equality_slots: tuple[int, ...],
        equality_keys: tuple[Hashable, ...],
        ranges: list[tuple[int, float, float]],
        text_slot: int,
        text_interval: Interval | None,
        tests: tuple[Callable[[Fields], bool | None], ...],
    ) -> None:
        assert len(ranges) <= 2
        self.payload = payload
        self.equality_slots = equality_slots
        self.equality_keys = equality_keys
        self.slot_a = self.slot_b = NO_SLOT
        self.low_a = self.low_b = -inf
        self.high_a = self.high_b = inf
        if len(ranges) > 0:
            self.slot_a, self.low_a, self.high_a = ranges[0]
        if len(ranges) > 1:
            self.slot_b, self.low_b, self.high_b = ranges[1]
        self.text_slot = text_slot
        self.text_interval = text_interval
        self.tests = tests
        self.node: Node | None = None
        self.position = 0


@final
class Grid:
    """The ranges of one field at one node."""

    def __init__(self) -> None:
        self.widths: list[float] = []
        self.cells: list[dict[float, Node]] = []
        self.lows: Ladder | None = None  # bounded below only
        self.highs: Ladder | None = None  # bounded above only

    def is_empty(self) -> bool:
        return not self.widths and self.lows is None and self.highs is None

    def place_of(self, length: float) -> int:
        """The place of the width for ranges of this length; it is made if there may be one more. -1: none fits."""
        width = ldexp(1.0, min(max(frexp(length)[1], -1000), 1023))
        larger = -1
        for place in range(len(self.widths)):
            if self.widths[place] == width:
                return place
            if self.widths[place] > width and (larger < 0 or self.widths[place] < self.widths[larger]):
                larger = place
        if len(self.widths) >= MAX_WIDTHS:
            return larger
        self.widths.append(width)
        self.cells.append({})
        return len(self.widths) - 1


@final
class Node:
    def __init__(self, parent: Node | None, kind: int, slot: int, key: Hashable, width: float) -> None:
        self.rules: list[Rule] = []
        self.count = 0  # of rules, here and below
        self.parent = parent
        self.kind = kind
        self.slot = slot
        self.key = key
        self.width = width
        self.is_split = False
        self.equalities: dict[int, dict[Hashable, Node]] | None = None
        self.grids: dict[int, Grid] | None = None
        self.texts: dict[int, IntervalIndex[Rule]] | None = None

    def uses(self, slot: int) -> bool:
        """Whether the way here tells rules apart by this field already."""
        node = self
        while True:
            if node.slot == slot:
                return True
            parent = node.parent
            if parent is None:
                return False
            node = parent

    def drop(self, child: Node) -> None:
        """Forget a child that became empty, and what held only it."""
        if child.kind == _EQUALITY:
            assert self.equalities is not None
            children = self.equalities[child.slot]
            del children[child.key]
            if not children:
                del self.equalities[child.slot]
            return
        assert self.grids is not None
        grid = self.grids[child.slot]
        bound = cast(float, child.key)
        if child.kind == _CELL:
            place = grid.widths.index(child.width)
            cells = grid.cells[place]
            del cells[bound]
            if not cells:
                del grid.widths[place]
                del grid.cells[place]
        elif child.kind == _LOW:
            assert grid.lows is not None
            grid.lows.remove(bound)
            if not len(grid.lows):
                grid.lows = None
        else:
            assert grid.highs is not None
            grid.highs.remove(bound)
            if not len(grid.highs):
                grid.highs = None
        if grid.is_empty():
            del self.grids[child.slot]


@final
class RuleTree:
    """Rules, and the values of the publication that is being looked at. `steps` counts nodes and rules met so far."""

    def __init__(self) -> None:
        self.root = Node(None, _ROOT, NO_SLOT, None, 0.0)
        self.steps = 0
        self._slots: dict[FieldPath, int] = {}
        self._paths: list[FieldPath | None] = []
        self._uses: list[int] = []
        self._free: list[int] = []
        # Slots by what a publication must have at its top if it has the field: a header, or a member of its body.
        self._named: dict[str, list[int]] = {}
        # What the publication has in a slot, read once it is asked for: valid where the stamp is this publication's.
        self._stamps: list[int] = []
        self._stamp = 0
        self._numbers: list[float] = []
        self._keys: list[object] = []
        self._fields: Fields | None = None
        self._present: list[int] | None = None

    def is_empty(self) -> bool:
        root = self.root
        return not (root.rules or root.equalities or root.grids or root.texts or self._slots or self._named)

    # -- fields ------------------------------------------------------------------------------------------------------

    def slot_of(self, path: FieldPath) -> int:
        """The slot of a field, for one more use of it."""
        slot = self._slots.get(path, NO_SLOT)
        if slot >= 0:
            self._uses[slot] += 1
            return slot
        if self._free:
            slot = self._free.pop()
            self._paths[slot] = path
            self._uses[slot] = 1
            self._stamps[slot] = 0
        else:
            slot = len(self._paths)
            self._paths.append(path)
            self._uses.append(1)
            self._stamps.append(0)
            self._numbers.append(nan)
            self._keys.append(None)
        self._slots[path] = slot
        for name in _names_of(path):
            self._named.setdefault(name, []).append(slot)
        return slot

    def _release(self, slot: int) -> None:
        self._uses[slot] -= 1
        if self._uses[slot]:
            return
        path = self._paths[slot]
        assert path is not None
        del self._slots[path]
        self._paths[slot] = None
        self._keys[slot] = None
        self._free.append(slot)
        for name in _names_of(path):
            slots = self._named[name]
            slots.remove(slot)
            if not slots:
                del self._named[name]

    # -- rules -------------------------------------------------------------------------------------------------------

    def add(self, rule: Rule) -> None:
        self._insert(self.root, rule)

    def _insert(self, node: Node, rule: Rule) -> None:
        while True:
            node.count += 1
            if node.is_split:
                child = self._child(node, rule)
                if child is not None:
                    node = child
                    continue
                if rule.text_slot >= 0:
                    self._insert_text(node, rule)
                    return
            rule.node = node
            rule.position = len(node.rules)
            node.rules.append(rule)
            if not node.is_split and len(node.rules) > SPLIT_AT:
                self._split(node)
            return

    def _insert_text(self, node: Node, rule: Rule) -> None:
        assert rule.text_interval is not None
        if node.texts is None:
            node.texts = {}
        index = node.texts.get(rule.text_slot)
        if index is None:
            index = node.texts[rule.text_slot] = IntervalIndex()
        index.add(rule, rule.text_interval, rule)
        rule.node = node
        rule.position = _IN_TEXTS

    def _split(self, node: Node) -> None:
        rules = node.rules
        node.rules = []
        node.is_split = True
        node.count -= len(rules)
        for rule in rules:
            self._insert(node, rule)

    def _child(self, node: Node, rule: Rule) -> Node | None:
        """The child for a rule, made if there is none: the emptiest, in steps of SPLIT_AT, of those it may go to."""
        best: Node | None = None
        best_score = _LONGEST
        slots = rule.equality_slots
        for number in range(len(slots)):
            slot = slots[number]
            if node.uses(slot):
                continue
            key = rule.equality_keys[number]
            if node.equalities is None:
                node.equalities = {}
            children = node.equalities.get(slot)
            child = None if children is None else children.get(key)
            score = 0 if child is None else child.count // SPLIT_AT
            if score < best_score:
                if child is None:
                    child = Node(node, _EQUALITY, slot, key, 0.0)
                best, best_score = child, score
        for number in range(2):
            slot = rule.slot_b if number else rule.slot_a
            if slot < 0 or node.uses(slot):
                continue
            low = rule.low_b if number else rule.low_a
            high = rule.high_b if number else rule.high_a
            child = self._range_child(node, slot, low, high)
            # Half a range contains half of all numbers: it is the last choice.
            score = child.count // SPLIT_AT if child.kind == _CELL else _LONGEST - 1
            if score < best_score:
                best, best_score = child, score
        if best is not None and not best.count:
            self._attach(node, best)
        self._forget_unused(node, rule)
        return best

    def _range_child(self, node: Node, slot: int, low: float, high: float) -> Node:
        if node.grids is None:
            node.grids = {}
        grid = node.grids.get(slot)
        if grid is None:
            grid = node.grids[slot] = Grid()
        length = high - low
        if length < inf:
            place = grid.place_of(length)
            if place >= 0:
                width = grid.widths[place]
                cell = low // width
                child = grid.cells[place].get(cell)
                return Node(node, _CELL, slot, cell, width) if child is None else child
        if low > -inf:
            rung = None if grid.lows is None else grid.lows.rungs.get(low)
            return Node(node, _LOW, slot, low, 0.0) if rung is None else cast(Node, rung)
        rung = None if grid.highs is None else grid.highs.rungs.get(high)
        return Node(node, _HIGH, slot, high, 0.0) if rung is None else cast(Node, rung)

    def _attach(self, node: Node, child: Node) -> None:
        """Put a child that is still empty where it belongs."""
        if child.kind == _EQUALITY:
            assert node.equalities is not None
            children = node.equalities.get(child.slot)
            if children is None:
                children = node.equalities[child.slot] = {}
            children[child.key] = child
            return
        assert node.grids is not None
        grid = node.grids[child.slot]
        bound = cast(float, child.key)
        if child.kind == _CELL:
            grid.cells[grid.widths.index(child.width)][bound] = child
        elif child.kind == _LOW:
            if grid.lows is None:
                grid.lows = Ladder()
            grid.lows.add(bound, child)
        else:
            if grid.highs is None:
                grid.highs = Ladder()
            grid.highs.add(bound, child)

    def _forget_unused(self, node: Node, rule: Rule) -> None:
        """Take back what was made for a predicate that was not chosen."""
        grids = node.grids
        if grids is None:
            return
        for number in range(2):
            slot = rule.slot_b if number else rule.slot_a
            grid = grids.get(slot)
            if grid is None:
                continue
            if grid.cells and not grid.cells[-1]:
                grid.cells.pop()
                grid.widths.pop()
            if grid.is_empty():
                del grids[slot]

    def remove(self, rule: Rule) -> None:
        node = rule.node
        assert node is not None
        rule.node = None
        if rule.position == _IN_TEXTS:
            assert node.texts is not None
            index = node.texts[rule.text_slot]
            index.remove(rule)
            if not len(index):
                del node.texts[rule.text_slot]
        else:
            last = node.rules.pop()
            if last is not rule:
                node.rules[rule.position] = last
                last.position = rule.position
        while True:
            node.count -= 1
            parent = node.parent
            if parent is None:
                node.is_split = node.is_split and node.count > 0
                break
            if not node.count:
                parent.drop(node)
            node = parent
        for slot in rule.equality_slots:
            self._release(slot)
        for slot in (rule.slot_a, rule.slot_b, rule.text_slot):
            if slot >= 0:
                self._release(slot)

    # -- searching ---------------------------------------------------------------------------------------------------

    def search(self, fields: Fields) -> list[object]:
        """The payloads of all rules that are true for the fields; one of several rules as often as it has true ones."""
        self._stamp += 1
        self._fields = fields
        self._present = None
        found: list[object] = []
        self._visit(self.root, found)
        self._fields = None
        return found

    def _read(self, slot: int) -> None:
        path = self._paths[slot]
        assert path is not None
        assert self._fields is not None
        value = self._fields.value(path)
        number = nan
        key: object = value
        if isinstance(value, bool):
            key = (value,)  # or it would be found as 1
        elif isinstance(value, float):
            number = value
        elif isinstance(value, int):
            number = as_float(value)
        self._numbers[slot] = number
        self._keys[slot] = key
        self._stamps[slot] = self._stamp

    def _holds(self, rule: Rule) -> bool:
        slot = rule.slot_a
        if slot >= 0:
            if self._stamps[slot] != self._stamp:
                self._read(slot)
            number = self._numbers[slot]
            if not (rule.low_a <= number <= rule.high_a):
                return False
            slot = rule.slot_b
            if slot >= 0:
                if self._stamps[slot] != self._stamp:
                    self._read(slot)
                number = self._numbers[slot]
                if not (rule.low_b <= number <= rule.high_b):
                    return False
        slots = rule.equality_slots
        for place in range(len(slots)):
            slot = slots[place]
            if self._stamps[slot] != self._stamp:
                self._read(slot)
            if self._keys[slot] != rule.equality_keys[place]:
                return False
        if rule.tests:
            fields = self._fields
            assert fields is not None
            for test in rule.tests:
                if not test(fields):
                    return False
        return True

    def _visit(self, node: Node, found: list[object]) -> None:
        self.steps += 1 + len(node.rules)
        for rule in node.rules:
            if self._holds(rule):
                found.append(rule.payload)  # noqa: PERF401  # compiled, a loop makes no list
        if not node.is_split:
            return
        if node.equalities:
            self._visit_equalities(node.equalities, found)
        if node.grids:
            grids = node.grids
            if len(grids) > MANY_FIELDS:
                for slot in self._present_slots():
                    if slot in grids:
                        self._visit_grid(slot, grids[slot], found)
            else:
                for slot, grid in grids.items():
                    self._visit_grid(slot, grid, found)
        if node.texts:
            self._visit_texts(node.texts, found)

    def _visit_equalities(self, equalities: dict[int, dict[Hashable, Node]], found: list[object]) -> None:
        slots = self._present_slots() if len(equalities) > MANY_FIELDS else list(equalities)
        for slot in slots:
            children = equalities.get(slot)
            if children is None:
                continue
            if self._stamps[slot] != self._stamp:
                self._read(slot)
            key = self._keys[slot]
            if key is not None:
                child = children.get(key)
                if child is not None:
                    self._visit(child, found)

    def _visit_grid(self, slot: int, grid: Grid, found: list[object]) -> None:
        if self._stamps[slot] != self._stamp:
            self._read(slot)
        number = self._numbers[slot]
        if isnan(number):
            return
        if -inf < number < inf:
            for place in range(len(grid.widths)):
                cells = grid.cells[place]
                cell = number // grid.widths[place]
                child = cells.get(cell - 1.0)
                if child is not None:
                    self._visit(child, found)
                child = cells.get(cell)
                if child is not None:
                    self._visit(child, found)
        if grid.lows is not None:
            for rung in grid.lows.up_to(number):
                self._visit(cast(Node, rung), found)
        if grid.highs is not None:
            for rung in grid.highs.at_least(number):
                self._visit(cast(Node, rung), found)

    def _visit_texts(self, texts: dict[int, IntervalIndex[Rule]], found: list[object]) -> None:
        slots = self._present_slots() if len(texts) > MANY_FIELDS else list(texts)
        for slot in slots:
            index = texts.get(slot)
            if index is None:
                continue
            if self._stamps[slot] != self._stamp:
                self._read(slot)
            text = self._keys[slot]
            if isinstance(text, str):
                before = index.steps
                for rule in index.containing(text):
                    self.steps += 1
                    if self._holds(rule):
                        found.append(rule.payload)
                self.steps += index.steps - before

    def _present_slots(self) -> list[int]:
        """The slots of fields that the publication may have."""
        present = self._present
        if present is None:
            assert self._fields is not None
            slots: set[int] = set()
            for name in self._fields.shared_names(self._named):
                slots.update(self._named[name])
            present = self._present = list(slots)
        return present


def as_float(value: int) -> float:
    """The nearest float; beyond all floats, infinity."""
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _names_of(path: FieldPath) -> set[str]:
    names = {path.text}
    first = path.steps[0]
    if isinstance(first, str):
        names.add(first)
    return names
