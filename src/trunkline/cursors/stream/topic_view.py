"""The topics as one consumer group sees them: what its patterns match, and whether anything it reads has changed.

Matching every topic name is linear in the number of topics, so a pattern's names are kept until `refresh`, which the group
calls when it is told that topics changed, and otherwise every few seconds. Internal topics never match a pattern: nobody who
writes `.*` means them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.pattern import InvalidPattern, TopicPattern
from trunkline.log.store import TopicInfo


class TopicView:
    def __init__(self, topics: Mapping[str, TopicInfo], max_pattern_chars: int) -> None:
        self._topics = topics
        self._max_pattern_chars = max_pattern_chars
        self._patterns: dict[str, tuple[TopicPattern, frozenset[str]]] = {}

    def existing(self, names: Iterable[str]) -> list[TopicInfo]:
        found = (self._topics.get(name) for name in names)
        return [info for info in found if info is not None]

    def matching(self, text: str) -> frozenset[str]:
        """The topics that match a pattern; raises INVALID_REGULAR_EXPRESSION."""
        known = self._patterns.get(text)
        if known is not None:
            return known[1]
        try:
            pattern = TopicPattern(text, self._max_pattern_chars)
        except InvalidPattern as error:
            raise GroupError(GroupErrorName.INVALID_REGULAR_EXPRESSION, str(error)) from None
        names = self._match(pattern)
        self._patterns[text] = (pattern, names)
        return names

    def refresh(self) -> None:
        for text, (pattern, _) in list(self._patterns.items()):
            self._patterns[text] = (pattern, self._match(pattern))

    def keep_only(self, used: set[str]) -> None:
        """Forget the patterns that no member uses any more."""
        for text in self._patterns.keys() - used:
            del self._patterns[text]

    def digest(self, names: Iterable[str]) -> str:
        """Differs when one of these topics appeared, went, was made anew or has grown."""
        digest = hashlib.blake2b(digest_size=8)
        for info in self.existing(sorted(names)):
            digest.update(f"{info.name}\0{info.id.hex}\0{info.partitions}\n".encode())
        return digest.hexdigest()

    def _match(self, pattern: TopicPattern) -> frozenset[str]:
        return frozenset(name for name, info in self._topics.items() if not info.internal and pattern.matches(name))
