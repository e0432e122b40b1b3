"""What a message says, to subscriptions with a condition: its user properties, and the members of a JSON payload.

A SUBSCRIBE of MQTT 5 with the user property `filter` asks only for messages that it matches, in the language of content exchanges:
`price < 100 and company = 'Telco'`. User properties are texts; numbers are compared in the payload.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from trunkline.protocols.mqtt.errors import MalformedPacket
from trunkline.protocols.mqtt.message import Message
from trunkline.protocols.mqtt.properties import IN_PUBLISH, decode_properties
from trunkline.protocols.mqtt.values import ValueReader
from trunkline.routing.fields import Fields

FILTER_PROPERTY: Final = "filter"
EXPIRY_PROPERTY: Final = "expiry"
_LONGEST_S: Final = 10 * 365 * 86_400.0
_MAX_REMEMBERED: Final = 1_024


def seconds(text: str | None) -> float | None:
    """What the property says, if it is a length of time."""
    try:
        found = float(text or "nan")
    except ValueError:
        return None
    return min(found, _LONGEST_S) if found >= 0 else None


def fields_of(message: Message) -> Fields:
    return Fields(_headers_of(message.properties), message.payload)


@lru_cache(_MAX_REMEMBERED)
def _headers_of(section: bytes) -> dict[str, object]:
    try:
        properties = decode_properties(ValueReader(section, 0, len(section)), IN_PUBLISH)
    except MalformedPacket:
        return {}
    return {} if properties is None else dict(properties.user_properties)
