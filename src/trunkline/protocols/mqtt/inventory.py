"""What MQTT keeps, as the broker's administration looks at it: sessions, their subscriptions, retained messages."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from trunkline.protocols.mqtt.link import VERSION_NAMES
from trunkline.protocols.mqtt.message import traits_of
from trunkline.protocols.mqtt.sessions.commons import Commons
from trunkline.protocols.mqtt.sessions.registry import Sessions
from trunkline.protocols.mqtt.sessions.session import NEVER_EXPIRES_S, Session
from trunkline.routing.dialect import MQTT

MAX_LISTED = 10_000  # subscriptions of one session
Json = dict[str, object]


_SHOWN_BYTES = 200  # of a retained message


class Inventory:
    """Keeps the promises of the administration's `SessionKeeper`."""

    def __init__(self, sessions: Sessions, commons: Commons) -> None:
        self._sessions = sessions
        self._commons = commons

    # -- sessions ------------------------------------------------------------------------------------------------------

    def session_names(self) -> Collection[str]:
        return self._sessions.by_client.keys()

    def describe_session(self, name: str, *, whole: bool) -> Json | None:
        session = self._sessions.by_client.get(name)
        if session is None:
            return None
        summary = self._summary(session)
        return {**summary, **_contents(session)} if whole else summary

    def end_session(self, name: str) -> bool:
        return self._sessions.kill(name)

    def _summary(self, session: Session) -> Json:
        link = session.link
        behind = sum(
            max(0, source.delivered_to - session.places().get(source.tp, 0)) for source in self._commons.sources.all
        )
        return {
            "client_id": session.client_id,
            "connected": link is not None,
            "version": VERSION_NAMES.get(session.version, str(session.version)),
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

    # -- retained messages ---------------------------------------------------------------------------------------------

    def retained_names(self, topic_filter: str) -> Sequence[str]:
        MQTT.pattern_levels(topic_filter)
        retained = self._commons.retention.messages
        found = []
        for name in retained.matching(topic_filter):
            message = retained.get(name)
            if message is not None and not message.volatile:
                found.append(name)
        return found

    def describe_retained(self, topic: str) -> Json | None:
        message = self._commons.retention.messages.get(topic)
        if message is None:
            return None
        traits = traits_of(message.headers)
        return {
            "topic": topic,
            "bytes": len(message.payload),
            "payload": bytes(message.payload[:_SHOWN_BYTES]).decode("utf-8", "replace"),
            "qos": traits.qos,
            "publisher": traits.publisher,
            "timestamp_ms": message.timestamp_ms,
            "expiry_s": traits.expiry_s,
        }

    def forget_retained(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._commons.retention.messages.clear(topic)
        self._commons.agenda.schedule()


def _contents(session: Session) -> Json:
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
    return {
        "subscriptions": subscriptions,
        "places": {str(tp): offset for tp, offset in session.places().items()},
    }
