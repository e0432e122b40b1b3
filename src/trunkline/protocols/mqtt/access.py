"""Who may connect, and who may manage.

Users and passwords are the broker's (`security`), the same as for AMQP. With `anonymous`, which is the default, everyone
may connect, with or without a user name, and whoever comes from this machine may manage. Without it a user name and its
password are needed to connect, and the tag `administrator` to manage.

Who authenticates by an enhanced method (see `handshake`) is always checked.
"""

from __future__ import annotations

from typing import NamedTuple

from trunkline.protocols.mqtt.errors import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, SUCCESS
from trunkline.security.principal import Principal, anonymous, is_loopback
from trunkline.security.users import Accounts


class Admission(NamedTuple):
    reason_code: int
    principal: Principal | None = None  # None: refused


class Access:
    def __init__(self, accounts: Accounts, *, anonymous: bool = True) -> None:
        self._accounts = accounts
        self.anonymous = anonymous

    def admit(self, user_name: str | None, password: bytes | None, peer: str) -> Admission:
        """Whether a client with this in its CONNECT may come in."""
        found = Admission(NOT_AUTHORIZED) if user_name is None else self.verify(user_name, password or b"", peer)
        if self.anonymous and found.principal is None:
            return Admission(SUCCESS, anonymous(peer, administrator=is_loopback(peer)))
        return found

    def verify(self, user_name: str, password: bytes, peer: str) -> Admission:
        user = self._accounts.login(user_name, password, loopback=is_loopback(peer))
        if user is None:
            return Admission(BAD_USER_NAME_OR_PASSWORD)
        return Admission(SUCCESS, Principal(user.name, peer, user.tags))
