"""What AMQP itself has no methods for: listing, peeking, moving, cancelling delayed messages, definitions, users.

A request is a message to the default exchange with the routing key `amq.trunkline.management`, JSON {"do": name, …} as
its body and a direct reply-to address; the reply is JSON {"ok": …} or {"error": reason, "text": …}. So the command line
needs no further port, and logs in like any client.

This only translates: what is done, who may and how much of it is the broker's `administration`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.broker.administration.administration import MAX_MOVED, MAX_PEEKED, Administration
from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.cursors.queue.errors import QueueError
from trunkline.log.errors import LogError
from trunkline.security.principal import Principal

logger = logging.getLogger(__name__)

ADDRESS: Final = "amq.trunkline.management"
_PEEKED_IF_NOT_SAID: Final = 10
_MAX_REASON: Final = 200

Json = dict[str, object]


class Management:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._looking: dict[str, Callable[[str, Json], Awaitable[object]]] = {
            "queues": self._queues,
            "exchanges": self._exchanges,
            "bindings": self._bindings,
            "peek": self._peek,
            "scheduled": self._scheduled,
            "connections": self._connections,
            "sessions": self._sessions,
        }
        self._changing: dict[str, Callable[[str, Json], Awaitable[object]]] = {
            "move": self._move,
            "cancel": self._cancel,
            "cancel_message": self._cancel_message,
            "close_connection": self._close_connection,
            "export": self._export,
            "import": self._import,
            "users": self._users,
            "put_user": self._put_user,
            "delete_user": self._delete_user,
            "put_vhost": self._put_vhost,
            "put_permission": self._put_permission,
        }

    async def answer(self, principal: Principal, vhost: VirtualHost, request: bytes) -> bytes:
        """The reply to a request; never raises."""
        try:
            asked = json.loads(request)
            if not isinstance(asked, dict):
                raise refusals.precondition("a request is a JSON object")
            return _encoded({"ok": await self._do(principal, vhost.name, asked)})
        except Refused as refused:
            return _encoded({"error": refused.reason.value, "text": refused.text})
        except (QueueError, LogError) as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": str(error)})
        except (ValueError, RecursionError) as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": f"the request is not JSON: {error}"})
        except Exception:
            logger.exception("a management request failed")
            return _encoded({"error": "internal error", "text": "see the broker's log"})

    async def _do(self, principal: Principal, vhost: str, asked: Json) -> object:
        name = str(asked.get("do"))
        work = self._looking.get(name) or self._changing.get(name)
        if work is None:
            raise refusals.precondition(f"there is no request '{name}'")
        self._administration.check_may(principal, change=name in self._changing)
        return await work(vhost, asked)

    # -- looking -------------------------------------------------------------------------------------------------

    async def _queues(self, vhost: str, asked: Json) -> object:
        name = asked.get("name")
        if name is None:
            return self._administration.queues(vhost)
        return [self._administration.queue(vhost, str(name))]

    async def _exchanges(self, vhost: str, asked: Json) -> object:
        return self._administration.exchanges(vhost)

    async def _bindings(self, vhost: str, asked: Json) -> object:
        return self._administration.bindings(vhost)

    async def _peek(self, vhost: str, asked: Json) -> object:
        offset = asked.get("offset")
        count = _number(asked, "count", _PEEKED_IF_NOT_SAID)
        return await self._administration.peek(
            vhost, str(asked.get("queue")), count, offset if isinstance(offset, int) else None
        )

    async def _scheduled(self, vhost: str, asked: Json) -> object:
        return self._administration.scheduled(vhost, str(asked.get("queue")), _number(asked, "count", MAX_PEEKED))

    async def _connections(self, vhost: str, asked: Json) -> object:
        return self._administration.connections.listed()

    async def _sessions(self, vhost: str, asked: Json) -> object:
        return self._administration.sessions.listed(str(asked.get("filter", "")))

    # -- changing ------------------------------------------------------------------------------------------------

    async def _move(self, vhost: str, asked: Json) -> object:
        count = _number(asked, "count", MAX_MOVED)
        source, destination = str(asked.get("source")), str(asked.get("destination"))
        return {"moved": await self._administration.move(vhost, source, destination, count)}

    async def _cancel(self, vhost: str, asked: Json) -> object:
        number = _number(asked, "id", -1)
        await self._administration.cancel_scheduled(vhost, str(asked.get("queue")), number)
        return {"id": number}

    async def _cancel_message(self, vhost: str, asked: Json) -> object:
        queue, message = str(asked.get("queue")), str(asked.get("message"))
        return {"cancelled": await self._administration.cancel_message(vhost, queue, message)}

    async def _close_connection(self, vhost: str, asked: Json) -> object:
        number = _number(asked, "id", 0)
        reason = str(asked.get("reason", ""))[:_MAX_REASON]
        self._administration.connections.close(number, reason or "closed by an operator")
        return {"id": number}

    async def _export(self, vhost: str, asked: Json) -> object:
        return self._administration.export_definitions()

    async def _import(self, vhost: str, asked: Json) -> object:
        document = asked.get("definitions")
        if not isinstance(document, dict):
            raise refusals.precondition("definitions are a JSON object")
        return await self._administration.import_definitions(document)

    async def _users(self, vhost: str, asked: Json) -> object:
        return self._administration.users()

    async def _put_user(self, vhost: str, asked: Json) -> object:
        name, tags = str(asked.get("name", "")), asked.get("tags")
        await self._administration.put_user(
            name, str(asked.get("password", "")), tuple(map(str, tags)) if isinstance(tags, list) else None
        )
        return {"name": name}

    async def _delete_user(self, vhost: str, asked: Json) -> object:
        name = str(asked.get("name"))
        await self._administration.delete_user(name)
        return {"name": name}

    async def _put_vhost(self, vhost: str, asked: Json) -> object:
        name = str(asked.get("name", ""))
        await self._administration.put_vhost(name)
        return {"name": name}

    async def _put_permission(self, vhost: str, asked: Json) -> object:
        user, name = str(asked.get("user")), str(asked.get("vhost", vhost))
        await self._administration.put_permission(
            user,
            name,
            configure=str(asked.get("configure", ".*")),
            write=str(asked.get("write", ".*")),
            read=str(asked.get("read", ".*")),
        )
        return {"user": user, "vhost": name}


def _number(asked: Json, name: str, default: int) -> int:
    value = asked.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refusals.precondition(f"{name} must be a whole number")
    return value


def _encoded(reply: Json) -> bytes:
    return json.dumps(reply, separators=(",", ":"), default=str).encode()
