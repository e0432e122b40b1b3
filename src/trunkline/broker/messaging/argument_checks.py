"""Checks of the arguments in clients' tables: type first, then range, refused in RabbitMQ's words (406).

A table of checks has each argument that the broker knows by its name. What it does not name is taken and passed over, as
in RabbitMQ. An argument that is there without a value (void) has the wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from trunkline.broker.messaging.refusals import Refused, precondition, type_name

MAX_EXPIRY_MS: Final = 315_360_000_000  # ten years, as in RabbitMQ

Arguments = Mapping[str, object]
Check = Callable[[object], str | None]  # why a value is refused; None: it is fine
Checks = Mapping[str, Check]


def check(arguments: Arguments, checks: Checks, owner: str) -> None:
    """Refused unless every argument that the checks name passes. `owner` is what has it: queue 'q' in vhost '/'."""
    for name, reason in checks.items():
        why = reason(arguments[name]) if name in arguments else None
        if why is not None:
            raise refused(name, owner, why)


def refused(name: str, owner: str, why: str) -> Refused:
    return precondition(f"invalid arg '{name}' for {owner}: {why}")


def integer(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {type_name(value)}"'
    return None


def boolean(value: object) -> str | None:
    return None if isinstance(value, bool) else _unacceptable(value)


def text(value: object) -> str | None:
    return None if isinstance(value, str) else _unacceptable(value)


def at_least(least: int, most: int | None = None, above: str = "max_value_exceeded") -> Check:
    """An integer from `least`, which is 0 or 1, to `most`."""

    def within(value: object) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return integer(value)
        if value < 0:
            return f"{{value_negative,{value}}}"
        if value < least:
            return f"{{value_zero,{value}}}"
        if most is not None and value > most:
            return f"{{{above},{value}}}"
        return None

    return within


def number_of(numbers: Iterable[int], why: str) -> Check:
    """One of some numbers; `why` has a place for another."""
    known = frozenset(numbers)

    def listed(value: object) -> str | None:
        wrong = at_least(0)(value)
        return wrong if wrong is not None else None if value in known else why.format(value)

    return listed


def one_of(words: Iterable[str], why: str) -> Check:
    """One of some words; `why` may have a place for another."""
    known = frozenset(words)

    def listed(value: object) -> str | None:
        wrong = text(value)
        return wrong if wrong is not None else None if value in known else why.format(value)

    return listed


def _unacceptable(value: object) -> str:
    return f"{{unacceptable_type,{type_name(value)}}}"
