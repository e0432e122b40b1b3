"""Dialects of topic patterns: how AMQP and MQTT write a path with wildcards.

| | separator | one level | any number of levels | `$` names |
|---|---|---|---|---|
| AMQP 0-9-1 | `.` | `*` | `#`, anywhere, zero or more | ordinary |
| MQTT | `/` | `+` | `#`, last only, zero or more: `a/#` matches `a` | hidden from a leading wildcard |

An empty AMQP key has no words: `#` matches it, `*` does not, as in RabbitMQ. Empty levels inside a name are levels
(`a..b`, `/a`). An empty MQTT name is not a name: it matches nothing. In AMQP a wildcard character inside a longer word is
an ordinary character; in MQTT it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from trunkline.routing.errors import InvalidPattern
from trunkline.routing.limits import MAX_AMQP_LEVELS, MAX_MQTT_LEVELS


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    separator: str
    single: str
    multi: str
    max_levels: int
    # Wildcards fill a level, `multi` comes last, and neither a pattern nor a name is empty.
    strict: bool = False
    # Names that begin with this are not matched by a pattern that begins with a wildcard.
    hidden_prefix: str | None = None

    def pattern_levels(self, pattern: str) -> list[str]:
        """The pattern's levels, or InvalidPattern."""
        levels = pattern.split(self.separator) if pattern else []
        if len(levels) > self.max_levels:
            raise InvalidPattern(f"a pattern has at most {self.max_levels} levels, this one has {len(levels)}")
        if self.strict:
            self._check(pattern, levels)
        return levels

    def _check(self, pattern: str, levels: list[str]) -> None:
        if not pattern:
            raise InvalidPattern(f"an empty {self.name} filter matches nothing")
        if "\0" in pattern:
            raise InvalidPattern(f"{pattern!r} contains U+0000")
        if self.multi not in pattern and self.single not in pattern:
            return
        for index, level in enumerate(levels):
            if self.multi in level and (level != self.multi or index != len(levels) - 1):
                raise InvalidPattern(f"{self.multi!r} in {pattern!r} must fill the last level")
            if self.single in level and level != self.single:
                raise InvalidPattern(f"{self.single!r} in {pattern!r} must fill its level")

    def hides(self, name: str) -> bool:
        return self.hidden_prefix is not None and name.startswith(self.hidden_prefix)


AMQP = Dialect("AMQP", ".", "*", "#", MAX_AMQP_LEVELS)
MQTT = Dialect("MQTT", "/", "+", "#", MAX_MQTT_LEVELS, strict=True, hidden_prefix="$")
