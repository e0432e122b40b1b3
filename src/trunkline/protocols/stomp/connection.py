"""What the parts of a STOMP session ask of it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Protocol

from trunkline.broker.messaging.settlements import Acknowledgements
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.protocols.stomp.limits import StompLimits
from trunkline.protocols.stomp.mapping import Envelopes
from trunkline.protocols.stomp.service import Service
from trunkline.security.principal import Principal
from trunkline.security.users import Access

Later = Coroutine[object, object, None] | None  # what a frame still has to wait for


class Connection(Protocol):
    service: Service
    limits: StompLimits
    principal: Principal
    vhost: VirtualHost
    envelopes: Envelopes
    version: int
    now_ms: int
    writable: bool
    session_id: str
    acknowledgements: Acknowledgements

    @property
    def closed(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def fail(self, failure: Exception, receipt: bytes = b"") -> None:
        """Tell the client what went wrong, and close."""

    def end(self) -> None:
        """Send what is to be sent, and close."""

    def flush(self) -> None:
        """Carry out what this turn has collected so far."""

    def check_access(self, access: Access, kind: str, name: str) -> None: ...

    def check_key(self, access: Access, exchange: str, key: str) -> None: ...

    def note_transaction(self, more_bytes: int) -> None: ...

    def note_unconfirmed(self, more_bytes: int) -> None: ...
