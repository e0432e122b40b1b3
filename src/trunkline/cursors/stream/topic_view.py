"""The topics as one consumer group sees them: what its patterns match, and whether anything it reads has changed.

Matching every topic name is linear in the number of topics, so a pattern's names are kept until `refresh`, which the group
calls when it is told that topics changed, and otherwise every few seconds. As in Kafka `.*` is every topic, Kafka's own
`__consumer_offsets` included; topics that hold the state of this broker, of which Kafka knows nothing, never match.

A pattern that takes too long to match is refused to the member that brings it. One that is in use already, and becomes
too costly as topics are added, goes on with the topics that it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.log.names import READABLE_TOPICS, RESERVED_TOPICS
from trunkline.log.store import TopicInfo
from trunkline.pattern import CostlyPattern, InvalidPattern, NamePattern


class TopicView:
    def __init__(self, topics: Mapping[str, TopicInfo], max_pattern_chars: int) -> None:
        self._topics = topics
        self._max_pattern_chars = max_pattern_chars
        self._patterns: dict[str, tuple[NamePattern, frozenset[str]]] = {}

    def existing(self, names: Iterable[str]) -> list[TopicInfo]:
        found = (self._topics.get(name) for name in names)
        return [info for info in found if info is not None]

    def matching(self, text: str) -> frozenset[str]:
        """The topics that match a pattern; raises INVALID_REGULAR_EXPRESSION."""
        known = self._patterns.get(text)
        if known is not None:
            return known[1]
        try:
            pattern = NamePattern(text, self._max_pattern_chars)
            names = pattern.select(self._names())
        except InvalidPattern as error:
            raise GroupError(GroupErrorName.INVALID_REGULAR_EXPRESSION, str(error)) from None
        self._patterns[text] = (pattern, names)
        return names

    def restore(self, text: str) -> None:
        """Take up a pattern that a member brought before the broker was started again."""
        pattern = NamePattern(text, self._max_pattern_chars)
        self._patterns[text] = (pattern, self._selected(pattern, frozenset()))

    def refresh(self) -> None:
        for text, (pattern, names) in list(self._patterns.items()):
            self._patterns[text] = (pattern, self._selected(pattern, names))

    def _selected(self, pattern: NamePattern, otherwise: frozenset[str]) -> frozenset[str]:
        try:
            return pattern.select(self._names())
        except CostlyPattern:
            return otherwise

    def _names(self) -> Iterable[str]:
        return (name for name in self._topics if name not in RESERVED_TOPICS or name in READABLE_TOPICS)

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
