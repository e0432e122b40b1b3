"""The record of a durable queue in `__topology`.

    key    queue:<vhost> NUL <name>
    value  JSON {"vhost", "name", "topic", "adopted", "auto_delete", "settings", "arguments"}

A tombstone deletes the queue.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from trunkline.broker.messaging.queue import QueueDeclaration
from trunkline.broker.state.arguments import table_from_json, to_json
from trunkline.cursors.queue import QueueSettings

KEY_PREFIX = b"queue:"


class QueueRecord(NamedTuple):
    vhost: str
    topic: str
    adopted: bool
    declaration: QueueDeclaration

    def encode(self) -> bytes:
        declaration = self.declaration
        document = {
            "vhost": self.vhost,
            "name": declaration.name,
            "topic": self.topic,
            "adopted": self.adopted,
            "auto_delete": declaration.auto_delete,
            "settings": declaration.settings.encode(),
            "arguments": to_json(declaration.arguments),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> QueueRecord:
        try:
            document = json.loads(value)
            declaration = QueueDeclaration(
                str(document["name"]),
                QueueSettings.decode(document["settings"]),
                auto_delete=bool(document["auto_delete"]),
                arguments=table_from_json(dict(document["arguments"])),
            )
            return cls(str(document["vhost"]), str(document["topic"]), bool(document["adopted"]), declaration)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a description of a queue: {error!r}") from None


def record_key(vhost: str, name: str) -> bytes:
    return KEY_PREFIX + vhost.encode() + b"\0" + name.encode()
