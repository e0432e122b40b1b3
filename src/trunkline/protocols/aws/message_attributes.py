"""Message attributes, and how they are kept in a record's headers.

An attribute is a header of its name with the value as bytes, so that AMQP and Kafka clients find it. `sqs.types` is JSON of the
data types of those that are not `String`; absent if all are. In the other direction a header of another protocol is an
attribute if SQS could have it: `String` where it is text, `Number` where AMQP typed it as one, else `Binary`; names that SQS
does not take and empty values are left out, and so are the headers by which protocols keep what is their own.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final, NamedTuple

from trunkline.broker.messaging.envelope import RESERVED, TYPED_HEADER, read_section
from trunkline.broker.messaging.typed_values import MalformedValue, decode_field
from trunkline.protocols.aws.errors import AwsError, invalid
from trunkline.protocols.aws.limits import AwsLimits

OWN: Final = "sqs."
TYPES_HEADER: Final = "sqs.types"
_OTHERS: Final = ("amqp.", "mqtt.", "stomp.", OWN, "x-death", "x-first-death-", "x-last-death-")
_NAME: Final = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.\-]{1,256}(?<!\.)")
_FORBIDDEN: Final = re.compile(r"(?i)(aws|amazon)\.")
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TYPED: Final = TYPED_HEADER.encode()
_MAX_TYPE_CHARS: Final = 256

Headers = list[tuple[str, bytes | None]]


class MessageAttribute(NamedTuple):
    name: str
    data_type: str
    value: bytes

    @property
    def binary(self) -> bool:
        return self.data_type.startswith("Binary")

    @property
    def size_bytes(self) -> int:
        return len(self.name.encode()) + len(self.data_type) + len(self.value)

    def shown(self) -> dict[str, object]:
        if self.binary:
            return {"BinaryValue": base64.b64encode(self.value).decode(), "DataType": self.data_type}
        return {"StringValue": self.value.decode("utf-8", "replace"), "DataType": self.data_type}


def legal(text: str) -> bool:
    """Whether SQS takes this as text: what XML can say."""
    return _ILLEGAL.search(text) is None


def read_attributes(given: object, limits: AwsLimits) -> list[MessageAttribute]:
    """The attributes of a request."""
    if not given:
        return []
    if not isinstance(given, dict):
        raise AwsError("SerializationException", "MessageAttributes must be a map.")
    if len(given) > limits.max_message_attributes:
        raise invalid(f"Number of message attributes [{len(given)}] exceeds the allowed maximum [{limits.max_message_attributes}].")  # fmt: skip
    return [_read(str(name), value) for name, value in given.items()]


def _read(name: str, value: object) -> MessageAttribute:
    if _NAME.fullmatch(name) is None or _FORBIDDEN.match(name) is not None:
        raise invalid(f"Message (user) attribute name '{name[:256]}' is invalid.")
    if not isinstance(value, Mapping):
        raise AwsError("SerializationException", f"The message attribute '{name}' must be a structure.")
    data_type = value.get("DataType")
    if not isinstance(data_type, str) or not data_type:
        raise invalid(f"The message attribute '{name}' must contain non-empty message attribute type.")
    kind, _, label = data_type.partition(".")
    if kind not in ("String", "Number", "Binary") or len(data_type) > _MAX_TYPE_CHARS or not legal(label):
        raise invalid(f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes is Binary, Number, and String.")  # fmt: skip
    if kind == "Binary":
        raw = _decoded(name, value.get("BinaryValue"))
    else:
        text = value.get("StringValue")
        if not isinstance(text, str) or not text:
            raise invalid(f"The message attribute '{name}' must contain non-empty message attribute value for message attribute type '{kind}'.")  # fmt: skip
        if not legal(text):
            raise invalid(f"The message attribute '{name}' contains a character that is not allowed.")
        if kind == "Number":
            _check_number(name, text)
        raw = text.encode()
    if not raw:
        raise invalid(f"The message attribute '{name}' must contain non-empty message attribute value for message attribute type '{kind}'.")  # fmt: skip
    return MessageAttribute(name, data_type, raw)


def _decoded(name: str, value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        raise AwsError("SerializationException", f"The message attribute '{name}' is no base64.") from None


def _check_number(name: str, text: str) -> None:
    try:
        number = Decimal(text)
    except ArithmeticError:
        number = Decimal("NaN")
    if not number.is_finite() or len(text) > 256:
        raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")


def as_headers(attributes: Iterable[MessageAttribute]) -> Headers:
    headers: Headers = []
    types: dict[str, str] = {}
    for attribute in attributes:
        headers.append((attribute.name, attribute.value))
        if attribute.data_type != "String":
            types[attribute.name] = attribute.data_type
    if types:
        headers.append((TYPES_HEADER, json.dumps(types, separators=(",", ":")).encode()))
    return headers


def attributes_in(section: bytes, headers: Headers) -> list[MessageAttribute]:
    """The attributes of a message, whichever protocol sent it. `headers` is the section, decoded."""
    types = _types_in(headers)
    numbers = _numbers_in(section) if _TYPED in section else frozenset()
    found: dict[str, MessageAttribute] = {}
    for name, value in headers:
        if not value or name in RESERVED or name.startswith(_OTHERS) or name in found or _NAME.fullmatch(name) is None:
            continue
        kind = types.get(name)
        if not isinstance(kind, str):
            kind = "Number" if name in numbers else "String"
        if not kind.startswith("Binary") and not _is_text(value):
            kind = "Binary"
        found[name] = MessageAttribute(name, kind, value)
    return list(found.values())


def _types_in(headers: Headers) -> dict[str, object]:
    for name, value in headers:
        if name == TYPES_HEADER:
            try:
                types = json.loads(value or b"{}")
            except (ValueError, RecursionError):
                return {}
            return types if isinstance(types, dict) else {}
    return {}


def _numbers_in(section: bytes) -> frozenset[str]:
    """The headers that AMQP typed as numbers."""
    numbers: set[str] = set()
    for name, encoded in read_section(section).table:
        try:
            value = decode_field(encoded)
        except MalformedValue:
            continue
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            numbers.add(name)
    return frozenset(numbers)


def _is_text(value: bytes) -> bool:
    try:
        return legal(value.decode())
    except UnicodeDecodeError:
        return False
