"""HTTP/1.1 read by h11, for a Python that httptools has no wheel for: pure Python, and five times slower.

h11 goes through a request and its response in step. Here it only reads, so each request gets a connection object of its own, which
is given what the one before has left over.
"""

from __future__ import annotations

import h11

from trunkline.protocols.http.codec import Event, Gathering, Refusal
from trunkline.protocols.http.limits import HttpLimits
from trunkline.protocols.listener.session import Buffer


class H11Reader:
    __slots__ = ("_connection", "_gathering", "_limits", "_method", "_refused", "_version")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._gathering = Gathering(limits)
        self._connection = self._new()
        self._method = self._version = ""
        self._refused = False

    def _new(self) -> h11.Connection:
        return h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.max_header_bytes)

    @property
    def held_bytes(self) -> int:
        return self._gathering.held_bytes + len(self._connection.trailing_data[0])

    @property
    def within(self) -> bool:
        return self._gathering.within or bool(self._connection.trailing_data[0].strip(b"\r\n"))

    def feed(self, data: Buffer) -> list[Event]:
        gathering = self._gathering
        if self._refused:
            return []
        try:
            self._connection.receive_data(bytes(data))
            while self._step():
                pass
        except Refusal as refusal:
            self._refuse(refusal)
        except h11.RemoteProtocolError as error:
            self._refuse(Refusal(error.error_status_hint, f"no HTTP: {error}"))
        events, gathering.events = gathering.events, []
        return events

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self._gathering.events.append(refusal)

    def _step(self) -> bool:
        gathering, event = self._gathering, self._connection.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return False
        if isinstance(event, h11.Request):
            self._method, self._version = event.method.decode("latin-1"), event.http_version.decode("latin-1")
            gathering.begin()
            gathering.target(event.target)
            for name, value in event.headers:
                gathering.header(name, value)
            gathering.head_ends(self._method, self._version)
        elif isinstance(event, h11.Data):
            gathering.body(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            rest = self._connection.trailing_data[0]
            gathering.end(self._method, self._version)
            self._connection = self._new()
            self._connection.receive_data(rest) if rest else None
            return bool(rest)
        return not isinstance(event, h11.ConnectionClosed)
