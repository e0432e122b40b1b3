"""The digests that senders and receivers of SQS compare: MD5 of a body, and of attributes.

Of attributes, sorted by name: for each, with its length in four bytes in front, the name, the data type, and the value, with one
byte before the value's length that tells text (1) from bytes (2).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

from trunkline.protocols.aws.message_attributes import MessageAttribute

_LENGTH: Final = struct.Struct(">I")


def of_body(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def of_attributes(attributes: Iterable[MessageAttribute]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for attribute in sorted(attributes):
        for part in (attribute.name.encode(), attribute.data_type.encode()):
            digest.update(_LENGTH.pack(len(part)) + part)
        kind = b"\x02" if attribute.binary else b"\x01"
        digest.update(kind + _LENGTH.pack(len(attribute.value)) + attribute.value)
    return digest.hexdigest()
