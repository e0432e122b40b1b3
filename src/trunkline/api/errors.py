"""What a call of the API can end with. All are `TrunklineError`."""

from __future__ import annotations


class TrunklineError(Exception):
    pass


class Timeout(TrunklineError, TimeoutError):
    """The deadline has passed. Of a call that changes something, whether it was done is not known."""


class ConnectionLost(TrunklineError, ConnectionError):
    """The broker cannot be reached, and could not until the deadline; or the connection was closed by its owner."""


class Refused(TrunklineError):
    """The broker does not do this, in its word for it: `NOT_FOUND`, `ACCESS_REFUSED`, `PRECONDITION_FAILED`…"""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class NoRoute(TrunklineError):
    """Nobody is there for the message: the queue is gone, or the service was never served."""


class QueueFull(TrunklineError):
    """The queue is at its maximum and takes no more."""


class LeaseLost(TrunklineError):
    """The message is no longer this consumer's: its lease is over, or its connection was lost. It comes again."""


class BodyRefused(TrunklineError, TypeError):
    """A value that cannot be a message's body, or a body that is not of the type that was asked for."""


class RequestFailed(TrunklineError):
    """The service raised; the text is its error's."""
