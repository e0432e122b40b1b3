"""SCRAM keys: what is kept of a password (RFC 5802, RFC 7677).

    salted password = PBKDF2(HMAC of the mechanism's hash, password, salt, iterations)
    stored key      = H( HMAC(salted password, "Client Key") )
    server key      = HMAC(salted password, "Server Key")

The two keys serve SCRAM without the broker ever seeing the password. A password that is sent as it is (PLAIN, AMQP, MQTT)
is checked by deriving the stored key again. That takes milliseconds, which is the point: it happens off the event loop.
Passwords are bytes of UTF-8 as they come; like Kafka and its clients this does not normalise them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SHA_256: Final = "SCRAM-SHA-256"
SHA_512: Final = "SCRAM-SHA-512"
MECHANISMS: Final = (SHA_256, SHA_512)
ITERATIONS: Final = 4_096
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384  # as in Kafka: every login costs as much
SALT_BYTES: Final = 16
MAX_SALT_BYTES: Final = 255
_HASHES: Final[Mapping[str, str]] = {SHA_256: "sha256", SHA_512: "sha512"}
_KEY_BYTES: Final[Mapping[str, int]] = {SHA_256: 32, SHA_512: 64}


class InvalidKeys(ValueError):
    """Keys that cannot be; the text says why."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __post_init__(self) -> None:
        if self.mechanism not in _HASHES:
            raise InvalidKeys(f"{self.mechanism!r} is none of {', '.join(_HASHES)}")
        if not MIN_ITERATIONS <= self.iterations <= MAX_ITERATIONS:
            raise InvalidKeys(f"{self.iterations} iterations are not between {MIN_ITERATIONS} and {MAX_ITERATIONS}")
        if not 1 <= len(self.salt) <= MAX_SALT_BYTES:
            raise InvalidKeys(f"a salt has 1 to {MAX_SALT_BYTES} bytes")
        if {len(self.stored_key), len(self.server_key)} != {_KEY_BYTES[self.mechanism]}:
            raise InvalidKeys(f"a key of {self.mechanism} has {_KEY_BYTES[self.mechanism]} bytes")

    def accepts(self, password: bytes) -> bool:
        """Whether this is the password. Costs milliseconds."""
        again = derive(password, self.mechanism, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(again.stored_key, self.stored_key)

    def document(self) -> dict[str, object]:
        return {
            "mechanism": self.mechanism,
            "salt": base64.b64encode(self.salt).decode(),
            "iterations": self.iterations,
            "stored_key": base64.b64encode(self.stored_key).decode(),
            "server_key": base64.b64encode(self.server_key).decode(),
        }


def from_document(document: object) -> ScramKeys:
    """The keys that `document` gave. InvalidKeys if they are not such."""
    if not isinstance(document, Mapping):
        raise InvalidKeys("SCRAM keys are an object")
    try:
        salt, stored_key, server_key = (
            base64.b64decode(str(document.get(name)), validate=True) for name in ("salt", "stored_key", "server_key")
        )
    except (binascii.Error, ValueError):
        raise InvalidKeys("SCRAM keys are base64") from None
    iterations = document.get("iterations")
    if not isinstance(iterations, int):
        raise InvalidKeys("iterations are a number")
    return ScramKeys(str(document.get("mechanism")), salt, iterations, stored_key, server_key)


def derive(password: bytes, mechanism: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> ScramKeys:
    """The keys of a password. Costs milliseconds."""
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password, salt, iterations)
    return from_salted_password(salted, mechanism, salt=salt, iterations=iterations)


def derive_all(password: bytes) -> tuple[ScramKeys, ...]:
    """Keys for every mechanism, fresh salt each. A password in clear is checked with the last: the cheapest."""
    return tuple(derive(password, mechanism) for mechanism in reversed(MECHANISMS))


def from_salted_password(salted: bytes, mechanism: str, *, salt: bytes, iterations: int) -> ScramKeys:
    """What Kafka's tools send in place of a password."""
    if mechanism not in _HASHES:
        raise InvalidKeys(f"{mechanism!r} is none of {', '.join(_HASHES)}")
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return ScramKeys(mechanism, salt, iterations, stored_key, hmac.digest(salted, b"Server Key", name))
