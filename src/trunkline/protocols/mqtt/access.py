"""Who may connect, and who may manage.

Users and passwords are the broker's (`broker.logins`), the same as for every protocol. With `anonymous`, which is the default,
everyone may connect, with or without a user name, and whoever comes from this machine may manage. Without it a user name and
its password are needed to connect, and the tag `administrator` to manage.

A client without a user name is who its certificate says, if it has shown one. Who authenticates by an enhanced method (see `handshake`) is always checked.
"""

from __future__ import annotations

from typing import NamedTuple

from trunkline.broker.logins import Exchange, LoginRefused, Logins
from trunkline.protocols.mqtt.errors import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, SUCCESS
from trunkline.security.principal import Principal, anonymous, is_loopback

PROTOCOL = "mqtt"


class Admission(NamedTuple):
    reason_code: int
    principal: Principal | None = None  # None: refused


class Access:
    def __init__(self, logins: Logins, *, anonymous: bool = True) -> None:
        self._logins = logins
        self.anonymous = anonymous

    def at_once(
        self, user_name: str | None, password: bytes | None, peer: str, certificate: str = ""
    ) -> Admission | None:
        """Whether a client with this in its CONNECT may come in; None: its password has to be checked."""
        if user_name is None and certificate:
            try:
                return Admission(SUCCESS, self._logins.by_certificate(certificate, peer, PROTOCOL))
            except LoginRefused:
                return Admission(NOT_AUTHORIZED)
        if user_name is not None and (not self.anonymous or self._logins.knows(user_name)):
            known = self._logins.remembered(user_name, password or b"", peer, PROTOCOL)
            return None if known is None else Admission(SUCCESS, known)
        return self._stranger(peer) or Admission(NOT_AUTHORIZED)

    async def check(self, user_name: str, password: bytes | None, peer: str) -> Admission:
        """The same, for a password that has to be checked."""
        found = await self.verify(user_name, password or b"", peer)
        return found if found.principal is not None else self._stranger(peer) or found

    def _stranger(self, peer: str) -> Admission | None:
        if not self.anonymous:
            return None
        return Admission(SUCCESS, anonymous(peer, administrator=is_loopback(peer)))

    def exchange(self, method: str, peer: str) -> Exchange | None:
        """An attempt to authenticate by a method; None if there is no such."""
        return self._logins.exchange(method, peer, PROTOCOL)

    async def verify(self, user_name: str, password: bytes, peer: str) -> Admission:
        try:
            return Admission(SUCCESS, await self._logins.by_password(user_name, password, peer, PROTOCOL))
        except LoginRefused:
            return Admission(BAD_USER_NAME_OR_PASSWORD)
