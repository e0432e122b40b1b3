"""The page: files of the package `trunkline.page`, and logging in and out for browsers.

Nothing is made at run time and nothing is fetched from elsewhere: the page is a client of the API like any other.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from importlib import resources
from typing import Final

from trunkline.protocols.http.message import HttpError, Request, Response
from trunkline.protocols.http.router import Router
from trunkline.protocols.management.codec import json_body, json_response, text_of
from trunkline.protocols.management.session import Gate, check_own_site

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_MAX_NAME_CHARS: Final = 100


def add_routes(router: Router, gate: Gate) -> None:
    async def log_in(request: Request) -> Response:
        check_own_site(request)
        body = json_body(request)
        principal = await gate.check(text_of(body, "user"), text_of(body, "password").encode(), request.client)
        cookie = gate.remember(principal, secure=request.listener.endswith("s"))
        return json_response({"name": principal.name, "tags": list(principal.tags)}, headers=[cookie])

    async def log_out(request: Request) -> Response:
        check_own_site(request)
        return Response(204, headers=[gate.forget(request)])

    router.add("GET", "/", lambda request: _file(request, "index.html"))
    router.add("GET", "/index.html", lambda request: _file(request, "index.html"))
    router.add("GET", "/assets/{name}", lambda request: _file(request, request.parameters["name"]))
    router.add("POST", "/login", log_in)
    router.add("POST", "/logout", log_out)


@lru_cache(maxsize=64)
def _read(name: str) -> tuple[bytes, str] | None:
    if "/" in name or name.startswith(".") or len(name) > _MAX_NAME_CHARS:
        return None
    found = resources.files("trunkline.page").joinpath(name)
    if not found.is_file():
        return None
    data = found.read_bytes()
    return data, f'"{sha256(data).hexdigest()[:32]}"'


def _file(request: Request, name: str) -> Response:
    kind = _TYPES.get(name.rpartition(".")[2])
    found = _read(name) if kind is not None else None
    if found is None or kind is None:
        raise HttpError(404, "Not Found")
    data, tag = found
    headers = [("etag", tag), ("cache-control", "no-cache")]
    if request.headers.get("if-none-match") == tag:
        return Response(304, headers=headers)
    return Response(200, data, kind, headers)
