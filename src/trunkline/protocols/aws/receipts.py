"""Receipt handles: which delivery a consumer means when it deletes a message or changes how long it has it.

    base64url( version 1 | topic id, 16 bytes | offset, 8 | delivery count, 4 | when received in ms, 8 | seal, 8 )

The topic's id says which queue it is of, also after one was deleted and made again; the delivery count, which is kept in the
log, says which delivery: a handle is good until the message is delivered again, over restarts of the broker. The seal is a
digest under a key of the broker's, so that what a client made up is told from what it was given.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from trunkline.protocols.aws.errors import AwsError

_LAYOUT: Final = struct.Struct(">B16sqIq")
_VERSION: Final = 1
_SEAL_BYTES: Final = 8
_MAX_CHARS: Final = 1_024


class Receipt(NamedTuple):
    offset: int
    delivery_count: int
    received_ms: int


class Receipts:
    def __init__(self, secret: str) -> None:
        self._key = hashlib.blake2b(secret.encode(), digest_size=32, person=b"sqs receipts").digest()

    def handle(self, topic_id: bytes, receipt: Receipt) -> str:
        raw = _LAYOUT.pack(_VERSION, topic_id, receipt.offset, receipt.delivery_count, receipt.received_ms)
        return base64.urlsafe_b64encode(raw + self._seal(raw)).decode()

    def read(self, handle: str, topic_id: bytes) -> Receipt:
        """ReceiptHandleIsInvalid for what is no handle, or one of another queue."""
        try:
            if len(handle) > _MAX_CHARS:
                raise ValueError
            raw = base64.b64decode(handle.encode(), altchars=b"-_", validate=True)
            body, seal = raw[:-_SEAL_BYTES], raw[-_SEAL_BYTES:]
            version, topic, offset, count, received_ms = _LAYOUT.unpack(body)
        except (binascii.Error, ValueError, struct.error):
            raise _invalid(handle) from None
        if version != _VERSION or topic != topic_id or not hmac.compare_digest(seal, self._seal(body)):
            raise _invalid(handle)
        return Receipt(offset, count, received_ms)

    def _seal(self, raw: bytes) -> bytes:
        return hashlib.blake2b(raw, digest_size=_SEAL_BYTES, key=self._key).digest()


def _invalid(handle: str) -> AwsError:
    return AwsError(
        "ReceiptHandleIsInvalid", f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.'
    )
