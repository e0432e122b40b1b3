"""Tokens: JSON Web Tokens that say who a client is, checked with the keys of who issues them.

The keys are a JWKS document, in a file or at a URL. It is read when first needed, again when a token names a key that is not
in it, but not more often than every `_AGAIN_S`, and at most `_MAX_BYTES` of it. A token must be signed with one of these keys
by an asymmetric algorithm (a secret that the broker has too would let it make tokens), must not be expired, and must name
the issuer and the audience that are configured, if they are. The user's name is one of its claims.

Needs the package `PyJWT`. Reading may wait for the network: `check` is to be called in a thread.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from jwt import PyJWKSet

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_MAX_BYTES: Final = 1 << 20
_AGAIN_S: Final = 30.0
_FETCH_S: Final = 10.0
_LEEWAY_S: Final = 30


class InvalidToken(ValueError):
    """The text says why."""


class TokenSettings(NamedTuple):
    jwks: str  # a file, or a URL
    issuer: str | None = None
    audience: str | None = None
    claim: str = "sub"


class Token(NamedTuple):
    user: str
    expires_s: float | None  # since the epoch


class Tokens:
    def __init__(self, settings: TokenSettings) -> None:
        import jwt  # so that a missing package shows at the start

        self._jwt = jwt
        self._settings = settings
        self._keys: PyJWKSet | None = None
        self._read_s = float("-inf")
        self._lock = threading.Lock()

    def check(self, token: bytes) -> Token:
        """InvalidToken unless it is good. Blocks."""
        jwt, settings = self._jwt, self._settings
        required = ["exp", *(["iss"] if settings.issuer else []), *(["aud"] if settings.audience else [])]
        try:
            text = token.decode("ascii")
            header = jwt.get_unverified_header(text)
            if header.get("alg") not in ALGORITHMS:
                raise InvalidToken(f"the algorithm {header.get('alg')!r} is not taken")
            claims = jwt.decode(
                text,
                self._key(header.get("kid")),
                algorithms=[str(header["alg"])],
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=_LEEWAY_S,
                options={"require": required, "verify_aud": settings.audience is not None},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise InvalidToken(str(error)[:200] or type(error).__name__) from None
        name = claims.get(settings.claim)
        if not isinstance(name, str) or not name:
            raise InvalidToken(f"the claim {settings.claim!r} does not name a user")
        return Token(name, float(claims["exp"]))

    def _key(self, key_id: object) -> object:
        found = self._find(key_id)
        if found is None:
            self._read()
            found = self._find(key_id)
        if found is None:
            raise InvalidToken(f"there is no key {key_id!r}")
        return found

    def _find(self, key_id: object) -> object:
        keys = [] if self._keys is None else self._keys.keys
        if key_id is None:
            return keys[0].key if len(keys) == 1 else None
        return next((each.key for each in keys if each.key_id == key_id), None)

    def _read(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._read_s < _AGAIN_S:
                return
            self._read_s = now_s
            try:
                self._keys = self._jwt.PyJWKSet.from_dict(json.loads(self._document()))
            except OSError as error:
                raise InvalidToken(f"the keys cannot be had: {error}") from None

    def _document(self) -> bytes:
        place = self._settings.jwks
        if not place.startswith(("https://", "http://")):
            with Path(place).open("rb") as file:
                return file.read(_MAX_BYTES)
        from urllib.request import urlopen

        with urlopen(place, timeout=_FETCH_S) as answer:
            document: bytes = answer.read(_MAX_BYTES)
            return document
