"""Administration: what can be looked at and changed beside publishing and consuming, whoever asks and in whatever protocol.

The managements over AMQP (the command line's queue commands go through it), MQTT and HTTP call this; they translate requests
and answers, and decide nothing. What is listed comes as JSON objects, with RabbitMQ's names where it has them.

Connections of every protocol are in `connections`, sessions and retained messages in `sessions`.

Who may: the tag `administrator` for everything, `monitoring`, `management` and `policymaker` for what only looks (`check_may`).

Bounded: a list has `MAX_LISTED` entries; a peek, or a list of delayed messages, `MAX_PEEKED` messages and
`MAX_PEEKED_BODY_BYTES` of each; a move `MAX_MOVED` messages, in steps of `_MOVE_STEP`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trunkline.broker.access import AccessControl
from trunkline.broker.administration.connections import Connections
from trunkline.broker.administration.definitions import (
    Json,
    binding_documents,
    exchange_document,
    export_definitions,
    import_definitions,
)
from trunkline.broker.administration.rules import RuleAdministration
from trunkline.broker.administration.sessions import Sessions
from trunkline.broker.audit import Audit
from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.envelope import MESSAGE_ID_HEADER
from trunkline.broker.messaging.messaging import Messaging
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.accounts import AccountRecords
from trunkline.broker.state.arguments import to_json
from trunkline.broker.state.topology import settled
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.cursors.queue import Message
from trunkline.cursors.queue.errors import QueueError
from trunkline.log.errors import LogError
from trunkline.log.records import decode_headers
from trunkline.log.store import Durability
from trunkline.security.principal import Principal
from trunkline.security.users import ADMINISTRATOR, Access, InvalidAccount, Permission, User

MAX_LISTED: Final = 100_000
MAX_PEEKED: Final = 1_000
MAX_PEEKED_BODY_BYTES: Final = 65_536
MAX_MOVED: Final = 1_000_000
_MOVE_STEP: Final = 500
_MOVE_STEP_BYTES: Final = 4 << 20


class Administration:
    def __init__(
        self,
        messaging: Messaging,
        users: AccountRecords,
        access: AccessControl,
        audit: Audit,
        connections: Connections,
    ) -> None:
        self.connections = connections
        self.sessions = Sessions()
        self.rules = RuleAdministration(access, audit)
        self._access = access
        self._messaging = messaging
        self._users = users
        self._topology = messaging.topology
        self._queues = messaging.queues

    def may(self, principal: Principal, *, change: bool, vhost: str | None = None) -> bool:
        """Whether somebody may look at everything (in a virtual host), or also change it.

        By the tags that its account has now, if it has one.
        """
        account = self._users.accounts.users.get(principal.name)
        if account is not None and account.tags != principal.tags:
            principal = replace(principal, tags=account.tags)
        return self._access.may_manage(principal, change=change, vhost=vhost)

    def check_may(self, principal: Principal, *, change: bool, vhost: str | None = None) -> None:
        if not self.may(principal, change=change, vhost=vhost):
            text = f"user '{principal.name}' may not do this: it needs the tag '{ADMINISTRATOR}'"
            raise refusals.access_refused(text)

    def check_readable(self, principal: Principal, vhost: str, queue: str, protocol: str) -> None:
        """AccessDenied unless somebody may see the messages of a queue: who could consume them, and administrators."""
        if not self.may(principal, change=True):
            self._access.check_vhost(principal, vhost, Access.READ, queue, protocol=protocol)

    # -- queues --------------------------------------------------------------------------------------------------

    def queues(self, vhost: str) -> list[Json]:
        return [_queue_document(queue) for queue in list(self._vhost(vhost).queues.values())[:MAX_LISTED]]

    def queue(self, vhost: str, name: str) -> Json:
        return _queue_document(self._queues.require(name, vhost))

    async def peek(self, vhost: str, name: str, count: int, offset: int | None = None) -> list[Json]:
        """The next messages, or those from an offset on, without taking them."""
        found = await self._queues.require(name, vhost).cursor.peek(offset, min(count, MAX_PEEKED))
        return [
            {
                "offset": delivery.offset,
                "timestamp_ms": delivery.message.timestamp_ms,
                "redelivered": delivery.redelivered,
                "headers": [
                    [name, None if value is None else value.decode("utf-8", "replace")]
                    for name, value in decode_headers(delivery.message.headers)
                    if name != "amqp.headers"
                ],
                "size_bytes": len(delivery.message.value),
                "body": _shown_body(delivery.message.value),
            }
            for delivery in found
        ]

    def scheduled(self, vhost: str, name: str, count: int = MAX_PEEKED) -> list[Json]:
        """What waits for its time, soonest first. The body of a message that is in the log only is not shown."""
        return [
            {
                "id": entry.id,
                "due_ms": entry.due_ms,
                "size_bytes": None if entry.message is None else len(entry.message.value),
                "body": None if entry.message is None else _shown_body(entry.message.value),
            }
            for entry in self._queues.require(name, vhost).cursor.scheduled()[: min(count, MAX_PEEKED)]
        ]

    async def cancel_scheduled(self, vhost: str, name: str, number: int) -> None:
        """Drop a message that waits for its time; it is stored that it is gone before this returns."""
        queue = self._queues.require(name, vhost)
        if not queue.cursor.cancel(number):
            raise Refused(Reason.NOT_FOUND, f"no delayed message {number} in queue '{queue.name}'")
        await self._messaging.settlements_stored()

    async def cancel_message(self, vhost: str, name: str, message_id: str) -> bool:
        """The same for the message with this id; False if none waits that has it."""
        wanted = message_id.encode()

        def chosen(message: Message) -> bool:
            return wanted in message.headers and (MESSAGE_ID_HEADER, wanted) in decode_headers(message.headers)

        cancelled = await self._queues.require(name, vhost).cursor.cancel_chosen(chosen)
        await self._messaging.settlements_stored()
        return cancelled

    async def move(self, vhost: str, source: str, destination: str, count: int = MAX_MOVED) -> int:
        """Move messages from one queue to another, oldest first: each is stored there before it is settled here."""
        origin, target = self._queues.require(source, vhost), self._queues.require(destination, vhost)
        if origin is target:
            raise refusals.precondition("source and destination are the same queue")
        limit = min(count, MAX_MOVED)
        moved = 0
        while moved < limit and await origin.cursor.load():
            found = origin.cursor.acquire(min(_MOVE_STEP, limit - moved), _MOVE_STEP_BYTES, consumer=self)
            if not found:
                break
            offsets = [delivery.offset for delivery in found]
            messages = [delivery.message._replace(timestamp_ms=-1) for delivery in found]
            try:
                await target.cursor.put(messages, Durability.DISK if target.durable else Durability.OS)
            except (QueueError, LogError):
                origin.cursor.release(offsets, redelivered=False)
                raise
            origin.cursor.acknowledge(offsets)
            moved += len(found)
        await self._messaging.settlements_stored()
        return moved

    # -- exchanges, bindings, virtual hosts ------------------------------------------------------------------------

    def exchanges(self, vhost: str) -> list[Json]:
        return [exchange_document(info) for info in list(self._vhost(vhost).exchanges.values())[:MAX_LISTED]]

    def bindings(self, vhost: str) -> list[Json]:
        return binding_documents(self._vhost(vhost))[:MAX_LISTED]

    async def put_vhost(self, name: str) -> None:
        await settled(self._topology.add_vhost(name))

    def _vhost(self, name: str) -> VirtualHost:
        found = self._topology.vhosts.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"no vhost '{name}'")
        return found

    # -- users and permissions -------------------------------------------------------------------------------------

    def users(self) -> list[Json]:
        return [{"name": user.name, "tags": list(user.tags)} for user in self._users.accounts.users.values()]

    async def put_user(self, name: str, password: str, tags: Sequence[str] | None = ()) -> None:
        """`tags` None: as they are. A user with an empty password cannot log in with one."""
        try:
            known = self._users.accounts.users.get(name)
            user = User(name, tags=tuple(tags if tags is not None else known.tags if known is not None else ()))
            if password:
                user = await asyncio.to_thread(user.with_password, password.encode())
            recorded = self._users.put_user(user)
        except InvalidAccount as error:
            raise refusals.precondition(str(error)) from None
        await settled(recorded)

    async def delete_user(self, name: str) -> None:
        if name not in self._users.accounts.users:
            raise Refused(Reason.NOT_FOUND, f"no user '{name}'")
        await settled(self._users.remove_user(name))

    async def put_permission(self, user: str, vhost: str, *, configure: str, write: str, read: str) -> None:
        self._vhost(vhost)
        try:
            recorded = self._users.put_permission(user, vhost, Permission(configure, write, read))
        except InvalidAccount as error:
            raise refusals.precondition(str(error)) from None
        await settled(recorded)

    # -- definitions -----------------------------------------------------------------------------------------------

    def export_definitions(self) -> Json:
        return export_definitions(self._messaging, self._users.accounts, self._access.book)

    async def import_definitions(self, document: Json) -> Json:
        return await import_definitions(self._messaging, self._users, self._access.book, document)


def _queue_document(queue: Queue) -> Json:
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "topic": queue.topic,
        "durable": queue.declaration.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "arguments": to_json(queue.arguments),
        **queue.cursor.stats()._asdict(),
    }


def _shown_body(value: bytes) -> str:
    return base64.b64encode(value[:MAX_PEEKED_BODY_BYTES]).decode()
