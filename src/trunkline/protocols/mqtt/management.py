"""What an administrator asks of the broker, asked over MQTT itself.

A request is a PUBLISH of 5.0 to `$SYS/manage/<operation>` with a Response Topic; its payload is a JSON object, or empty. The
answer is published to that topic, at QoS 0, with the request's Correlation Data, and is never stored: a JSON object with
`result` or `error`. Lists are bounded; `total` says how many there are.

    sessions   {"filter": text in the client id}    who has a session
    session    {"client_id": …}                     one session with its subscriptions
    kill       {"client_id": …}                     end a session, and its connection
    retained   {"filter": topic filter}             retained messages
    clear      {"filter": topic filter}             forget retained messages

This only translates: what is done, who may and how much of it is the broker's `administration`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from trunkline.broker.administration.administration import Administration
from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.refusals import Refused
from trunkline.protocols.mqtt.codec import Properties
from trunkline.protocols.mqtt.feed import Feed
from trunkline.protocols.mqtt.message import wire_properties
from trunkline.protocols.mqtt.packets import Publish
from trunkline.protocols.mqtt.routes import Routes
from trunkline.protocols.mqtt.run import Run
from trunkline.security.principal import Principal

PREFIX = "$SYS/manage/"
Json = dict[str, object]


class Management:
    def __init__(self, administration: Administration, routes: Routes, feed: Feed) -> None:
        self._administration = administration
        self._routes = routes
        self._feed = feed
        self._looking: dict[str, Callable[[Json], object]] = {
            "sessions": self._sessions,
            "session": self._session,
            "retained": self._retained,
        }
        self._changing: dict[str, Callable[[Json], object]] = {"kill": self._kill, "clear": self._clear}

    def handle(self, principal: Principal, request: Publish) -> bool:
        """Carry out a request and publish the answer; False if this is none, or of somebody who may ask for nothing."""
        asked = request.properties
        if not request.topic.startswith(PREFIX) or asked is None or asked.response_topic is None:
            return False
        if not self._administration.may(principal, change=False):
            return False
        answer: Json
        try:
            answer = {"result": self._carry_out(principal, request.topic.removeprefix(PREFIX), request.payload)}
        except Refused as refused:
            answer = {"error": refused.text}
        properties = Properties()
        properties.correlation_data = asked.correlation_data
        properties.content_type = "application/json"
        run = Run(asked.response_topic, [json.dumps(answer).encode()], 0, False, wire_properties(properties))
        self._feed.offer(self._routes.route(run.topic), run)
        return True

    def _carry_out(self, principal: Principal, operation: str, payload: bytes) -> object:
        carry_out = self._looking.get(operation) or self._changing.get(operation)
        if carry_out is None:
            known = ", ".join(sorted((*self._looking, *self._changing)))
            raise refusals.precondition(f"there is no operation {operation}; there are {known}")
        self._administration.check_may(principal, change=operation in self._changing)
        try:
            asked = json.loads(payload) if payload else {}
        except (ValueError, RecursionError):
            raise refusals.precondition("the request is not JSON") from None
        if not isinstance(asked, dict):
            raise refusals.precondition("the request is not a JSON object")
        done = carry_out(asked)
        if operation in self._changing:
            what = ", ".join(f"{name} {value}" for name, value in asked.items())
            self._administration.rules.note(principal, f"MQTT: {operation}", what, "mqtt")
        return done

    def _sessions(self, asked: Json) -> object:
        return self._administration.sessions.listed(str(asked.get("filter", "")))

    def _session(self, asked: Json) -> object:
        return self._administration.sessions.one(str(asked.get("client_id", "")))

    def _kill(self, asked: Json) -> object:
        name = str(asked.get("client_id", ""))
        self._administration.sessions.end(name)
        return {"client_id": name}

    def _retained(self, asked: Json) -> object:
        return self._administration.sessions.retained(str(asked.get("filter", "#")))

    def _clear(self, asked: Json) -> object:
        if "filter" not in asked:
            raise refusals.precondition("say which: filter")
        return {"cleared": self._administration.sessions.clear_retained(str(asked["filter"]))}
