"""The topic tree: which values are bound to patterns that match a name. One trie serves AMQP bindings and MQTT filters.

A node stands for a prefix of patterns. Its literal continuations are in `children`, the continuation by the one-level
wildcard in `single`, that by the any-levels wildcard in `multi`; `members` are the values of the pattern that ends here.

Matching moves a frontier of nodes through the name, one level at a time. A literal or `single` node has one parent and
follows it by one level, so it enters a frontier once; a `multi` node stays in the frontier, and its set keeps it from
entering twice. So a frontier never holds a node twice, whatever the pattern (`#.#.#`, `*.#.*.#`): a match visits at most
levels x nodes, and no more than the nodes whose prefix matches a prefix of the name. The number of other patterns does
not matter. A `multi` node that nothing follows is a match as soon as it is reached and is not carried along; in MQTT all
are of that kind, so a match there costs the prefixes matched plus the values found.

add, remove: O(levels of the pattern), O(values of that pattern) while those are few. match: as above; O(1) for a name
asked since the last change (`Recent`). patterns: O(all).

Memory: a node is 72 bytes plus its level's string. A lone child is held without a dictionary, and up to FEW values in a
tuple: 1,000,000 filters `site/<n>/temperature` take about 370 bytes each, 1,000,000 values of one filter about 80 each
(beside the values themselves).

Values are unique per pattern and per answer. Answers come in no promised order, but the same tree gives the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from trunkline.routing.dialect import Dialect
from trunkline.routing.limits import MAX_CACHED_NAME_CHARS
from trunkline.routing.recent import Recent

T = TypeVar("T", bound=Hashable)

# Up to this many values of one pattern are a tuple, whose search is linear; more are the keys of a dictionary.
FEW = 8


class _Node(Generic[T]):
    __slots__ = ("children", "level", "members", "multi", "single")

    def __init__(self, level: str) -> None:
        self.level = level
        self.children: dict[str, _Node[T]] | _Node[T] | None = None
        self.single: _Node[T] | None = None
        self.multi: _Node[T] | None = None
        self.members: dict[T, None] | tuple[T, ...] = ()

    def child(self, level: str) -> _Node[T] | None:
        children = self.children
        if isinstance(children, dict):
            return children.get(level)
        return children if children is not None and children.level == level else None

    def attach(self, child: _Node[T]) -> None:
        if self.children is None:
            self.children = child
        elif isinstance(self.children, dict):
            self.children[child.level] = child
        else:
            self.children = {self.children.level: self.children, child.level: child}

    def detach(self, level: str) -> None:
        if isinstance(self.children, dict):
            del self.children[level]
            if len(self.children) == 1:
                self.children = next(iter(self.children.values()))
        else:
            self.children = None

    def leads_nowhere(self) -> bool:
        return self.children is None and self.single is None and self.multi is None


class TopicTree(Generic[T]):
    """Values bound to patterns of one dialect. `nodes_visited` counts the work of matches that no cache answered."""

    __slots__ = ("_recent", "_root", "_size", "dialect", "nodes_visited")

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._root: _Node[T] = _Node("")
        self._size = 0
        self._recent: Recent[str, T] = Recent()
        self.nodes_visited = 0

    def __len__(self) -> int:
        """The number of (pattern, value) pairs."""
        return self._size

    def add(self, pattern: str, value: T) -> bool:
        """Bind the value; False if it was bound to this pattern already. InvalidPattern if the dialect refuses it."""
        node = self._root
        for level in self.dialect.pattern_levels(pattern):
            node = self._next(node, level) or self._grow(node, level)
        members = node.members
        if value in members:
            return False
        if isinstance(members, dict):
            members[value] = None
        elif len(members) < FEW:
            node.members = (*members, value)
        else:
            node.members = dict.fromkeys((*members, value))
        self._size += 1
        self._recent.clear()
        return True

    def remove(self, pattern: str, value: T) -> bool:
        """Unbind the value; False if it was not bound to this pattern."""
        path = [self._root]
        for level in self.dialect.pattern_levels(pattern):
            following = self._next(path[-1], level)
            if following is None:
                return False
            path.append(following)
        node = path[-1]
        members = node.members
        if value not in members:
            return False
        if isinstance(members, dict):
            del members[value]
            if len(members) <= FEW // 2:
                node.members = tuple(members)
        else:
            node.members = tuple(member for member in members if member != value)
        self._prune(path)
        self._size -= 1
        self._recent.clear()
        return True

    def match(self, name: str) -> tuple[T, ...]:
        """The values of all patterns that match the name, each once."""
        answer = self._recent.hot.get(name)
        if answer is not None:
            return answer
        answer = self._recent.get(name)
        if answer is None:
            answer = _merge(self._matching_nodes(name))
            if len(name) <= MAX_CACHED_NAME_CHARS:
                self._recent.put(name, answer)
        return answer

    def patterns(self) -> Iterator[tuple[str, T]]:
        """All (pattern, value) pairs. The tree must not change meanwhile."""
        separator = self.dialect.separator
        stack: list[tuple[str | None, _Node[T]]] = [(None, self._root)]
        while stack:
            prefix, node = stack.pop()
            for value in node.members:
                yield prefix or "", value
            stack.extend(
                (child.level if prefix is None else f"{prefix}{separator}{child.level}", child)
                for child in _continuations(node)
            )

    def _next(self, node: _Node[T], level: str) -> _Node[T] | None:
        if level == self.dialect.single:
            return node.single
        if level == self.dialect.multi:
            return node.multi
        return node.child(level)

    def _grow(self, node: _Node[T], level: str) -> _Node[T]:
        # The wildcard nodes share the dialect's own strings: `_matching_nodes` knows them by identity.
        grown: _Node[T]
        if level == self.dialect.single:
            node.single = grown = _Node(self.dialect.single)
        elif level == self.dialect.multi:
            node.multi = grown = _Node(self.dialect.multi)
        else:
            grown = _Node(level)
            node.attach(grown)
        return grown

    def _prune(self, path: list[_Node[T]]) -> None:
        while len(path) > 1 and not path[-1].members and path[-1].leads_nowhere():
            node = path.pop()
            if node is path[-1].single:
                path[-1].single = None
            elif node is path[-1].multi:
                path[-1].multi = None
            else:
                path[-1].detach(node.level)

    def _matching_nodes(self, name: str) -> dict[_Node[T], None]:
        """The nodes whose pattern matches the name. The module's docstring has the theory."""
        dialect = self.dialect
        multi_level = dialect.multi
        found: dict[_Node[T], None] = {}
        if not name and dialect.strict:
            return found
        levels = name.split(dialect.separator) if name else []
        frontier = [self._root]
        if dialect.hides(name):
            first = self._root.child(levels.pop(0))
            frontier = [] if first is None else [first]
        self._open(frontier, found)
        visited = len(frontier)
        for level in levels:
            following: list[_Node[T]] = []
            opens = False
            for node in frontier:
                children = node.children
                if children is not None:
                    if isinstance(children, dict):
                        child = children.get(level)
                    else:
                        child = children if children.level == level else None
                    if child is not None:
                        following.append(child)
                        opens = opens or child.multi is not None
                child = node.single
                if child is not None:
                    following.append(child)
                    opens = opens or child.multi is not None
                if node.level is multi_level:
                    following.append(node)  # what it opens was opened when it was reached, and stays too
            frontier = following
            if not frontier:
                break
            if opens:
                self._open(frontier, found)
            visited += len(frontier)
        self.nodes_visited += visited
        for node in frontier:
            found[node] = None
        return found

    def _open(self, frontier: list[_Node[T]], found: dict[_Node[T], None]) -> None:
        """Add what can be reached without another level: a `multi` node matches zero levels too."""
        carried: set[_Node[T]] | None = None
        for node in frontier:  # grows while we go, so that chains of `multi` are followed
            multi = node.multi
            if multi is None:
                continue
            if multi.children is None and multi.single is None and multi.multi is None:
                found[multi] = None
                continue
            if carried is None:
                carried = {each for each in frontier if each.level is self.dialect.multi}
            if multi not in carried:
                carried.add(multi)
                frontier.append(multi)


def _continuations(node: _Node[T]) -> Iterator[_Node[T]]:
    if isinstance(node.children, dict):
        yield from node.children.values()
    elif node.children is not None:
        yield node.children
    if node.single is not None:
        yield node.single
    if node.multi is not None:
        yield node.multi


def _merge(nodes: dict[_Node[T], None]) -> tuple[T, ...]:
    groups = [node.members for node in nodes if node.members]
    if not groups:
        return ()
    if len(groups) == 1:
        return tuple(groups[0])
    merged: dict[T, None] = {}
    for group in groups:
        merged.update(group if isinstance(group, dict) else dict.fromkeys(group))
    return tuple(merged)
