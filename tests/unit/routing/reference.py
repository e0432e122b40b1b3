"""Straightforward matchers, as the standards put them into words, to hold the indexes against."""

from __future__ import annotations

from collections.abc import Sequence


def words_match(pattern: Sequence[str], words: Sequence[str], single: str) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(words_match(pattern[1:], words[taken:], single) for taken in range(len(words) + 1))
    return bool(words) and pattern[0] in (single, words[0]) and words_match(pattern[1:], words[1:], single)


def amqp_match(pattern: str, name: str) -> bool:
    return words_match(pattern.split(".") if pattern else [], name.split(".") if name else [], "*")


def mqtt_match(pattern: str, name: str) -> bool:
    if name.startswith("$") and pattern[0] in "+#":
        return False
    return words_match(pattern.split("/"), name.split("/"), "+")
