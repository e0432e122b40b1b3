"""What ends a call on a link."""

from __future__ import annotations


class LinkLost(Exception):
    """The connection is gone, or was never there. Another one may do."""


class LinkRefused(Exception):
    """The broker refused what was asked for, in its word for it (`NOT_FOUND`), and closed the channel or the connection."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class LinkTimeout(Exception):
    """The broker did not answer in time. Whether it has done what was asked for is not known."""


class Returned(Exception):
    """A mandatory publication that no queue was there for."""


class NotTaken(Exception):
    """A queue at its maximum did not take a publication, or it could not be stored."""
