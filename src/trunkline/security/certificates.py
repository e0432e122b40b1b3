"""Certificates: what TLS listeners show, whom they believe, and whose name a client's certificate carries.

A listener asks for `context` at every connection, so certificates can be replaced while it listens: `reload` makes a new
context of the files, and those who are connected keep the old one. When the new files are no good, the old context stays.

A client's name is the distinguished name of its certificate in the form of RFC 2253, most specific part first, as Kafka has
it: `CN=alice,OU=metering,O=Example`. `NameRules` makes a user's name of it, in the manner of Kafka's
`ssl.principal.mapping.rules`.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

NONE, REQUESTED, REQUIRED = "none", "requested", "required"
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
DEFAULT_RULES: Final = "DEFAULT"
MAX_RULES_CHARS: Final = 16_384
_CLIENT_AUTH: Final = {NONE: ssl.CERT_NONE, REQUESTED: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}
_MAX_SECRET_BYTES: Final = 4_096
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}

Subject = Sequence[Sequence[tuple[str, str]]]  # as `ssl` gives it: least specific part first


class InvalidCertificates(ValueError):
    """Files that TLS cannot be done with, or rules that are none; the text says which and why."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    certificate: Path
    key: Path | None = None  # None: in the same file
    key_password_file: Path | None = None
    client_ca: Path | None = None
    client_auth: str = NONE
    min_version: str = "1.2"


class Certificates:
    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self.context = _context(settings)
        self._seen = self._files()

    def reload(self) -> None:
        """Take the files as they are now. InvalidCertificates: nothing has changed."""
        self._seen = self._files()
        self.context = _context(self._settings)

    def reload_if_changed(self) -> bool:
        """Whether the files had changed since they were last looked at."""
        if self._files() == self._seen:
            return False
        self.reload()
        return True

    def _files(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self._settings.certificate, self._settings.key, self._settings.client_ca):
            try:
                status = os.stat(path) if path is not None else None
            except OSError:
                status = None
            found.append((0, 0, 0) if status is None else (status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    password = None if settings.key_password_file is None else read_secret(settings.key_password_file)
    try:
        context.load_cert_chain(settings.certificate, settings.key, password)
    except OSError as error:
        named = settings.certificate if settings.key is None else f"{settings.certificate}, {settings.key}"
        raise InvalidCertificates(f"{named}: {_reason(error)}") from None
    if settings.client_ca is None:
        if settings.client_auth != NONE:
            raise InvalidCertificates("client certificates need to be checked with a CA: tls_client_ca")
        return context
    try:
        context.load_verify_locations(settings.client_ca)
    except OSError as error:
        raise InvalidCertificates(f"{settings.client_ca}: {_reason(error)}") from None
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    return context


def read_secret(path: Path) -> str:
    """The first line of a file, which is the secret."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SECRET_BYTES).split(b"\n")[0].rstrip(b"\r").decode()
    except OSError as error:
        raise InvalidCertificates(f"{path}: {error.strerror}") from None
    except ValueError:
        raise InvalidCertificates(f"{path}: not UTF-8") from None


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a certificate and its key in PEM form ({error.reason or error})"
    return error.strerror or str(error)


# -- names -------------------------------------------------------------------------------------------------------------


def distinguished_name(subject: Subject) -> str:
    """RFC 2253."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and not text.endswith("\\ ") else text


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None  # None: DEFAULT, the whole name
    replacement: str = ""
    case: str = ""  # L or U


class NameRules:
    """`RULE:pattern/replacement/[L|U]` and `DEFAULT`, separated by commas; the first that matches the whole name decides.

    `$1` in a replacement is the pattern's first group. Patterns are Python's: those of Kafka's that people write mean the same.
    """

    def __init__(self, text: str) -> None:
        self._rules = tuple(_parsed(text))

    def name_of(self, distinguished: str) -> str | None:
        """The user's name; None if no rule is for it."""
        for rule in self._rules:
            if rule.pattern is None:
                return distinguished
            found = rule.pattern.fullmatch(distinguished)
            if found is not None:
                name = re.sub(r"\$(\d)", lambda group, found=found: found[int(group[1])] or "", rule.replacement)  # type: ignore[misc]
                name = name.strip()
                return {"L": name.lower(), "U": name.upper()}.get(rule.case, name) or None
        return None


_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])+)/((?:\\.|[^\\/])*)/([LU]?)")


def _parsed(text: str) -> Iterable[_Rule]:
    at = 0
    text = text.strip()
    if len(text) > MAX_RULES_CHARS:
        raise InvalidCertificates(f"principal rules have at most {MAX_RULES_CHARS} characters")
    while at < len(text):
        if text.startswith(DEFAULT_RULES, at):
            yield _Rule(None)
            at += len(DEFAULT_RULES)
        elif (found := _RULE.match(text, at)) is not None:
            try:
                pattern = re.compile(found[1])
            except re.error as error:
                raise InvalidCertificates(f"{found[0]!r}: {error}") from None
            groups = [int(each) for each in re.findall(r"\$(\d)", found[2])]
            if max(groups, default=0) > pattern.groups:
                raise InvalidCertificates(f"{found[0]!r}: the pattern has {pattern.groups} groups")
            yield _Rule(pattern, found[2], found[3])
            at = found.end()
        else:
            raise InvalidCertificates(f"{text[at:]!r} is neither DEFAULT nor RULE:pattern/replacement/[L|U]")
        rest = text[at:].lstrip()
        if rest and not rest.startswith(","):
            raise InvalidCertificates(f"{rest!r}: rules are separated by commas")
        at = len(text) - len(rest[1:].lstrip()) if rest else len(text)
