"""Maps, teams and what was advertised, over AMQP, which has no methods for them.

A request is a message to the default exchange with the routing key `amq.trunkline.shared`, JSON {"do": name, …} as its body and a
direct reply-to address; the reply is JSON {"ok": …} or {"error": reason, "text": …}. Values are base64 beside their type.
Who changes a map or is in a team needs to be able to write to a queue `map.<name>` or `team.<name>`, who looks to read it.

This only translates: what a map and a team are, the broker says (`broker/shared`).
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.shared.advertisements import EXCHANGE, advertised
from trunkline.broker.shared.shared_map import Entry
from trunkline.broker.shared.shared_state import MAP_PREFIX, TEAM_PREFIX, SharedState
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.log.errors import LogError
from trunkline.security.users import Access

logger = logging.getLogger(__name__)

ADDRESS: Final = "amq.trunkline.shared"
_LONGEST_WAIT_MS: Final = 60_000

Json = dict[str, object]
May = Callable[[Access, str], None]  # raises unless who asks may do this to a queue of this name


class SharedRequests:
    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._requests: dict[str, Callable[[str, Json, May], Awaitable[object]]] = {
            "map.get": self._get,
            "map.items": self._items,
            "map.put": self._put,
            "map.remove": self._remove,
            "map.changes": self._changes,
            "map.version": self._version_of,
            "team.join": self._join,
            "team.leave": self._leave,
            "team.members": self._members,
            "team.send": self._send,
            "team.state": self._state,
            "team.receive": self._receive,
        }

    async def answer(self, vhost: VirtualHost, request: bytes, may: May) -> bytes:
        """The reply to a request; never raises."""
        try:
            asked = json.loads(request)
            if not isinstance(asked, dict):
                raise refusals.precondition("a request is a JSON object")
            if asked.get("do") == "advertised":
                return _encoded({"ok": _advertised(vhost, asked, may)})
            work = self._requests.get(str(asked.get("do")))
            if work is None:
                raise refusals.precondition(f"there is no request '{asked.get('do')}'")
            return _encoded({"ok": await work(vhost.name, asked, may)})
        except Refused as refused:
            return _encoded({"error": refused.reason.value, "text": refused.text})
        except LogError as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": str(error)})
        except (ValueError, RecursionError) as error:
            return _encoded({"error": Reason.PRECONDITION_FAILED.value, "text": f"the request is malformed: {error}"})
        except Exception:
            logger.exception("a request about shared state failed")
            return _encoded({"error": "internal error", "text": "see the broker's log"})

    # -- maps --------------------------------------------------------------------------------------------------------

    async def _get(self, vhost: str, asked: Json, may: May) -> object:
        name = _name(asked, MAP_PREFIX, Access.READ, may)
        entry = await (await self._shared.map(vhost, name)).get(_text(asked, "key"))
        return _entry(entry)

    async def _items(self, vhost: str, asked: Json, may: May) -> object:
        name = _name(asked, MAP_PREFIX, Access.READ, may)
        items = await (await self._shared.map(vhost, name)).items()
        return {key: _entry(entry) for key, entry in items.items()}

    async def _put(self, vhost: str, asked: Json, may: May) -> object:
        name = _name(asked, MAP_PREFIX, Access.WRITE, may)
        outcome = await (await self._shared.map(vhost, name)).put(
            _text(asked, "key"),
            base64.b64decode(_text(asked, "value")),
            _text(asked, "type"),
            _text(asked, "change"),
            _version(asked, "if"),
        )
        return outcome._asdict()

    async def _remove(self, vhost: str, asked: Json, may: May) -> object:
        name = _name(asked, MAP_PREFIX, Access.WRITE, may)
        shared_map = await self._shared.map(vhost, name)
        return (await shared_map.remove(_text(asked, "key"), _text(asked, "change"), _version(asked, "if")))._asdict()

    async def _changes(self, vhost: str, asked: Json, may: May) -> object:
        name = _name(asked, MAP_PREFIX, Access.READ, may)
        shared_map = await self._shared.map(vhost, name)
        changes, following = await shared_map.changes(_number(asked, "after"), _wait_s(asked))
        shown: list[Json] = []
        for key, version, value, kind in changes:
            entry = {"version": version} if value is None else _entry(Entry(version, value, kind))
            shown.append({"key": key, **entry})
        return {"changes": shown, "next": following}

    async def _version_of(self, vhost: str, asked: Json, may: May) -> object:
        name = _name(asked, MAP_PREFIX, Access.READ, may)
        return {"version": (await self._shared.map(vhost, name)).end}

    # -- teams -------------------------------------------------------------------------------------------------------

    async def _join(self, vhost: str, asked: Json, may: May) -> object:
        team = await self._shared.team(vhost, _name(asked, TEAM_PREFIX, Access.WRITE, may))
        member = _text(asked, "member")
        offset = await team.join(member, _number(asked, "lease_ms"), closed=asked.get("closed") is True)
        self._shared.watch()
        return {"offset": offset}

    async def _leave(self, vhost: str, asked: Json, may: May) -> object:
        team = await self._shared.team(vhost, _name(asked, TEAM_PREFIX, Access.WRITE, may))
        member = _text(asked, "member")
        return {"left": await team.leave(lambda: [member])}

    async def _members(self, vhost: str, asked: Json, may: May) -> object:
        team = await self._shared.team(vhost, _name(asked, TEAM_PREFIX, Access.READ, may))
        if isinstance(asked.get("member"), str):
            team.heard_of(_text(asked, "member"))
        await team.current()
        return {"members": team.members, "view": team.view, "closed": team.closed, "end": team.end}

    async def _send(self, vhost: str, asked: Json, may: May) -> object:
        team = await self._shared.team(vhost, _name(asked, TEAM_PREFIX, Access.WRITE, may))
        sender = _text(asked, "member")
        team.heard_of(sender)
        sent = await team.send(sender, _number(asked, "number"), _text(asked, "value"), _text(asked, "type"))
        return {"offset": sent}

    async def _state(self, vhost: str, asked: Json, may: May) -> object:
        team = await self._shared.team(vhost, _name(asked, TEAM_PREFIX, Access.WRITE, may))
        giver = _text(asked, "member")
        team.heard_of(giver)
        await team.give_state(giver, _number(asked, "view"), _text(asked, "value"), _text(asked, "type"))
        return {}

    async def _receive(self, vhost: str, asked: Json, may: May) -> object:
        team = await self._shared.team(vhost, _name(asked, TEAM_PREFIX, Access.READ, may))
        team.heard_of(_text(asked, "member"))
        records, following = await team.receive(_number(asked, "after"), _wait_s(asked))
        return {"records": records, "next": following}


def _advertised(vhost: VirtualHost, asked: Json, may: May) -> Json:
    may(Access.READ, EXCHANGE)
    found = advertised(vhost, _text(asked, "kind"), _text(asked, "text"))
    return {"advertisements": [{"kind": kind, "text": text} for kind, text in found]}


def _name(asked: Json, prefix: str, access: Access, may: May) -> str:
    name = _text(asked, "name")
    may(access, prefix + name)
    return name


def _entry(entry: Entry | None) -> Json:
    if entry is None:
        return {"version": 0}
    return {"version": entry.version, "value": base64.b64encode(entry.value).decode(), "type": entry.type}


def _text(asked: Json, name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise refusals.precondition(f"{name} must be a text")
    return value


def _number(asked: Json, name: str) -> int:
    value = asked.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refusals.precondition(f"{name} must be a whole number")
    return value


def _version(asked: Json, name: str) -> int | None:
    return None if asked.get(name) is None else _number(asked, name)


def _wait_s(asked: Json) -> float:
    return min(_number(asked, "wait_ms"), _LONGEST_WAIT_MS) / 1000


def _encoded(reply: Json) -> bytes:
    return json.dumps(reply, separators=(",", ":")).encode()
