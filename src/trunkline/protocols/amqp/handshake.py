"""Opening a connection: start, tune, open, and what the two sides agree on; and the client's close.

    client                         server
    AMQP 0 0 9 1          →
                          ←        connection.start (properties, mechanisms)
    start-ok (mechanism)  →
                          ←        connection.tune (channel max, frame max, heartbeat)
    tune-ok, open (vhost) →
                          ←        connection.open-ok

`PLAIN` and `AMQPLAIN` are offered, and `EXTERNAL` to a client that has shown a certificate. A password may be a token, where
the broker takes them; `connection.update-secret` brings a new one before it expires, or any new proof that the client is who
it was. A failed login is answered with connection.close 403 if the client says that it
understands that (`authentication_failure_close`), else the socket is just closed; either way after the same work.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

from trunkline.broker.logins import LoginRefused
from trunkline.broker.messaging.typed_values import FieldValue, MalformedValue, decode_table
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.connection import Connection
from trunkline.protocols.amqp.errors import ACCESS_REFUSED, NOT_ALLOWED, SYNTAX_ERROR, FrameError
from trunkline.protocols.amqp.frames import MIN_FRAME_MAX_BYTES, PROTOCOL_HEADER, ProtocolHeader
from trunkline.security.limits import MAX_CONNECTIONS, USER, VHOST
from trunkline.version import BEHAVES_LIKE, VERSION

PROTOCOL = "amqp"
_SHOWN_CHARS = 200
MECHANISMS = ("PLAIN", "AMQPLAIN")
EXTERNAL = "EXTERNAL"
# Clients decide by product and version what methods mean: kombu takes basic.qos for RabbitMQ's only if the product is
# called so, and a Celery worker then stalls once as many tasks wait for their ETA as it may prefetch. So these two say
# whose behaviour we follow, and `information` and `trunkline_version` who we are.
PRODUCT = "RabbitMQ"
CAPABILITIES: dict[str, FieldValue] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


class Credentials(NamedTuple):
    user: str
    password: bytes


def begin(session: Connection, header: ProtocolHeader) -> None:
    """Say what this server is; or, to a client of another protocol, what it speaks."""
    if not header.accepted:
        session.send(PROTOCOL_HEADER)
        session.end()
        return
    properties: dict[str, FieldValue] = {
        "product": PRODUCT,
        "version": BEHAVES_LIKE,
        "trunkline_version": VERSION,
        "platform": f"Python {platform.python_version()}",
        "information": "Trunkline: one log, every way to message",
        "cluster_name": session.service.cluster_name,
        "capabilities": CAPABILITIES,
        "trunkline_listeners": session.service.listeners(),
    }
    mechanisms = (*MECHANISMS, EXTERNAL) if session.certificate else MECHANISMS
    session.send_method(0, m.ConnectionStart(0, 9, properties, " ".join(mechanisms).encode(), b"en_US"))


async def log_in(session: Connection, method: m.ConnectionStartOk) -> None:
    """Check who it is. What the client has sent behind this is taken up after it."""
    capabilities = method.client_properties.get("capabilities")
    understood = capabilities if isinstance(capabilities, dict) else {}
    session.notify_cancel = understood.get("consumer_cancel_notify") is True
    session.notify_blocked = understood.get("connection.blocked") is True
    session.client_properties = _shown(method.client_properties)
    logins = session.service.logins
    try:
        if method.mechanism == EXTERNAL and session.certificate:
            principal = logins.by_certificate(session.certificate, session.host, PROTOCOL)
        else:
            credentials = read_credentials(method.mechanism, method.response)
            principal = await logins.by_password(*credentials, session.host, PROTOCOL)
    except LoginRefused:
        if session.closed:
            return
        if understood.get("authentication_failure_close") is True:
            text = f"Login was refused using authentication mechanism {method.mechanism}. For details see the broker logfile."
            raise FrameError(ACCESS_REFUSED, text) from None
        session.end()
        return
    session.logged_in(principal)


async def update_secret(session: Connection, method: m.ConnectionUpdateSecret) -> None:
    """A new token of the same user. As in RabbitMQ, a password does not expire, and what is sent for one is not looked at."""
    logins = session.service.logins
    if not logins.takes_tokens:
        session.send_method(0, m.ConnectionUpdateSecretOk())
        return
    try:
        principal = await logins.by_password(session.user, method.new_secret, session.host, PROTOCOL)
    except LoginRefused:
        principal = None
    if session.closed:
        return
    if principal is None or principal.name != session.user:
        raise FrameError(NOT_ALLOWED, "New secret was refused by one of the backends", 10, 70)
    session.principal = principal
    session.send_method(0, m.ConnectionUpdateSecretOk())


def offer(session: Connection) -> None:
    """Tell what the two sides may agree on."""
    limits = session.limits
    session.send_method(0, m.ConnectionTune(limits.channel_max, limits.frame_max_bytes, limits.heartbeat_s))


def _shown(properties: dict[str, FieldValue]) -> dict[str, str]:
    """Of what a client says of itself, that which people look at; no more than so much is kept of it."""
    return {
        name: value[:_SHOWN_CHARS]
        for name in ("connection_name", "product", "version", "platform")
        if isinstance(value := properties.get(name), str)
    }


def read_credentials(mechanism: str, response: bytes) -> Credentials:
    """What the client presented; FrameError if that cannot be read or the mechanism is not offered."""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise FrameError(SYNTAX_ERROR, "a PLAIN response has three parts", 10, 11)
        return Credentials(parts[1].decode("utf-8", "replace"), parts[2])
    if mechanism == "AMQPLAIN":
        try:
            table = decode_table(response)
        except MalformedValue as error:
            raise FrameError(SYNTAX_ERROR, error.text) from None
        login, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(login, str) or not isinstance(password, str | bytes):
            raise FrameError(SYNTAX_ERROR, "an AMQPLAIN response has LOGIN and PASSWORD", 10, 11)
        return Credentials(login, password.encode() if isinstance(password, str) else password)
    raise FrameError(NOT_ALLOWED, f"unknown authentication mechanism '{mechanism}'", 10, 11)


def agree(session: Connection, asked: m.ConnectionTuneOk) -> None:
    """The client's choice; 0 means no wish. FrameError if it asks for more than it was offered."""
    limits = session.limits
    if asked.frame_max and asked.frame_max < MIN_FRAME_MAX_BYTES:
        raise FrameError(NOT_ALLOWED, f"negotiated frame_max = {asked.frame_max} is lower than the minimum allowed value ({MIN_FRAME_MAX_BYTES})", 10, 31)  # fmt: skip
    if asked.frame_max > limits.frame_max_bytes:
        raise FrameError(NOT_ALLOWED, f"negotiated frame_max = {asked.frame_max} is higher than the maximum allowed value ({limits.frame_max_bytes})", 10, 31)  # fmt: skip
    if asked.channel_max > limits.channel_max:
        raise FrameError(NOT_ALLOWED, f"negotiated channel_max = {asked.channel_max} is higher than the maximum allowed value ({limits.channel_max})", 10, 31)  # fmt: skip
    session.channel_max = asked.channel_max or limits.channel_max
    session.frame_max_bytes = asked.frame_max or limits.frame_max_bytes
    session.heartbeat_s = asked.heartbeat


def enter(session: Connection, method: m.ConnectionOpen) -> None:
    name = method.virtual_host
    vhost = session.service.vhosts.get(name)
    if vhost is None:
        raise FrameError(NOT_ALLOWED, f"vhost {name} not found", 10, 40)
    if not session.service.access.may_enter(session.principal, name):
        text = f"access to vhost '{name}' refused for user '{session.user}'"
        raise FrameError(NOT_ALLOWED, text, 10, 40)
    _check_limits(session, name)
    session.entered(vhost)
    session.envelopes = session.service.envelopes_of(name)
    session.send_method(0, m.ConnectionOpenOk())


def _check_limits(session: Connection, vhost: str) -> None:
    service = session.service
    most = service.user_limits.of(VHOST, vhost, MAX_CONNECTIONS)
    if most is not None and service.present[VHOST, vhost] >= most:
        text = f"access to vhost '{vhost}' refused for user '{session.user}': connection limit ({most}) is reached"
        raise FrameError(NOT_ALLOWED, text, 10, 40)
    most = service.user_limits.of(USER, session.user, MAX_CONNECTIONS)
    if most is not None and service.present[USER, session.user] >= most:
        text = f"Connection refused for user '{session.user}': user connection limit ({most}) is reached"
        raise FrameError(NOT_ALLOWED, text, 10, 40)


def say_goodbye(session: Connection, method: m.ConnectionClose) -> None:
    session.close_channels()
    session.send_method(0, m.ConnectionCloseOk())
