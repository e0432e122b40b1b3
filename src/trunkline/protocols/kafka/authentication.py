"""Who a connection's client is, and what it may ask before that is known.

A client is known by its certificate, by SASL, or not at all, where strangers are let in. SASL begins with SaslHandshake, which
names the mechanism; version 1 is followed by SaslAuthenticate requests, version 0 by bare tokens, each in a frame of its own
(`raw`). Until one of them ends well, a client that must log in may ask for ApiVersions and these two only, in small frames;
anything else ends the connection. While an answer is worked out, the connection takes up nothing further (`busy`).

A client may log in again on the same connection (KIP-368), as the same user by the same mechanism. With `max_reauth_ms`, or
a token that expires, it is told by when, and what it asks after that ends the connection, but for the same three.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trunkline.broker.core import BrokerCore
from trunkline.broker.logins import Exchange, LoginRefused
from trunkline.protocols.kafka.apis import ApiKey
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.listener.session import Wire
from trunkline.security.principal import Principal, anonymous

PROTOCOL = "kafka"
BEFORE_LOGIN = frozenset({int(ApiKey.API_VERSIONS), int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
MAX_BYTES_BEFORE_LOGIN = 512 * 1024  # Kafka's sasl.server.max.receive.size


class Outcome(NamedTuple):
    """What a step came to. `session_lifetime_ms` 0: there is no limit."""

    error_code: int
    error_message: str | None = None
    answer: bytes = b""
    session_lifetime_ms: int = 0


class Authentication:
    __slots__ = ("_clock", "_exchange", "_host", "_logins", "_mechanism", "busy", "expires_ms", "failed", "known", "principal", "raw")  # fmt: skip

    def __init__(self, broker: BrokerCore, wire: Wire) -> None:
        self._logins = broker.logins
        self._clock = broker.clock
        self._host = wire.host
        self._exchange: Exchange | None = None
        self._mechanism = ""  # that the client has logged in by
        self.raw = False
        self.busy = False
        self.failed = False
        self.expires_ms = math.inf  # by the monotonic clock
        try:
            found = self._logins.newcomer(wire.host, wire.certificate, PROTOCOL)
        except LoginRefused:
            found = None
        self.principal: Principal = found or anonymous(wire.host)
        self.known = found is not None

    def handshake(self, mechanism: str, version: int) -> int:
        """Begin an exchange; returns Kafka's code."""
        if self._exchange is not None or (self._mechanism and mechanism != self._mechanism):
            return ErrorCode.ILLEGAL_SASL_STATE
        exchange = self._logins.exchange(mechanism, self._host, PROTOCOL)
        if exchange is None:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._exchange = exchange
        self.raw = version == 0
        return ErrorCode.NONE

    @property
    def mechanisms(self) -> list[str]:
        return list(self._logins.mechanisms)

    async def step(self, token: bytes) -> Outcome:
        """What the client has sent, and what it is told. After a refusal (`failed`) the connection ends."""
        exchange = self._exchange
        if exchange is None:
            self.failed = True
            return Outcome(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate without SaslHandshake")
        self.busy = True
        try:
            answer, principal, lifetime_ms = await exchange.step(token)
        except LoginRefused:
            self.failed = True
            return Outcome(ErrorCode.SASL_AUTHENTICATION_FAILED, _refusal(exchange.mechanism))
        finally:
            self.busy = False
        if principal is None:
            return Outcome(ErrorCode.NONE, answer=answer)
        if self._mechanism and principal.name != self.principal.name:
            self.failed = True
            text = f"Cannot change principals during re-authentication from {self.principal.name}: {principal.name}"
            return Outcome(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        self._exchange = None
        self._mechanism = exchange.mechanism
        self.raw = False
        self.principal = principal
        self.known = True
        self.expires_ms = math.inf if lifetime_ms is None else self._clock.monotonic_ms() + lifetime_ms
        return Outcome(ErrorCode.NONE, None, answer, lifetime_ms or 0)


def _refusal(mechanism: str) -> str:
    if mechanism == "PLAIN":
        return "Authentication failed: Invalid username or password"
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
