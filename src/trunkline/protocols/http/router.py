"""A router: method and path to a handler.

A pattern is a path with names in braces for whole segments, `/api/queues/{vhost}/{name}`; a last segment `{rest*}` takes all that
follows. Segments are split before they are decoded, so `%2F` is a slash within a segment. A literal segment goes before a name.
Looking one up takes as long as the path has segments. HEAD is GET without the body, which the session leaves out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from trunkline.protocols.http.message import Handler, HttpError, Request, Response

_MAX_SEGMENTS = 32


@dataclass(slots=True)
class _Node:
    literals: dict[str, _Node] = field(default_factory=dict)
    named: _Node | None = None
    handlers: dict[str, tuple[Handler, tuple[str, ...]]] = field(default_factory=dict)
    rest: dict[str, tuple[Handler, tuple[str, ...]]] = field(default_factory=dict)


class Router:
    """Is itself a handler. `authenticate` fills in `request.principal`, or raises `HttpError`."""

    def __init__(self, authenticate: Callable[[Request], None] | None = None) -> None:
        self._root = _Node()
        self._authenticate = authenticate

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        node, names = self._root, list[str]()
        segments = pattern.split("/")[1:]
        for segment in segments:
            if segment.startswith("{") and segment.endswith("*}"):
                node.rest[method] = (handler, (*names, segment[1:-2]))
                return
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.named = node.named or _Node()
                node = node.named
            else:
                node = node.literals.setdefault(segment, _Node())
        node.handlers[method] = (handler, tuple(names))

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        segments = request.path.split("/")[1:]
        if len(segments) > _MAX_SEGMENTS:
            raise HttpError(414)
        found, values = self._find(self._root, segments, 0)
        if found is None:
            raise HttpError(404)
        entry = found.get(request.method) or (found.get("GET") if request.method == "HEAD" else None)
        if entry is None:
            allowed = sorted({*found, *(("HEAD",) if "GET" in found else ())})
            raise HttpError(405, headers=[("allow", ", ".join(allowed))])
        handler, names = entry
        if self._authenticate is not None:
            self._authenticate(request)
        request.parameters = dict(zip(names, values, strict=True))
        return handler(request)

    def _find(
        self, node: _Node, segments: list[str], at: int
    ) -> tuple[dict[str, tuple[Handler, tuple[str, ...]]] | None, list[str]]:
        if at == len(segments):
            return (node.handlers or None), []
        segment = unquote(segments[at])
        literal = node.literals.get(segment)
        if literal is not None:
            found, values = self._find(literal, segments, at + 1)
            if found is not None:
                return found, values
        if node.named is not None and segment:
            found, values = self._find(node.named, segments, at + 1)
            if found is not None:
                return found, [segment, *values]
        if node.rest:
            return node.rest, ["/".join(map(unquote, segments[at:]))]
        return None, []
