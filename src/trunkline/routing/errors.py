"""What routing refuses, and why. Each protocol turns these into its own error codes; the text says what to do."""

from __future__ import annotations


class RoutingError(Exception):
    """Routing refused an operation. Subclasses are the whole list of reasons."""


class InvalidPattern(RoutingError):
    """A topic pattern that its dialect does not allow."""


class InvalidBinding(RoutingError):
    """Arguments that the exchange's kind cannot bind with."""


class InvalidFilter(RoutingError):
    """A filter expression that does not parse. `position` counts characters from 0; the text shows the place."""

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason = reason
        self.position = position
        # A window of one line around the place, so that a long expression still gives a readable message.
        start = max(0, position - 40)
        line = "".join(" " if char in "\r\n\t" else char for char in text[start : position + 40])
        super().__init__(f"{reason} at position {position}\n  {line}\n  {' ' * (position - start)}^")


class UnknownExchangeKind(RoutingError):
    pass


class UnknownExchange(RoutingError):
    pass


class UnknownQueue(RoutingError):
    pass


class ExchangeExists(RoutingError):
    """Declared before with another kind or other properties."""


class QueueExists(RoutingError):
    pass


class AccessRefused(RoutingError):
    """A publication to an internal exchange, or a change to the default exchange."""


class LimitReached(RoutingError):
    """The topology is at one of its named limits."""
