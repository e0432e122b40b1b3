"""SASL: how a client proves who it is in one or more steps, for the protocols that let it choose.

| mechanism                    | the client's messages                         | checked with                             |
|------------------------------|-----------------------------------------------|------------------------------------------|
| PLAIN                        | NUL user NUL password                         | `Logins.by_password`                     |
| SCRAM-SHA-256, SCRAM-SHA-512 | first and final (RFC 5802)                    | the user's keys                          |
| OAUTHBEARER                  | GS2 header, `auth=Bearer TOKEN` (RFC 7628)    | `Logins.by_token`, where OAuth is set up |

An exchange is one attempt: `step` takes what the client sent and gives the answer; once it gives a principal, or raises
LoginRefused, it is over. A message that is no such is a refusal, too. An unknown user of SCRAM is given a salt that stays the
same, and fails at the end, as with a wrong password.
"""

from __future__ import annotations

import hmac
import json
from abc import ABC, abstractmethod
from typing import Final, NamedTuple, Protocol

from trunkline.security.principal import Principal
from trunkline.security.scram import ITERATIONS, MECHANISMS, SALT_BYTES, ScramKeys

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MAX_MESSAGE_BYTES: Final = 64 * 1024


class LoginRefused(Exception):
    """Who the client is was not proven. The text is for the broker's log; clients get their protocol's usual words."""


class Step(NamedTuple):
    """An answer. `principal` None: the client has to go on. `lifetime_ms` None: the login lasts."""

    answer: bytes
    principal: Principal | None = None
    lifetime_ms: int | None = None


class Checks(Protocol):
    """What an exchange asks of the broker's logins."""

    @property
    def takes_tokens(self) -> bool: ...

    async def by_password(self, user: str, password: bytes, host: str, protocol: str) -> Principal: ...

    async def by_token(self, token: bytes, host: str, protocol: str) -> tuple[Principal, int | None]: ...

    async def wait_for_turn(self, user: str, host: str, protocol: str) -> None: ...

    def keys_of(self, user: str, mechanism: str) -> ScramKeys: ...

    def proven(self, user: str, host: str, protocol: str) -> Principal: ...

    def lifetime_ms(self, principal: Principal, expires_in_ms: int | None = None) -> int | None: ...

    def refused(self, user: str, host: str, protocol: str, why: str) -> LoginRefused: ...


class Exchange(ABC):
    """`user` is who the client says it is, as far as it has said so."""

    mechanism: str

    def __init__(self, logins: Checks, host: str, protocol: str) -> None:
        self._logins = logins
        self._host = host
        self._protocol = protocol
        self.user = ""

    async def step(self, message: bytes) -> Step:
        if len(message) > MAX_MESSAGE_BYTES:
            raise self._refused("a message is too large")
        return await self._step(message)

    @abstractmethod
    async def _step(self, message: bytes) -> Step: ...

    def _refused(self, why: str) -> LoginRefused:
        return self._logins.refused(self.user, self._host, self._protocol, f"{self.mechanism}: {why}")


class Plain(Exchange):
    mechanism = PLAIN

    async def _step(self, message: bytes) -> Step:
        parts = message.split(b"\0")
        if len(parts) != 3:
            raise self._refused("the message has not three parts")
        acting, user, password = parts[0], parts[1].decode("utf-8", "replace"), parts[2]
        self.user = user
        if acting and acting != parts[1]:
            raise self._refused("nobody acts for another user")
        principal = await self._logins.by_password(user, password, self._host, self._protocol)
        return Step(b"", principal, self._logins.lifetime_ms(principal))


class Scram(Exchange):
    """`scramp` does the messages."""

    def __init__(self, mechanism: str, logins: Checks, host: str, protocol: str) -> None:
        from scramp import ScramMechanism

        super().__init__(logins, host, protocol)
        self.mechanism = mechanism
        self._server = ScramMechanism(mechanism).make_server(self._keys_of)
        self._first = True

    def _keys_of(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = user
        keys = self._logins.keys_of(user, self.mechanism)
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations

    async def _step(self, message: bytes) -> Step:
        from scramp import ScramException

        try:
            text = message.decode()
            if self._first:
                self._first = False
                self._server.set_client_first(text)
                await self._logins.wait_for_turn(self.user, self._host, self._protocol)
                return Step(self._server.get_server_first().encode())
            self._take_doubled_nonce(text)
            self._server.set_client_final(text)
            final = self._server.get_server_final().encode()
        except (ScramException, ValueError) as error:
            raise self._refused(str(error)[:200]) from None
        principal = self._logins.proven(self.user, self._host, self._protocol)
        return Step(final, principal, self._logins.lifetime_ms(principal))

    def _take_doubled_nonce(self, final: str) -> None:
        """librdkafka before 2.6.1 puts its own nonce before the whole one. That is as fresh, and the proof covers it."""
        server = self._server
        doubled = str(server.nonce).removesuffix(str(server.s_nonce)) + str(server.nonce)
        if f",r={doubled}," in final:
            server.nonce = type(server.nonce)(doubled)


class Bearer(Exchange):
    mechanism = OAUTHBEARER

    def __init__(self, logins: Checks, host: str, protocol: str) -> None:
        super().__init__(logins, host, protocol)
        self._failed = False

    async def _step(self, message: bytes) -> Step:
        if self._failed:
            raise self._refused("the token is not good")
        token = _token_of(message)
        if token is None:
            raise self._refused("the message has no token")
        try:
            principal, expires_in_ms = await self._logins.by_token(token, self._host, self._protocol)
        except LoginRefused:
            # As RFC 7628 has it: the client is told why, and ends the exchange with one more message.
            self._failed = True
            return Step(json.dumps({"status": "invalid_token"}).encode())
        return Step(b"", principal, self._logins.lifetime_ms(principal, expires_in_ms))


def _token_of(message: bytes) -> bytes | None:
    header, _, rest = message.partition(b"\x01")
    if not header.startswith((b"n,", b"y,")) or not rest.endswith(b"\x01\x01"):
        return None
    for pair in rest[:-2].split(b"\x01"):
        key, _, value = pair.partition(b"=")
        scheme, _, token = value.partition(b" ")
        if key == b"auth" and scheme.lower() == b"bearer" and token:
            return token
    return None


def begin(mechanism: str, logins: Checks, host: str, protocol: str) -> Exchange | None:
    """A new exchange; None if there is no such mechanism here."""
    if mechanism == PLAIN:
        return Plain(logins, host, protocol)
    if mechanism in MECHANISMS:
        return Scram(mechanism, logins, host, protocol)
    if mechanism == OAUTHBEARER and logins.takes_tokens:
        return Bearer(logins, host, protocol)
    return None


def false_keys(secret: bytes, user: str, mechanism: str) -> ScramKeys:
    """Keys that nobody has the password of, the same every time for a name."""
    size = 64 if mechanism.endswith("512") else 32
    salt = hmac.digest(secret, b"salt " + user.encode("utf-8", "surrogatepass"), "sha256")[:SALT_BYTES]
    key = hmac.digest(secret, b"key " + user.encode("utf-8", "surrogatepass"), "sha512")[:size]
    return ScramKeys(mechanism, salt, ITERATIONS, key, key)
