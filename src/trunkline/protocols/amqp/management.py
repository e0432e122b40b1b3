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
from typing import Final, NamedTuple

from trunkline.broker.access import AccessDenied
from trunkline.broker.administration.administration import MAX_MOVED, MAX_PEEKED, Administration
from trunkline.broker.administration.rules import parse_rule
from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.cursors.queue.errors import QueueError
from trunkline.log.errors import LogError
from trunkline.security.limits import InvalidLimit
from trunkline.security.principal import Principal
from trunkline.security.rules import InvalidRule, Rule
from trunkline.security.topic_permissions import TopicPermission
from trunkline.security.users import InvalidAccount

logger = logging.getLogger(__name__)

PROTOCOL: Final = "amqp"
# What is noted in the audit trail of these, and the field that says what it is about. Rules are noted one by one.
_NOTED: Final = {
    "import": ("definitions", ""),
    "put_user": ("user", "name"),
    "delete_user": ("user", "name"),
    "put_vhost": ("vhost", "name"),
    "put_permission": ("permission of", "user"),
    "move": ("messages of queue", "source"),
}
ADDRESS: Final = "amq.trunkline.management"
_PEEKED_IF_NOT_SAID: Final = 10
_MAX_REASON: Final = 200

Json = dict[str, object]
Work = Callable[["Asked"], Awaitable[object]]


class Asked(NamedTuple):
    """A request: who asks, in which virtual host, and what else it says."""

    asker: Principal
    vhost: str
    fields: Json

    def get(self, name: str, default: object = None) -> object:
        return self.fields.get(name, default)

    def text(self, name: str, default: str = "") -> str:
        value = self.fields.get(name)
        return default if value is None else str(value)


class Management:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._rules = administration.rules
        self._looking: dict[str, Work] = {
            "queues": self._queues,
            "exchanges": self._exchanges,
            "bindings": self._bindings,
            "peek": self._peek,
            "scheduled": self._scheduled,
            "connections": self._connections,
            "sessions": self._sessions,
        }
        self._changing: dict[str, Work] = {
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
            "rules": self._list_rules,
            "add_rules": self._add_rules,
            "remove_rules": self._remove_rules,
            "test_access": self._test_access,
            "put_topic_permission": self._put_topic_permission,
            "limits": self._limits,
            "put_limits": self._put_limits,
            "audit": self._audit,
        }

    async def answer(self, asker: Principal, vhost: VirtualHost, request: bytes) -> bytes:
        """The reply to a request; never raises."""
        try:
            asked = json.loads(request)
            if not isinstance(asked, dict):
                raise refusals.precondition("a request is a JSON object")
            return _encoded({"ok": await self._do(Asked(asker, vhost.name, asked))})
        except Refused as refused:
            return _encoded({"error": refused.reason.value, "text": refused.text})
        except AccessDenied as denied:
            return _encoded({"error": Reason.ACCESS_REFUSED.value, "text": str(denied)})
        except (QueueError, LogError, InvalidRule, InvalidAccount, InvalidLimit) as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": str(error)})
        except (ValueError, RecursionError) as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": f"the request is not JSON: {error}"})
        except Exception:
            logger.exception("a management request failed")
            return _encoded({"error": "internal error", "text": "see the broker's log"})

    async def _do(self, asked: Asked) -> object:
        name = asked.text("do")
        work = self._looking.get(name) or self._changing.get(name)
        if work is None:
            raise refusals.precondition(f"there is no request '{name}'")
        self._administration.check_may(asked.asker, change=name in self._changing, vhost=asked.vhost)
        done = await work(asked)
        if name in _NOTED:
            what, field = _NOTED[name]
            self._rules.note(asked.asker, f"{what} {asked.text(field)}".strip(), name.replace("_", " "), PROTOCOL)
        return done

    # -- looking -------------------------------------------------------------------------------------------------

    async def _queues(self, asked: Asked) -> object:
        name = asked.get("name")
        if name is None:
            return self._administration.queues(asked.vhost)
        return [self._administration.queue(asked.vhost, str(name))]

    async def _exchanges(self, asked: Asked) -> object:
        return self._administration.exchanges(asked.vhost)

    async def _bindings(self, asked: Asked) -> object:
        return self._administration.bindings(asked.vhost)

    async def _peek(self, asked: Asked) -> object:
        offset = asked.get("offset")
        count = _number(asked, "count", _PEEKED_IF_NOT_SAID)
        self._administration.check_readable(asked.asker, asked.vhost, asked.text("queue"), PROTOCOL)
        return await self._administration.peek(
            asked.vhost, str(asked.get("queue")), count, offset if isinstance(offset, int) else None
        )

    async def _scheduled(self, asked: Asked) -> object:
        self._administration.check_readable(asked.asker, asked.vhost, asked.text("queue"), PROTOCOL)
        return self._administration.scheduled(asked.vhost, str(asked.get("queue")), _number(asked, "count", MAX_PEEKED))

    async def _connections(self, asked: Asked) -> object:
        return self._administration.connections.listed()

    async def _sessions(self, asked: Asked) -> object:
        return self._administration.sessions.listed(asked.text("filter"))

    # -- changing ------------------------------------------------------------------------------------------------

    async def _move(self, asked: Asked) -> object:
        count = _number(asked, "count", MAX_MOVED)
        source, destination = str(asked.get("source")), str(asked.get("destination"))
        return {"moved": await self._administration.move(asked.vhost, source, destination, count)}

    async def _cancel(self, asked: Asked) -> object:
        number = _number(asked, "id", -1)
        await self._administration.cancel_scheduled(asked.vhost, str(asked.get("queue")), number)
        return {"id": number}

    async def _cancel_message(self, asked: Asked) -> object:
        queue, message = asked.text("queue"), asked.text("message")
        return {"cancelled": await self._administration.cancel_message(asked.vhost, queue, message)}

    async def _close_connection(self, asked: Asked) -> object:
        number = _number(asked, "id", 0)
        reason = asked.text("reason")[:_MAX_REASON]
        self._administration.connections.close(number, reason or "closed by an operator")
        return {"id": number}

    async def _export(self, asked: Asked) -> object:
        return self._administration.export_definitions()

    async def _import(self, asked: Asked) -> object:
        document = asked.get("definitions")
        if not isinstance(document, dict):
            raise refusals.precondition("definitions are a JSON object")
        return await self._administration.import_definitions(document)

    async def _users(self, asked: Asked) -> object:
        return self._administration.users()

    async def _put_user(self, asked: Asked) -> object:
        name, tags = str(asked.get("name", "")), asked.get("tags")
        await self._administration.put_user(
            name, str(asked.get("password", "")), tuple(map(str, tags)) if isinstance(tags, list) else None
        )
        return {"name": name}

    async def _delete_user(self, asked: Asked) -> object:
        name = str(asked.get("name"))
        await self._administration.delete_user(name)
        return {"name": name}

    async def _put_vhost(self, asked: Asked) -> object:
        name = str(asked.get("name", ""))
        await self._administration.put_vhost(name)
        return {"name": name}

    async def _put_permission(self, asked: Asked) -> object:
        user, name = str(asked.get("user")), str(asked.get("vhost", asked.vhost))
        await self._administration.put_permission(
            user,
            name,
            configure=str(asked.get("configure", ".*")),
            write=str(asked.get("write", ".*")),
            read=str(asked.get("read", ".*")),
        )
        return {"user": user, "vhost": name}

    # -- rules, and what happened ----------------------------------------------------------------------------------

    async def _list_rules(self, asked: Asked) -> object:
        user = asked.get("user")
        return self._rules.listed(None if user is None else str(user))

    async def _add_rules(self, asked: Asked) -> object:
        return {"added": await self._rules.add(asked.asker, _rules_of(asked), PROTOCOL)}

    async def _remove_rules(self, asked: Asked) -> object:
        return {"removed": await self._rules.remove(asked.asker, _rules_of(asked), PROTOCOL)}

    async def _test_access(self, asked: Asked) -> object:
        decision = self._rules.decide(
            asked.text("user"),
            asked.text("operation"),
            asked.text("resource"),
            asked.text("protocol", "kafka"),
            vhost=asked.text("vhost", asked.vhost),
            host=asked.text("host"),
            client_id=asked.text("client_id"),
        )
        return decision._asdict()

    async def _put_topic_permission(self, asked: Asked) -> object:
        place = (asked.text("user"), asked.text("vhost", asked.vhost), asked.text("exchange"))
        permission = TopicPermission(asked.text("write", ".*"), asked.text("read", ".*"))
        await self._rules.put_topic_permission(asked.asker, place, permission, PROTOCOL)
        return {"user": place[0]}

    async def _limits(self, asked: Asked) -> object:
        return self._rules.limits()

    async def _put_limits(self, asked: Asked) -> object:
        values = asked.get("limits")
        if not isinstance(values, dict):
            raise refusals.precondition("limits are a JSON object")
        await self._rules.put_limits(asked.asker, asked.text("kind"), asked.text("name"), values, PROTOCOL)
        return {"name": asked.text("name")}

    async def _audit(self, asked: Asked) -> object:
        offset = asked.get("offset")
        page = await self._rules.audited(offset if isinstance(offset, int) else None, _number(asked, "count", 100))
        return page._asdict()


def _rules_of(asked: Asked) -> list[Rule]:
    operations = asked.get("operations")
    if not isinstance(operations, list):
        raise refusals.precondition("operations are a list")
    return [
        parse_rule(
            asked.text("user"),
            str(operation),
            asked.text("resource"),
            deny=asked.get("deny") is True,
            host=asked.text("host", "*"),
        )
        for operation in operations
    ]


def _number(asked: Asked, name: str, default: int) -> int:
    value = asked.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refusals.precondition(f"{name} must be a whole number")
    return value


def _encoded(reply: Json) -> bytes:
    return json.dumps(reply, separators=(",", ":"), default=str).encode()
