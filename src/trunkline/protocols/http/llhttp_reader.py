"""HTTP/1.1 read by llhttp, the parser of Node, through `httptools`: about 10 µs for a request of SQS, with all that is made of it.

At a wish to change the protocol, llhttp stops behind the header, whether or not a body follows; that body would then be read as the next
request. So a new parser takes over, which is first told, by a header of our own (`_resuming`), what kind of body it is.
"""

from __future__ import annotations

import httptools

from trunkline.protocols.http.codec import Event, Gathering, Refusal
from trunkline.protocols.http.limits import HttpLimits
from trunkline.protocols.listener.session import Buffer


class LlhttpReader:
    """Is what llhttp calls back. What is raised there comes out of `feed_data` as the cause of its own error."""

    __slots__ = ("_gathering", "_method", "_parser", "_refused", "_resuming", "_version", "on_body")

    def __init__(self, limits: HttpLimits) -> None:
        self._gathering = gathering = Gathering(limits)
        self.on_body = gathering.body
        self._parser = httptools.HttpRequestParser(self)
        self._method = self._version = ""
        self._refused = False
        self._resuming = False

    @property
    def held_bytes(self) -> int:
        return self._gathering.held_bytes

    @property
    def within(self) -> bool:
        return self._gathering.within

    def feed(self, data: Buffer) -> list[Event]:
        gathering = self._gathering
        if self._refused:
            return []
        began_before = gathering.in_head
        counted = gathering.held_bytes
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = memoryview(data)[upgrade.args[0] :]
                    self._parser = httptools.HttpRequestParser(self)
                    if gathering.within:
                        self._resuming = True
                        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + gathering.framing + b"\r\n\r\n")
            # llhttp keeps a field that is not complete: what it was fed of one counts, too.
            if began_before and gathering.in_head and gathering.held_bytes == counted:
                gathering.count_head(len(data))
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, Refusal):
                raise
            self._refuse(cause)
        except Refusal as refusal:
            self._refuse(refusal)
        except httptools.HttpParserError as error:
            last = gathering.events[-1] if gathering.events else None
            if not (gathering.within or last is None or getattr(last, "keep_alive", True)):
                pass  # what follows a request that said it is the last
            else:
                self._refuse(Refusal(400, f"no HTTP: {error}"))
            self._refused = True
        events, gathering.events = gathering.events, []
        return events

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self._gathering.events.append(refusal)

    # What llhttp tells.

    def on_message_begin(self) -> None:
        if not self._resuming:
            self._gathering.begin()

    def on_url(self, part: bytes) -> None:
        if not self._resuming:
            self._gathering.target(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._resuming:
            self._gathering.header(name, value)

    def on_headers_complete(self) -> None:
        if self._resuming:
            self._resuming = False
            return
        parser = self._parser
        self._method, self._version = parser.get_method().decode("latin-1"), parser.get_http_version()
        self._gathering.head_ends(self._method, self._version)

    def on_message_complete(self) -> None:
        if self._gathering.framing and self._parser.should_upgrade():
            return  # the body is yet to come
        self._gathering.end(self._method, self._version)
