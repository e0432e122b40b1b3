"""What a request's handler may know besides the request itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from trunkline.broker.audit import CHANGE
from trunkline.broker.core import BrokerCore
from trunkline.protocols.kafka.authentication import Authentication
from trunkline.protocols.kafka.fetch_sessions import FetchSessions
from trunkline.protocols.kafka.share_sessions import ShareSessions
from trunkline.security.principal import Principal
from trunkline.security.rules import CLUSTER_NAME, OPERATIONS_OF, Kind, Operation

PROTOCOL: Final = "kafka"  # as the audit trail calls it


class CloseConnection(Exception):
    """A handler asks for the connection to be closed without a response."""


@dataclass(slots=True)
class Context:
    broker: BrokerCore
    client_id: str
    client_host: str
    local_host: str  # ours, as the client reached it
    listener: str  # the one that its connection came in on
    api_key: int
    version: int
    fetch_sessions: FetchSessions
    share_sessions: ShareSessions
    principal: Principal
    authentication: Authentication
    # To be called when everything is done that a later request on this connection could notice, if that is before the
    # answer: the later ones may begin then.
    took_effect: Callable[[], None]
    # What is to be done when the connection ends; by whom it is for, so that it can be taken back.
    at_end: dict[Hashable, Callable[[], None]]

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        """Whether this client may do this; nothing is noted if it may not."""
        return self.broker.access.allows(self.principal, operation, kind, name)

    def refuses(self, operation: Operation, kind: Kind, name: str) -> bool:
        """Whether this client may not do this, which is noted then."""
        access = self.broker.access
        if access.allows(self.principal, operation, kind, name):
            return False
        access.refused(self.principal, operation, kind, name, protocol=PROTOCOL)
        return True

    def check(self, operation: Operation, kind: Kind, name: str) -> None:
        """Raise AccessDenied unless this client may do this."""
        self.broker.access.check(self.principal, operation, kind, name, protocol=PROTOCOL)

    def check_cluster(self, operation: Operation) -> None:
        self.check(operation, Kind.CLUSTER, CLUSTER_NAME)

    def allowed_operations(self, kind: Kind, name: str) -> int:
        """What this client may do, as clients ask for it: bit n stands for the operation with the number n."""
        return sum(1 << each for each in OPERATIONS_OF[kind] if self.allows(each, kind, name))

    def changed(self, target: str, text: str) -> None:
        """Note in the audit trail what this client has changed."""
        self.broker.audit.add(CHANGE, self.principal, protocol=PROTOCOL, target=target, text=text)

    @property
    def address(self) -> tuple[str, int]:
        """Where this client is told to find the broker: the address that is configured, else the one that it found."""
        host, port = self.broker.listeners[self.listener]
        return host or self.local_host, port
