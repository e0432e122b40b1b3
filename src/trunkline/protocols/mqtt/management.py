"""What an administrator asks of the MQTT front door, asked over MQTT itself.

A request is a PUBLISH of 5.0 to `$SYS/manage/<operation>` with a Response Topic; its payload is a JSON object, or empty. The
answer is published to that topic, at QoS 0, with the request's Correlation Data, and is never stored: a JSON object with
`result` or `error`. Lists have at most `MAX_LISTED` entries; `total` says how many there are.

    sessions   {"filter": text in the client id}    who has a session
    session    {"client_id": …}                     one session with its subscriptions
    kill       {"client_id": …}                     end a session, and its connection
    retained   {"filter": topic filter}             retained messages
    clear      {"filter": topic filter}             forget retained messages
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable

from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.feed import Feed
from trunkline.protocols.mqtt.message import traits_of, wire_properties
from trunkline.protocols.mqtt.packets import Publish
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.sessions.commons import Commons
from trunkline.protocols.mqtt.sessions.registry import Sessions
from trunkline.protocols.mqtt.sessions.session import NEVER_EXPIRES_S, Session
from trunkline.routing.dialect import MQTT
from trunkline.routing.errors import InvalidPattern

PREFIX = "$SYS/manage/"
MAX_LISTED = 10_000
Json = dict[str, object]


class ManagementError(Exception):
    pass


class Management:
    def __init__(self, sessions: Sessions, commons: Commons, feed: Feed) -> None:
        self._sessions_here = sessions
        self._commons = commons
        self._feed = feed
        self._operations: dict[str, Callable[[Json], object]] = {
            "sessions": self._sessions,
            "session": self._session,
            "kill": self._kill,
            "retained": self._retained,
            "clear": self._clear,
        }

    def handle(self, request: Publish) -> bool:
        """Carry out a request and publish the answer; False if this is none."""
        asked = request.properties
        if not request.topic.startswith(PREFIX) or asked is None or asked.response_topic is None:
            return False
        answer: Json
        try:
            answer = {"result": self._carry_out(request.topic.removeprefix(PREFIX), request.payload)}
        except ManagementError as error:
            answer = {"error": str(error)}
        properties = Properties()
        properties.correlation_data = asked.correlation_data
        properties.content_type = "application/json"
        run = Run(asked.response_topic, [json.dumps(answer).encode()], 0, False, wire_properties(properties))
        self._feed.offer(self._commons.routes.route(run.topic), run)
        return True

    def _carry_out(self, operation: str, payload: bytes) -> object:
        carry_out = self._operations.get(operation)
        if carry_out is None:
            raise ManagementError(f"there is no operation {operation}; there are {', '.join(self._operations)}")
        try:
            asked = json.loads(payload) if payload else {}
        except ValueError:
            raise ManagementError("the request is not JSON") from None
        if not isinstance(asked, dict):
            raise ManagementError("the request is not a JSON object")
        return carry_out(asked)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _sessions(self, asked: Json) -> object:
        wanted = str(asked.get("filter", ""))
        by_client = self._sessions_here.by_client
        names = [name for name in by_client if wanted in name]
        return {
            "total": len(names),
            "sessions": [self._summary(by_client[name]) for name in heapq.nsmallest(MAX_LISTED, names)],
        }

    def _found(self, asked: Json) -> Session:
        name = str(asked.get("client_id", ""))
        session = self._sessions_here.by_client.get(name)
        if session is None:
            raise ManagementError(f"there is no session {name}")
        return session

    def _session(self, asked: Json) -> object:
        session = self._found(asked)
        subscriptions = [
            {
                "filter": each.name,
                "qos": each.qos,
                "no_local": each.no_local,
                "retain_as_published": each.retain_as_published,
                "identifier": each.identifier or None,
            }
            for each in heapq.nsmallest(MAX_LISTED, session.subscriptions.values(), key=lambda each: each.name)
        ]
        places = {str(tp): offset for tp, offset in session.places().items()}
        return {**self._summary(session), "subscriptions": subscriptions, "places": places}

    def _summary(self, session: Session) -> Json:
        link = session.link
        behind = sum(
            max(0, source.delivered_to - session.places().get(source.tp, 0)) for source in self._commons.sources.all
        )
        return {
            "client_id": session.client_id,
            "connected": link is not None,
            "version": {3: "3.1", 4: "3.1.1", 5: "5.0"}.get(session.version, str(session.version)),
            "peer": link.peer if link is not None else None,
            "user": link.user_name if link is not None else None,
            "kept": session.persistent,
            "expiry_s": None if session.expiry_s == NEVER_EXPIRES_S else session.expiry_s,
            "created_ms": session.created_ms,
            "disconnected_ms": session.disconnected_ms,
            "subscription_count": len(session.subscriptions),
            "inflight": len(session.window),
            "records_behind": 0 if session.live else behind,
            "dropped": session.dropped,
            "will": session.will.topic if session.will is not None else None,
        }

    def _kill(self, asked: Json) -> object:
        session = self._found(asked)
        self._sessions_here.kill(session.client_id)
        return {"client_id": session.client_id}

    # -- retained ------------------------------------------------------------------------------------------------------

    def _names(self, asked: Json) -> list[str]:
        topic_filter = str(asked.get("filter", "#"))
        try:
            MQTT.pattern_levels(topic_filter)
        except InvalidPattern as error:
            raise ManagementError(str(error)) from None
        retained = self._commons.retention.messages
        found = []
        for name in retained.matching(topic_filter):
            message = retained.get(name)
            if message is not None and not message.volatile:
                found.append(name)
        return found

    def _retained(self, asked: Json) -> object:
        names = self._names(asked)
        messages = []
        for name in heapq.nsmallest(MAX_LISTED, names):
            message = self._commons.retention.messages.get(name)
            if message is not None:
                traits = traits_of(message.headers)
                messages.append(
                    {
                        "topic": name,
                        "bytes": len(message.payload),
                        "qos": traits.qos,
                        "publisher": traits.publisher,
                        "timestamp_ms": message.timestamp_ms,
                        "expiry_s": traits.expiry_s,
                    }
                )
        return {"total": len(names), "messages": messages}

    def _clear(self, asked: Json) -> object:
        if "filter" not in asked:
            raise ManagementError("say which: filter")
        names = self._names(asked)
        for name in names:
            self._commons.retention.messages.clear(name)
        self._commons.agenda.schedule()
        return {"cleared": len(names)}
