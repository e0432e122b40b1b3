"""What AMQP itself has no methods for: listing, peeking, moving, cancelling delayed messages, definitions, users.

A request is a message to the default exchange with the routing key `amq.trunkline.management`, JSON {"do": name, …} as
its body and a direct reply-to address; the reply is JSON {"ok": …} or {"error": reason, "text": …}. So the command line
needs no further port, and logs in like any client: the user must have the tag `administrator`, or `management` for what
only looks.

Bounded: an answer of `MAX_LISTED` entries; a peek, or a list of delayed messages, of `MAX_PEEKED` messages and `MAX_PEEKED_BODY_BYTES` of each; a move of
`MAX_MOVED` messages in one request, in steps of `_MOVE_STEP`.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.messaging import Messaging
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.arguments import to_json
from trunkline.broker.state.topology import settled
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.cursors.queue.errors import QueueError
from trunkline.log.errors import LogError
from trunkline.log.records import decode_headers
from trunkline.log.store import Durability
from trunkline.protocols.amqp.definitions import (
    Json,
    binding_documents,
    exchange_document,
    export_definitions,
    import_definitions,
)
from trunkline.security.users import ADMINISTRATOR, InvalidAccount, Permission, User, hash_password

logger = logging.getLogger(__name__)

ADDRESS: Final = "amq.trunkline.management"
MAX_LISTED: Final = 100_000
MAX_PEEKED: Final = 1_000
MAX_PEEKED_BODY_BYTES: Final = 65_536
MAX_MOVED: Final = 1_000_000
_MOVE_STEP: Final = 500
_MOVE_STEP_BYTES: Final = 4 << 20


class Management:
    def __init__(self, messaging: Messaging) -> None:
        self._messaging = messaging
        self._looking: dict[str, Callable[[VirtualHost, Json], Awaitable[object]]] = {
            "queues": self._queues,
            "exchanges": self._exchanges,
            "bindings": self._bindings,
            "peek": self._peek,
            "scheduled": self._scheduled,
        }
        self._changing: dict[str, Callable[[VirtualHost, Json], Awaitable[object]]] = {
            "move": self._move,
            "cancel": self._cancel,
            "export": self._export,
            "import": self._import,
            "users": self._users,
            "put_user": self._put_user,
            "delete_user": self._delete_user,
            "put_vhost": self._put_vhost,
            "put_permission": self._put_permission,
        }

    async def answer(self, user: str, vhost: VirtualHost, request: bytes) -> bytes:
        """The reply to a request; never raises."""
        try:
            asked = json.loads(request)
            if not isinstance(asked, dict):
                raise refusals.precondition("a request is a JSON object")
            return _encoded({"ok": await self._do(user, vhost, asked)})
        except Refused as refused:
            return _encoded({"error": refused.reason.value, "text": refused.text})
        except (QueueError, LogError, InvalidAccount) as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": str(error)})
        except (ValueError, RecursionError) as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": f"the request is not JSON: {error}"})
        except Exception:
            logger.exception("a management request failed")
            return _encoded({"error": "internal error", "text": "see the broker's log"})

    async def _do(self, user: str, vhost: VirtualHost, asked: Json) -> object:
        name = str(asked.get("do"))
        account = self._messaging.topology.accounts.users.get(user)
        tags = account.tags if account is not None else ()
        work = self._looking.get(name) or self._changing.get(name)
        if work is None:
            raise refusals.precondition(f"there is no request '{name}'")
        if ADMINISTRATOR not in tags and not (name in self._looking and "management" in tags):
            raise refusals.access_refused(f"user '{user}' may not do this: it needs the tag '{ADMINISTRATOR}'")
        return await work(vhost, asked)

    # -- looking -------------------------------------------------------------------------------------------------

    async def _queues(self, vhost: VirtualHost, asked: Json) -> object:
        wanted = asked.get("name")
        queues = [queue for queue in vhost.queues.values() if wanted is None or queue.name == wanted]
        if wanted is not None and not queues:
            raise refusals.not_found("queue", str(wanted), vhost.name)
        return [_queue_document(queue) for queue in queues[:MAX_LISTED]]

    async def _exchanges(self, vhost: VirtualHost, asked: Json) -> object:
        return [exchange_document(info) for info in list(vhost.exchanges.values())[:MAX_LISTED]]

    async def _bindings(self, vhost: VirtualHost, asked: Json) -> object:
        return binding_documents(vhost)[:MAX_LISTED]

    async def _peek(self, vhost: VirtualHost, asked: Json) -> object:
        queue = self._queue(vhost, asked, "queue")
        count = min(_number(asked, "count", 10), MAX_PEEKED)
        start = asked.get("offset")
        found = await queue.cursor.peek(start if isinstance(start, int) else None, count)
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
                "body": base64.b64encode(delivery.message.value[:MAX_PEEKED_BODY_BYTES]).decode(),
            }
            for delivery in found
        ]

    async def _scheduled(self, vhost: VirtualHost, asked: Json) -> object:
        """What waits for its time, soonest first. The body of a message that is in the log only is not shown."""
        queue = self._queue(vhost, asked, "queue")
        count = min(_number(asked, "count", MAX_PEEKED), MAX_PEEKED)
        found: list[Json] = []
        for entry in queue.cursor.scheduled()[:count]:
            body = None if entry.message is None else entry.message.value[:MAX_PEEKED_BODY_BYTES]
            found.append(
                {
                    "id": entry.id,
                    "due_ms": entry.due_ms,
                    "size_bytes": None if entry.message is None else len(entry.message.value),
                    "body": None if body is None else base64.b64encode(body).decode(),
                }
            )
        return found

    def _queue(self, vhost: VirtualHost, asked: Json, member: str) -> Queue:
        name = str(asked.get(member))
        queue = vhost.queues.get(name)
        if queue is None:
            raise refusals.not_found("queue", name, vhost.name)
        return queue

    # -- changing ------------------------------------------------------------------------------------------------

    async def _move(self, vhost: VirtualHost, asked: Json) -> object:
        """Move messages from one queue to another, oldest first: each is stored there before it is settled here."""
        source, target = self._queue(vhost, asked, "source"), self._queue(vhost, asked, "destination")
        if source is target:
            raise refusals.precondition("source and destination are the same queue")
        limit = min(_number(asked, "count", MAX_MOVED), MAX_MOVED)
        moved = 0
        while moved < limit and await source.cursor.load():
            found = source.cursor.acquire(min(_MOVE_STEP, limit - moved), _MOVE_STEP_BYTES, consumer=self)
            if not found:
                break
            offsets = [delivery.offset for delivery in found]
            messages = [delivery.message._replace(timestamp_ms=-1) for delivery in found]
            try:
                await target.cursor.put(messages, Durability.DISK if target.durable else Durability.OS)
            except (QueueError, LogError):
                source.cursor.release(offsets, redelivered=False)
                raise
            source.cursor.acknowledge(offsets)
            moved += len(found)
        await self._messaging.settlements_stored()
        return {"moved": moved}

    async def _cancel(self, vhost: VirtualHost, asked: Json) -> object:
        """Drop a message that waits for its time; it is stored that it is gone before this is answered."""
        queue, number = self._queue(vhost, asked, "queue"), _number(asked, "id", -1)
        if not queue.cursor.cancel(number):
            raise Refused(Reason.NOT_FOUND, f"no delayed message {number} in queue '{queue.name}'")
        await self._messaging.settlements_stored()
        return {"id": number}

    async def _export(self, vhost: VirtualHost, asked: Json) -> object:
        return export_definitions(self._messaging)

    async def _import(self, vhost: VirtualHost, asked: Json) -> object:
        document = asked.get("definitions")
        if not isinstance(document, dict):
            raise refusals.precondition("definitions are a JSON object")
        return await import_definitions(self._messaging, document)

    async def _users(self, vhost: VirtualHost, asked: Json) -> object:
        return [
            {"name": user.name, "tags": list(user.tags)} for user in self._messaging.topology.accounts.users.values()
        ]

    async def _put_user(self, vhost: VirtualHost, asked: Json) -> object:
        tags = asked.get("tags", [])
        user = User(
            str(asked.get("name", "")),
            hash_password(str(asked.get("password", ""))),
            tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
        )
        await settled(self._messaging.topology.put_user(user))
        return {"name": user.name}

    async def _delete_user(self, vhost: VirtualHost, asked: Json) -> object:
        name = str(asked.get("name"))
        if name not in self._messaging.topology.accounts.users:
            raise Refused(Reason.NOT_FOUND, f"no user '{name}'")
        await settled(self._messaging.topology.remove_user(name))
        return {"name": name}

    async def _put_vhost(self, vhost: VirtualHost, asked: Json) -> object:
        name = str(asked.get("name", ""))
        await settled(self._messaging.topology.add_vhost(name))
        return {"name": name}

    async def _put_permission(self, vhost: VirtualHost, asked: Json) -> object:
        permission = Permission(
            str(asked.get("configure", ".*")), str(asked.get("write", ".*")), str(asked.get("read", ".*"))
        )
        user, name = str(asked.get("user")), str(asked.get("vhost", vhost.name))
        if name not in self._messaging.topology.vhosts:
            raise Refused(Reason.NOT_FOUND, f"no vhost '{name}'")
        await settled(self._messaging.topology.put_permission(user, name, permission))
        return {"user": user, "vhost": name}


def _queue_document(queue: Queue) -> Json:
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "topic": queue.cursor.topic,
        "durable": queue.declaration.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "arguments": to_json(queue.arguments),
        **queue.cursor.stats()._asdict(),
    }


def _number(asked: Json, name: str, default: int) -> int:
    value = asked.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refusals.precondition(f"{name} must be a whole number")
    return value


def _encoded(reply: Json) -> bytes:
    return json.dumps(reply, separators=(",", ":"), default=str).encode()
