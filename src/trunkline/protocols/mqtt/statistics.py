"""`$SYS`: what the broker counts, as retained messages of topics under `$SYS/broker`.

Updated every `interval_ms`, and only where a value changed. They are never stored. The names are those that Mosquitto
uses, where there is one, so that dashboards find them.
"""

from __future__ import annotations

from collections.abc import Callable

from trunkline.protocols.mqtt.hub import Hub
from trunkline.protocols.mqtt.message import header_section
from trunkline.protocols.mqtt.run import Run
from trunkline.version import VERSION

_PREFIX = "$SYS/broker/"


class Statistics:
    def __init__(self, hub: Hub, interval_ms: int, unsent_bytes: Callable[[], int]) -> None:
        self._hub = hub
        self._unsent_bytes = unsent_bytes
        self._interval_ms = interval_ms
        self._started_ms = hub.clock.monotonic_ms()
        self._due_ms = self._started_ms
        self._last: dict[str, bytes] = {}
        self._section = header_section(qos=0, retain=True, publisher="")

    def tick(self) -> None:
        now_ms = self._hub.clock.monotonic_ms()
        if self._interval_ms and now_ms >= self._due_ms:
            self._due_ms = now_ms + self._interval_ms
            self.publish()

    def values(self) -> dict[str, int | str]:
        hub = self._hub
        counters = hub.counters
        sessions = hub.sessions
        connected = sum(1 for session in sessions.by_client.values() if session.link is not None)
        uptime_s = int((hub.clock.monotonic_ms() - self._started_ms) // 1000)
        return {
            "version": f"trunkline version {VERSION}",
            "uptime": f"{uptime_s} seconds",
            "clients/connected": connected,
            "clients/disconnected": len(sessions.by_client) - connected,
            "clients/total": len(sessions.by_client),
            "clients/maximum": counters.connected_maximum,
            "clients/expired": counters.sessions_expired,
            "connections/count": counters.connections,
            "connections/refused": counters.connections_refused,
            "connections/taken_over": counters.taken_over,
            "connections/keep_alive_timeouts": counters.keep_alive_timeouts,
            "connections/malformed": counters.malformed,
            "subscriptions/count": sessions.subscription_count,
            "shared_subscriptions/count": len(sessions.groups),
            "retained messages/count": len(hub.retained),
            "retained messages/bytes": hub.retained.size_bytes,
            "retained messages/refused": counters.retained_refused,
            "messages/received": counters.messages_received,
            "messages/sent": counters.messages_sent,
            "publish/messages/dropped": counters.dropped,
            "publish/messages/refused": counters.refused,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "unsent bytes": self._unsent_bytes(),
        }

    def publish(self) -> None:
        hub = self._hub
        for name, value in self.values().items():
            payload = str(value).encode()
            if self._last.get(name) == payload:
                continue
            self._last[name] = payload
            topic = _PREFIX + name
            hub.retained.put(topic, payload, self._section, volatile=True)
            route = hub.routes.route(topic)
            if route.targets or route.groups:
                hub.feed.offer(route, Run(topic, [payload], 0))
