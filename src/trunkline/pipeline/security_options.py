"""How the source and the sink log in, by the names that Kafka's clients have for it.

    kafka.security.protocol                          PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    kafka.sasl.mechanism                             PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
    kafka.sasl.jaas.config                           … required username="alice" password="…";
    kafka.sasl.username, kafka.sasl.password         instead of that
    kafka.ssl.truststore.location                    PEM file with the CAs, as is kafka.ssl.ca.location; this machine's own without it
    kafka.ssl.keystore.location                      PEM file with a certificate and its key, if the broker asks for one; or
    kafka.ssl.certificate.location, kafka.ssl.key.location    these two, and kafka.ssl.key.password
    kafka.ssl.endpoint.identification.algorithm      empty: the certificate need not be for the broker's host

Stores must be of the type PEM: JKS and PKCS12 are Java's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trunkline.client.login import NOBODY, PLAIN, SCRAM, SYSTEM, Login, Tls

PROTOCOL: Final = "kafka.security.protocol"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
NAMES: Final = (
    PROTOCOL, "kafka.sasl.mechanism", "kafka.sasl.jaas.config", "kafka.sasl.username", "kafka.sasl.password",
    "kafka.ssl.truststore.location", "kafka.ssl.truststore.type", "kafka.ssl.ca.location",
    "kafka.ssl.keystore.location", "kafka.ssl.keystore.type", "kafka.ssl.certificate.location",
    "kafka.ssl.key.location", "kafka.ssl.key.password", "kafka.ssl.endpoint.identification.algorithm",
)  # fmt: skip
_JAAS: Final = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)')""")


class SecurityOptionError(ValueError):
    """The text names the option."""


def login_of(text: Callable[..., str | None]) -> Login:
    """`text` gives an option by its name."""
    protocol = (text(PROTOCOL) or PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise SecurityOptionError(f"option {PROTOCOL} is {protocol!r}; it must be one of {', '.join(PROTOCOLS)}")
    tls = _tls(text) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return NOBODY if tls is None else Login(tls=tls)
    mechanism = text("kafka.sasl.mechanism")
    if mechanism is not None and mechanism not in (PLAIN, *SCRAM):
        names = ", ".join((PLAIN, *SCRAM))
        raise SecurityOptionError(f"option kafka.sasl.mechanism is {mechanism!r}; it must be one of {names}")
    said = {
        name: re.sub(r"\\(.)", r"\1", one or other)
        for name, one, other in _JAAS.findall(text("kafka.sasl.jaas.config") or "")
    }
    user = text("kafka.sasl.username") or said.get("username")
    password = text("kafka.sasl.password") or said.get("password")
    if user is None or password is None:
        raise SecurityOptionError(
            f"option {PROTOCOL} is {protocol}, so kafka.sasl.jaas.config must have a username and a password"
        )
    return Login(user, password, tls, mechanism)


def _tls(text: Callable[..., str | None]) -> Tls:
    for store in ("truststore", "keystore"):
        kind = text(f"kafka.ssl.{store}.type")
        if text(f"kafka.ssl.{store}.location") is not None and (kind or "JKS").upper() != "PEM":
            raise SecurityOptionError(f"option kafka.ssl.{store}.type must be PEM: stores of Java are not read")
    ca = text("kafka.ssl.truststore.location") or text("kafka.ssl.ca.location") or SYSTEM
    cert = text("kafka.ssl.keystore.location") or text("kafka.ssl.certificate.location")
    check_host = text("kafka.ssl.endpoint.identification.algorithm") != ""
    return Tls(ca, cert, text("kafka.ssl.key.location"), text("kafka.ssl.key.password"), check_host)
