"""What the parts of an AMQP connection ask of it: its channels, and the handshake.

`session` keeps these promises. The parts know no more of it, and so it can know all of them.
"""

from __future__ import annotations

import logging
from typing import Protocol

from trunkline.broker.messaging.settlements import Acknowledgements
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.cursors.queue import Delivery
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.flow import Flow
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.mapping import Envelopes
from trunkline.protocols.amqp.replies import Replies
from trunkline.protocols.amqp.service import Service
from trunkline.security.principal import Principal
from trunkline.security.rules import Operation
from trunkline.security.users import Access


class Connection(Protocol):
    service: Service
    limits: AmqpLimits
    replies: Replies
    acknowledgements: Acknowledgements
    flow: Flow
    host: str
    certificate: str  # the name in the one that the client has shown; or nothing
    principal: Principal
    vhost: VirtualHost
    envelopes: Envelopes
    channel_max: int
    frame_max_bytes: int
    heartbeat_s: int
    notify_cancel: bool  # the client understands basic.cancel from the server
    notify_blocked: bool  # and connection.blocked
    client_properties: dict[str, str]  # what it says of itself, for people
    writable: bool  # the client takes what is sent
    writable_exchanges: set[str]  # that this user may publish to, as far as was asked
    now_ms: int
    owns_queues: bool  # exclusive ones

    @property
    def user(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def entered(self, vhost: VirtualHost) -> None:
        """The client works in this virtual host from now on."""

    def check_access(self, access: Access, kind: str, name: str, operation: Operation | None = None) -> None:
        """Raise AccessDenied unless the user may do this; `operation` as in the broker's `check_vhost`."""

    def check_key(self, access: Access, exchange: str, routing_key: str) -> None:
        """Raise AccessDenied unless the user may publish with this key to an exchange, or bind by it."""

    def note_transaction(self, more_bytes: int) -> None:
        """So many bytes more, or fewer, are published in transactions that are not committed."""

    def take_deliveries(self, channel: int, tags: list[int]) -> list[Delivery]:
        """Deliveries of one of its channels, for a transaction of another to settle."""

    def flush(self) -> None:
        """Carry out what this turn has collected so far."""

    def send(self, data: bytes) -> None:
        """To be written at the end of the turn."""

    def send_method(self, channel: int, method: m.Method) -> None: ...

    def complain(
        self, kind: str, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None: ...

    def logged_in(self, principal: Principal) -> None:
        """The client is who it says it is; it may be gone meanwhile."""

    def close_channels(self) -> None: ...

    def end(self) -> None:
        """Send what is to be sent, and close."""
