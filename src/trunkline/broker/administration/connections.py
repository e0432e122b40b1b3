"""Live connections of every protocol: who is connected, by which listener and since when; and how to end one.

Nothing is kept here for them: the servers have their connections anyway, and are asked when somebody looks. So a connection
costs its number and the time at which it came, and a message nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Final, NamedTuple, Protocol

from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.security.principal import Principal

MAX_LISTED: Final = 100_000
Json = dict[str, object]


class About(NamedTuple):
    """What a session says of itself. `details` are its protocol's own: what its client is called, figures."""

    protocol: str
    principal: Principal
    details: Json


class LiveConnection(Protocol):
    @property
    def number(self) -> int:
        """Of this connection only, as long as the broker runs."""

    @property
    def listener(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def since_ms(self) -> int: ...

    def about(self) -> About | None:
        """None as long as nothing is known, or if the protocol has nothing to say."""

    def force_close(self, reason: str) -> None:
        """End it, in the protocol's own words where it has some."""


class Serving(Protocol):
    """A protocol's server."""

    def live_connections(self) -> Iterable[LiveConnection]: ...


class Connections:
    def __init__(self) -> None:
        self._servers: list[Serving] = []
        self._numbers = count(1)

    def include(self, server: Serving) -> None:
        self._servers.append(server)

    def next_number(self) -> int:
        return next(self._numbers)

    def __iter__(self) -> Iterator[LiveConnection]:
        return (connection for server in self._servers for connection in server.live_connections())

    def listed(self) -> list[Json]:
        """All of them, oldest first."""
        found = sorted(islice(self, MAX_LISTED), key=lambda each: each.number)
        return [_document(each) for each in found]

    def one(self, number: int) -> Json:
        return _document(self._require(number))

    def close(self, number: int, reason: str) -> None:
        self._require(number).force_close(reason)

    def _require(self, number: int) -> LiveConnection:
        for each in self:
            if each.number == number:
                return each
        raise Refused(Reason.NOT_FOUND, f"no connection {number}")


def _document(connection: LiveConnection) -> Json:
    about = connection.about()
    return {
        "id": connection.number,
        "protocol": about.protocol if about is not None else connection.listener,
        "listener": connection.listener,
        "user": about.principal.name if about is not None else None,
        "peer_host": connection.host,
        "peer_port": connection.port,
        "connected_at_ms": connection.since_ms,
        "details": about.details if about is not None else {},
    }
