"""A run: consecutive publications of one topic, offered to everyone who follows live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.protocols.mqtt.codec import OutgoingPublish, encode_publishes
from trunkline.protocols.mqtt.message import Message

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.source import Source


class Run:
    """Consecutive publications of one topic."""

    __slots__ = ("_shared", "messages", "plain", "source", "top_qos")

    def __init__(self, messages: list[Message], source: Source | None) -> None:
        self.messages = messages
        self.source = source
        self.top_qos = 0
        self.plain = True  # whether all go out as they came
        for message in messages:
            self.top_qos = max(self.top_qos, message.qos)
            if message.expires_ms is not None:
                self.plain = False
        self._shared: dict[tuple[int, bool], bytes] = {}

    def shared(self, version: int, retain_as_published: bool) -> bytes:
        """The run at QoS 0 for everyone of this version who wants nothing special."""
        key = (version, retain_as_published)
        data = self._shared.get(key)
        if data is None:
            out: list[OutgoingPublish] = [
                (m.topic, m.payload, 0, m.retain and retain_as_published, False, 0, m.properties) for m in self.messages
            ]
            data = self._shared[key] = encode_publishes(out, version)
        return data
