"""Requests and responses, as handlers see them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

from trunkline.security.principal import Principal, anonymous


@dataclass(slots=True)
class Request:
    """A whole request. `path` and `query` are as sent, percent-encoding and all; names of `headers` are in lower case.

    A field that came more than once has its values joined by ", ". `client` is the client's address; `listener` is the name of the
    listener that it came in on. `parameters` are those of the path, which the router fills in.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""
    keep_alive: bool = True
    old: bool = False  # HTTP/1.0: no chunks in the response
    client: str = ""
    listener: str = ""
    principal: Principal = field(default_factory=lambda: anonymous(""))
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Response:
    """`stream` is sent as it comes, in place of `body`: an endless one is how server-sent events are told."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: AsyncIterator[bytes] | None = None


class HttpError(Exception):
    """What a handler raises to answer with an error, in plain text."""

    def __init__(self, status: int, text: str = "", headers: list[tuple[str, str]] | None = None) -> None:
        super().__init__(text or reason_of(status))
        self.status = status
        self.headers = headers or []

    def response(self) -> Response:
        return Response(self.status, f"{self}\n".encode(), "text/plain; charset=utf-8", self.headers)


# A handler that has its answer at once returns it; one that waits for the disk or a message returns what is awaited.
Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]


def reason_of(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
