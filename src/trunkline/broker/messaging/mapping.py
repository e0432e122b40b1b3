"""Mapping rules: into which log topic, and under which key, a publication with a path-like name is written.

A rule has a topic filter in MQTT's notation, a log topic (or `off`: not stored) and a key template. The first rule whose
filter matches decides. What no rule matches goes to the default topic, with the name itself as key; names that begin with
`$` are the broker's and, unless a rule names them, not stored.

A key template is text with `{topic}` for the whole name and `{1}`, `{2}`, … for its levels (empty when there are fewer).

Resolving costs O(rules) levels compared; callers keep the answer with whatever they keep per name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trunkline.broker import guard
from trunkline.log.errors import LogError
from trunkline.log.names import check_topic_name
from trunkline.routing.dialect import MQTT
from trunkline.routing.errors import InvalidPattern

OFF = "off"
DEFAULT_TOPIC = "mqtt"
DEFAULT_KEY = "{topic}"
MAX_RULES = 1_000
_FIELD = re.compile(r"\{(topic|[1-9][0-9]{0,2})\}")


class Mapped(NamedTuple):
    topic: str
    key: bytes


@dataclass(frozen=True, slots=True)
class MappingRule:
    """`topic` is a log topic's name, or `off`."""

    filter: str
    topic: str
    key: str = DEFAULT_KEY

    def check(self) -> None:
        """Raise ValueError, saying what is wrong, unless the rule can be used."""
        try:
            MQTT.pattern_levels(self.filter)
        except InvalidPattern as error:
            raise ValueError(str(error)) from None
        _check_target(self.topic)
        if "{" in _FIELD.sub("", self.key):
            raise ValueError(f"key {self.key!r} has a field other than {{topic}}, {{1}}, {{2}}, …")


def _check_target(topic: str) -> None:
    """Raise ValueError unless publications can be written to a log topic of that name."""
    if topic == OFF:
        return
    try:
        guard.check(guard.Operation.WRITE, topic)
        check_topic_name(topic)
    except LogError as error:
        raise ValueError(str(error)) from None


def filter_matches(levels: Sequence[str], name_levels: Sequence[str]) -> bool:
    """Whether a filter, split into levels, matches a name, split into levels. O(levels)."""
    count = len(name_levels)
    if name_levels[0][:1] == "$" and levels[0] in {"+", "#"}:
        return False
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= count or (level not in {"+", name_levels[index]}):
            return False
    return len(levels) == count


class Mapping:
    def __init__(self, rules: Sequence[MappingRule] = (), default_topic: str = DEFAULT_TOPIC) -> None:
        if len(rules) > MAX_RULES:
            raise ValueError(f"{len(rules)} mapping rules; at most {MAX_RULES} are taken")
        for rule in rules:
            rule.check()
        _check_target(default_topic)
        self.rules = tuple(rules)
        self.default_topic = default_topic
        self._levels = [rule.filter.split("/") for rule in self.rules]

    def topics(self) -> tuple[str, ...]:
        """Every log topic that a publication can go to."""
        names = [rule.topic for rule in self.rules if rule.topic != OFF]
        if self.default_topic != OFF:
            names.append(self.default_topic)
        return tuple(dict.fromkeys(names))

    def resolve(self, name: str) -> Mapped | None:
        """Where a publication of this name is stored; None if it is not."""
        levels = name.split("/")
        for rule, filter_levels in zip(self.rules, self._levels, strict=True):
            if filter_matches(filter_levels, levels):
                return None if rule.topic == OFF else Mapped(rule.topic, _key(rule.key, name, levels))
        if self.default_topic == OFF or name.startswith("$"):
            return None
        return Mapped(self.default_topic, name.encode())


def _key(template: str, name: str, levels: Sequence[str]) -> bytes:
    if template == DEFAULT_KEY:
        return name.encode()

    def value(found: re.Match[str]) -> str:
        field = found.group(1)
        if field == "topic":
            return name
        return levels[int(field) - 1] if int(field) <= len(levels) else ""

    return _FIELD.sub(value, template).encode()
