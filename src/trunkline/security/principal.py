"""A principal: who asks. It comes with every call that a client makes to the broker, whatever the protocol.

A session has one from the start: `anonymous` until its client has logged in, and whoever logged in from then on. Rules are
about `name` and `host`; `tags` are the user's, as in RabbitMQ, and `administrator` among them stands above all rules.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

ANONYMOUS_NAME: Final = "ANONYMOUS"  # as in Kafka, whose rules name it `User:ANONYMOUS`
_ADMINISTRATOR: Final = "administrator"


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    host: str = ""  # the client's address
    tags: tuple[str, ...] = ()

    @property
    def administrator(self) -> bool:
        return _ADMINISTRATOR in self.tags


@lru_cache(maxsize=4_096)
def is_loopback(host: str) -> bool:
    """Whether a client with this address is on the same machine."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def anonymous(host: str, *, administrator: bool = False) -> Principal:
    """Who has not said who they are; on a broker that asks nobody, such a client may administer it from the same machine."""
    return Principal(ANONYMOUS_NAME, host, (_ADMINISTRATOR,) if administrator else ())
