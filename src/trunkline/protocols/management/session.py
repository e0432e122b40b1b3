"""Who asks, and whether it was a person or a page of somebody else that asked.

A request says who asks in one of three ways, looked at in this order:

    Authorization: Basic    user and password, as every tool of RabbitMQ sends it
    the cookie `trunkline`  a token that the page got for user and password (`POST /api/v1/login`)
    nothing                 where the broker asks nobody: a client of this machine, who is an administrator

A browser sends the second and the third by itself, also when the page of another site makes it. So with these:
1. a request that a browser marks as coming from another site (`Sec-Fetch-Site`, or an `Origin` that is not the `Host`) is refused;
2. the third needs a `Host` that is an address of this machine: a foreign name that resolves to it is one of DNS rebinding.

Every answer says that no frame may hold it, and that the page runs nothing but its own files.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from trunkline.clock import Clock
from trunkline.protocols.http.message import HttpError, Request, Response
from trunkline.security.principal import Principal, anonymous, is_loopback

COOKIE: Final = "trunkline"
TOKEN_LIFE_S: Final = 8 * 3600
_MAX_TOKENS: Final = 10_000
_REALM: Final = 'Basic realm="Trunkline"'
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_SECURITY_HEADERS: Final = [
    ("content-security-policy", "default-src 'self'; img-src 'self' data:; style-src 'self'; object-src 'none'; "
     "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
]  # fmt: skip

LogIn = Callable[[str, bytes, str], Awaitable[Principal | None]]


class _Token(NamedTuple):
    principal: Principal
    until_ms: float


class Gate:
    """`log_in` checks a password; `open_to_loopback` is whether the broker asks clients of this machine who they are."""

    def __init__(self, clock: Clock, log_in: LogIn, *, open_to_loopback: bool) -> None:
        self._clock = clock
        self._log_in = log_in
        self._open = open_to_loopback
        self._tokens: OrderedDict[str, _Token] = OrderedDict()

    async def admit(self, request: Request) -> Principal:
        """HttpError 401 or 403 unless this is somebody."""
        given = request.headers.get("authorization", "")
        if given[:6].lower() == "basic ":
            return await self.check(*_credentials(given[6:]), request.client)
        check_own_site(request)
        token = _cookie(request)
        if token is not None:
            known = self._tokens.get(token)
            if known is not None and known.until_ms > self._clock.monotonic_ms():
                return known.principal
        if self._open and is_loopback(request.client) and _is_local_name(request.headers.get("host", "")):
            return anonymous(request.client, administrator=True)
        # A page asks for itself who is there: a browser's own dialog is for those who come without one.
        asks_itself = "x-requested-with" in request.headers
        raise HttpError(401, "log in first", [] if asks_itself else [("www-authenticate", _REALM)])

    async def check(self, user: str, password: bytes, host: str) -> Principal:
        principal = await self._log_in(user, password, host)
        if principal is None:
            raise HttpError(401, "Login failed", [("www-authenticate", _REALM)])
        return principal

    # -- tokens --------------------------------------------------------------------------------------------------------

    def remember(self, principal: Principal, *, secure: bool) -> tuple[str, str]:
        """The header that gives a browser its token."""
        while len(self._tokens) >= _MAX_TOKENS:
            self._tokens.popitem(last=False)
        token = secrets.token_urlsafe(32)
        self._tokens[token] = _Token(principal, self._clock.monotonic_ms() + TOKEN_LIFE_S * 1000)
        return "set-cookie", _set_cookie(token, TOKEN_LIFE_S, secure=secure)

    def forget(self, request: Request) -> tuple[str, str]:
        token = _cookie(request)
        if token is not None:
            self._tokens.pop(token, None)
        return "set-cookie", _set_cookie("", 0, secure=False)

    def forget_user(self, name: str) -> None:
        """Whose password or rights have changed logs in anew."""
        for token in [each for each, known in self._tokens.items() if known.principal.name == name]:
            del self._tokens[token]


def secured(response: Response) -> Response:
    response.headers += _SECURITY_HEADERS
    return response


def _set_cookie(token: str, life_s: int, *, secure: bool) -> str:
    marks = "; Secure" if secure else ""
    return f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={life_s}{marks}"


def _cookie(request: Request) -> str | None:
    for part in request.headers.get("cookie", "").replace(",", ";").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and value:
            return value
    return None


def _credentials(encoded: str) -> tuple[str, bytes]:
    try:
        user, separator, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        separator, user, password = b"", b"", b""
    if not separator:
        raise HttpError(401, "Login failed", [("www-authenticate", _REALM)])
    return user.decode("utf-8", "replace"), password


def check_own_site(request: Request) -> None:
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    navigation = request.method in ("GET", "HEAD") and request.headers.get("sec-fetch-mode") == "navigate"
    if site is not None and site not in _OWN_SITES and not navigation:
        raise HttpError(403, "this request was made by the page of another site")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise HttpError(403, "this request was made by the page of another site")


def _is_local_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and "]" not in host[-1:] else host
    return name.lower() == "localhost" or is_loopback(name.strip("[]"))
