"""Patterns over names: regular expressions in RE2's manner, matched in time linear in the name.

For every pattern that a client may give: Kafka matches the subscription of a consumer group and the filter of
ListTransactions with RE2J. Python's `re` backtracks: `(a+)+b` against thirty a's would stop the event loop, and no check
of the text tells all such patterns apart. So a pattern is compiled to a nondeterministic automaton whose state *sets* are
followed one character at a time, and remembered (a lazy DFA).

Supported: literals, `.`, classes with ranges, negation and `\\d \\w \\s`, groups (also `(?:…)`, `(?P<n>…)`, `(?<n>…)`),
`|`, `* + ?` and `{n}`, `{n,}`, `{n,m}` (lazy forms too, which match the same names), `^ $ \\A \\z`, `\\` escapes, and the flag
`(?i)` or `(?s)` at the start. A name must match as a whole, or `anywhere`. Not supported, as in RE2: back-references and
look-around.

Bounds: `max_chars` of text, `_MAX_STATES` after repeats are written out, `_MAX_DEPTH` of nesting, `_MAX_SETS` remembered.
Linear can still be long where every character meets thousands of states, as in `.*a.{900}`: so many may be visited,
`_MAX_VISITS`, in following sets that are not remembered; beyond it a pattern is too costly. Ordinary patterns have a
few dozen sets, which a few names teach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_STATES = 5_000
_MAX_DEPTH = 50
_MAX_REPEAT = 1_000
_MAX_SETS = 10_000  # (state set, character) steps kept; when full, start over
_MAX_VISITS = 1_000_000  # of states, some tenths of a second

CharTest = Callable[[str], bool]


class InvalidPattern(ValueError):
    """The text is not a pattern that we match; says why and where."""


class CostlyPattern(InvalidPattern):
    """Matching these names with it would take too long."""


@dataclass(slots=True)
class _State:
    """Either a step over one character that passes `test`, or free moves (`test` is None), or an assertion of place."""

    test: CharTest | None = None
    next: list[int] = field(default_factory=list)
    at: str = ""  # "start" or "end": a free move only there


class _Node(NamedTuple):
    """A parsed piece: `kind` is char, at, cat, alt or repeat."""

    kind: str
    test: CharTest | None = None
    parts: tuple[_Node, ...] = ()
    low: int = 0
    high: int | None = None
    at: str = ""


class NamePattern:
    def __init__(self, text: str, max_chars: int = 1_000, *, anywhere: bool = False) -> None:
        if len(text) > max_chars:
            raise InvalidPattern(f"pattern has {len(text)} characters, at most {max_chars} are taken")
        self.text = text
        node = _Parser(text).parse()
        if anywhere:
            anything = _Node("repeat", parts=(_Node("char", lambda c: True),), low=0, high=None)
            node = _Node("cat", parts=(anything, node, anything))
        self._states: list[_State] = []
        self._compiled = 0
        self._accept = self._state(_State())
        self._start = self._compile(node, self._accept)
        self._initial = self._closure([self._start], at_start=True, at_end=False)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._ends: dict[frozenset[int], bool] = {}
        self._visits_left = _MAX_VISITS

    def select(self, names: Iterable[str]) -> frozenset[str]:
        """The names that match. Raises CostlyPattern when it takes too long to tell, for all of them together."""
        self._visits_left = _MAX_VISITS
        return frozenset(filter(self.matches, names))

    def matches(self, name: str) -> bool:
        """Does the name match? Raises CostlyPattern when this pattern has taken too long, since `select` or in all."""
        if not name:
            return self._accept in self._closure([self._start], at_start=True, at_end=True)
        current = self._initial
        for character in name:
            key = (current, character)
            following = self._steps.get(key)
            if following is None:
                if len(self._steps) >= _MAX_SETS:
                    self._steps.clear()
                    self._ends.clear()
                following = self._steps[key] = self._step(current, character)
            if not following:
                return False
            current = following
        accepted = self._ends.get(current)
        if accepted is None:
            accepted = self._ends[current] = self._accept in self._closure(current, at_start=False, at_end=True)
        return accepted

    def _step(self, current: frozenset[int], character: str) -> frozenset[int]:
        reached: list[int] = []
        for number in current:
            state = self._states[number]
            if state.test is not None and state.test(character):
                reached += state.next
        following = self._closure(reached, at_start=False, at_end=False)
        self._visits_left -= len(current) + len(following)
        if self._visits_left < 0:
            raise CostlyPattern(f"matching {self.text!r} takes too long")
        return following

    def _closure(self, numbers: list[int] | frozenset[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """Everything reachable by free moves. An unmet `$` stays in the set, for the end of the name to decide."""
        seen = set(numbers)
        stack = list(numbers)
        while stack:
            state = self._states[stack.pop()]
            if state.test is not None or (state.at == "start" and not at_start) or (state.at == "end" and not at_end):
                continue
            for number in state.next:
                if number not in seen:
                    seen.add(number)
                    stack.append(number)
        return frozenset(seen)

    def _state(self, state: _State) -> int:
        if len(self._states) >= _MAX_STATES:
            raise InvalidPattern("pattern is too large once its repeats are written out")
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, node: _Node, then: int) -> int:
        """Add states for `node` that lead to `then`; returns where it begins."""
        self._compiled += 1
        if self._compiled > 4 * _MAX_STATES:  # repeats of nothing add no states
            raise InvalidPattern("pattern is too large once its repeats are written out")
        if node.kind == "char":
            return self._state(_State(node.test, [then]))
        if node.kind == "at":
            return self._state(_State(None, [then], node.at))
        if node.kind == "cat":
            for part in reversed(node.parts):
                then = self._compile(part, then)
            return then
        if node.kind == "alt":
            return self._state(_State(None, [self._compile(part, then) for part in node.parts]))
        (part,) = node.parts
        if node.high is None:
            loop = self._state(_State(None, [then]))
            self._states[loop].next.append(self._compile(part, loop))
            then = loop
        else:
            for _ in range(node.high - node.low):
                then = self._state(_State(None, [then, self._compile(part, then)]))
        for _ in range(node.low):
            then = self._compile(part, then)
        return then


_ESCAPED_CLASSES: dict[str, CharTest] = {
    "d": lambda c: "0" <= c <= "9",
    "D": lambda c: not "0" <= c <= "9",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "W": lambda c: not (c == "_" or (c.isascii() and c.isalnum())),
    "s": lambda c: c in " \t\n\r\f\v",
    "S": lambda c: c not in " \t\n\r\f\v",
}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._fold_case = False

    def parse(self) -> _Node:
        while self._text.startswith("(?", self._position):
            end = self._text.find(")", self._position)
            flags = self._text[self._position + 2 : end] if end > 0 else ""
            if not flags or set(flags) - set("is"):
                break
            self._fold_case |= "i" in flags
            self._position = end + 1
        node = self._alternatives(0)
        if self._position < len(self._text):
            raise self._wrong("unmatched )")
        return node

    def _alternatives(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise self._wrong("groups are nested too deeply")
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else _Node("alt", parts=tuple(branches))

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while self._position < len(self._text) and self._text[self._position] not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else _Node("cat", parts=tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # lazy: the same names match
        if node.kind == "at":
            raise self._wrong("nothing to repeat")
        if self._bounds() is not None:
            raise self._wrong("a repeat of a repeat")
        return _Node("repeat", parts=(node,), low=bounds[0], high=bounds[1])

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        end = self._text.find("}", self._position)
        if not self._text.startswith("{", self._position) or end < 0:
            return None
        low_text, comma, high_text = self._text[self._position + 1 : end].partition(",")
        if not _is_count(low_text) or (high_text and not _is_count(high_text)):
            return None  # a brace that is no repeat is a literal, as in RE2
        low = int(low_text)
        high = (int(high_text) if high_text else None) if comma else low
        if max(low, high or 0) > _MAX_REPEAT:
            raise self._wrong(f"a repeat of more than {_MAX_REPEAT}")
        if high is not None and high < low:
            raise self._wrong("a repeat whose bounds are the wrong way round")
        self._position = end + 1
        return low, high

    def _atom(self, depth: int) -> _Node:
        character = self._next()
        if character == "(":
            return self._group(depth)
        if character == "[":
            return _Node("char", self._class())
        if character == ".":
            return _Node("char", lambda c: c != "\n")
        if character == "^":
            return _Node("at", at="start")
        if character == "$":
            return _Node("at", at="end")
        if character in "*+?":
            raise self._wrong("nothing to repeat")
        if character == "\\":
            return self._escape()
        return self._literal(character)

    def _group(self, depth: int) -> _Node:
        if self._take("?"):
            if self._take("P<") or (self._take("<") and not self._text.startswith(("=", "!"), self._position)):
                end = self._text.find(">", self._position)
                if end < 0 or not self._text[self._position : end].isidentifier():
                    raise self._wrong("a group name that is none")
                self._position = end + 1
            elif not self._take(":"):
                raise self._wrong("look-around, and flags inside a pattern, are not supported")
        node = self._alternatives(depth + 1)
        if not self._take(")"):
            raise self._wrong("missing )")
        return node if node.kind != "at" else _Node("cat", parts=(node,))

    def _escape(self) -> _Node:
        character = self._next()
        if character == "Q":
            return self._quoted()
        if character == "A":
            return _Node("at", at="start")
        if character in "zZ":
            return _Node("at", at="end")
        test = _ESCAPED_CLASSES.get(character)
        if test is not None:
            return _Node("char", test)
        return self._literal(self._escaped_literal(character))

    def _quoted(self) -> _Node:
        end = self._text.find("\\E", self._position)
        quoted = self._text[self._position :] if end < 0 else self._text[self._position : end]
        self._position = len(self._text) if end < 0 else end + 2
        return _Node("cat", parts=tuple(self._literal(character) for character in quoted))

    def _escaped_literal(self, character: str) -> str:
        if character in _CONTROL:
            return _CONTROL[character]
        if character.isascii() and character.isalnum():
            raise self._wrong(f"\\{character} is not supported")
        return character

    def _literal(self, character: str) -> _Node:
        return _Node("char", self._fold(lambda c: c == character, character))

    def _fold(self, test: CharTest, example: str = "") -> CharTest:
        if not self._fold_case or (example and example.lower() == example.upper()):
            return test
        return lambda c: test(c) or test(c.lower()) or test(c.upper())

    def _class(self) -> CharTest:
        negated = self._take("^")
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        tests: list[CharTest] = []
        first = True
        while first or not self._text.startswith("]", self._position):
            first = False
            low = self._class_member(tests)
            if low is None:
                continue
            following = self._text[self._position + 1 : self._position + 2]
            if self._text.startswith("-", self._position) and following not in ("]", ""):
                self._position += 1
                high = self._class_member([])
                if high is None or high < low:
                    raise self._wrong("a range that is none")
                ranges.append((low, high))
            else:
                singles.add(low)
        self._position += 1

        def within(c: str) -> bool:
            return c in singles or any(low <= c <= high for low, high in ranges) or any(test(c) for test in tests)

        folded = self._fold(within)
        return (lambda c: not folded(c)) if negated else folded

    def _class_member(self, tests: list[CharTest]) -> str | None:
        """One character of a class; None when it was a class of its own, such as \\d."""
        character = self._next("missing ]")
        if character == "[" and self._text.startswith(":", self._position):
            raise self._wrong("[:named:] classes are not supported")
        if character != "\\":
            return character
        escaped = self._next()
        test = _ESCAPED_CLASSES.get(escaped)
        if test is not None:
            tests.append(test)
            return None
        return self._escaped_literal(escaped)

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._position):
            self._position += len(text)
            return True
        return False

    def _next(self, missing: str = "pattern ends too early") -> str:
        if self._position >= len(self._text):
            raise self._wrong(missing)
        character = self._text[self._position]
        self._position += 1
        return character

    def _wrong(self, why: str) -> InvalidPattern:
        return InvalidPattern(f"{why}, at character {self._position} of {self._text!r}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
