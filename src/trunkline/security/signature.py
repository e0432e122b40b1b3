"""Amazon's Signature Version 4: whether a request was signed with the secret of the user that it names. Pure computation.

    Authorization: AWS4-HMAC-SHA256 Credential=<user>/<date>/<region>/<service>/aws4_request, SignedHeaders=<a;b>, Signature=<hex>

or the same as fields of the query (`X-Amz-Credential`, …), for a URL that was signed in advance. The secret is needed as it is,
not as a hash of it: a signature is keyed by it. Times may differ by `MAX_SKEW_S`; a URL lives as long as it says.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

ALGORITHM: Final = "AWS4-HMAC-SHA256"
MAX_SKEW_S: Final = 900
MAX_URL_S: Final = 604_800
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"


class SignatureMissing(ValueError):
    """The request is not signed, or its signature cannot be read."""


class SignatureWrong(ValueError):
    """The request was not signed with this secret, or not now."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What of a request is signed. `path` and `query` are as sent; the names of `headers` are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Signature:
    access_key: str
    date: str  # of the credential: YYYYMMDD
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str
    time: str  # YYYYMMDDTHHMMSSZ
    lives_s: int | None = None  # of a signed URL

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def read_signature(request: SignedRequest) -> Signature:
    """SignatureMissing if there is none that can be read."""
    header = request.headers.get("authorization")
    if header is None:
        return _read_query(request)
    algorithm, _, rest = header.partition(" ")
    parts: dict[str, str] = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        parts[name] = value
    if algorithm != ALGORITHM or not {"Credential", "SignedHeaders", "Signature"} <= parts.keys():
        raise SignatureMissing("the Authorization header is no signature of version 4")
    time = request.headers.get("x-amz-date", "")
    return _made(parts["Credential"], parts["SignedHeaders"], parts["Signature"], time, None)


def _read_query(request: SignedRequest) -> Signature:
    fields = dict(_query_pairs(request.query))
    if fields.get("X-Amz-Algorithm") != ALGORITHM:
        raise SignatureMissing("the request is not signed")
    lives = fields.get("X-Amz-Expires", "")
    if not lives.isdigit() or not 1 <= int(lives) <= MAX_URL_S:
        raise SignatureMissing("X-Amz-Expires says how many seconds the URL lives, a week at most")
    return _made(
        fields.get("X-Amz-Credential", ""),
        fields.get("X-Amz-SignedHeaders", ""),
        fields.get("X-Amz-Signature", ""),
        fields.get("X-Amz-Date", ""),
        int(lives),
    )


def _made(credential: str, signed_headers: str, signature: str, time: str, lives_s: int | None) -> Signature:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or parts[4] != "aws4_request" or not all(parts):
        raise SignatureMissing("the credential has no scope")
    return Signature(
        parts[0], parts[1], parts[2], parts[3], tuple(signed_headers.lower().split(";")), signature, time, lives_s
    )


def verify(request: SignedRequest, signature: Signature, secret: str, now_s: float) -> None:
    """SignatureWrong unless the request was signed with this secret, now."""
    try:
        signed_s = datetime.strptime(signature.time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise SignatureWrong("the request does not say when it was signed") from None
    oldest_s = MAX_SKEW_S if signature.lives_s is None else signature.lives_s
    if not -MAX_SKEW_S <= now_s - signed_s <= oldest_s or not signature.time.startswith(signature.date):
        raise SignatureWrong(f"the signature of {signature.time} is not of now")
    if "host" not in signature.signed_headers:
        raise SignatureWrong("the host is not among the signed headers")
    expected = sign(request, signature, secret)
    if not hmac.compare_digest(expected, signature.signature):
        raise SignatureWrong("the signature is not that of the request under the user's secret")


def sign(request: SignedRequest, signature: Signature, secret: str) -> str:
    """The signature that a request should have."""
    payload = hashlib.sha256(request.body).hexdigest()
    claimed = request.headers.get("x-amz-content-sha256")
    if signature.lives_s is None and claimed == _UNSIGNED:
        payload = _UNSIGNED
    headers = "".join(f"{name}:{_trimmed(request.headers.get(name, ''))}\n" for name in signature.signed_headers)
    canonical = "\n".join(
        (
            request.method,
            _canonical_path(request.path),
            _canonical_query(request.query),
            headers,
            ";".join(signature.signed_headers),
            payload,
        )
    )
    to_sign = "\n".join((ALGORITHM, signature.time, signature.scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in (signature.date, signature.region, signature.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, to_sign.encode(), "sha256").hexdigest()


def _trimmed(value: str) -> str:
    return " ".join(value.split())


def _canonical_path(path: str) -> str:
    """Encoded once more than it was sent, as all services but one have it."""
    return quote(path or "/", safe="/-_.~")


def _canonical_query(query: str) -> str:
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in _query_pairs(query))
    return "&".join(f"{name}={value}" for name, value in pairs if name != "X-Amz-Signature")


def _query_pairs(query: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        found.append((unquote(name), unquote(value)))
    return found
