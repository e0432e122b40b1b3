"""From CONNECT to CONNACK: client identifiers, authentication, what both sides allow each other.

Authentication is by user name and password in CONNECT, by the client's certificate or, for 5.0, by an enhanced method: one of
SASL's that the broker has (`PLAIN`, `SCRAM-SHA-256`, …; see `broker.sasl`). Its first message comes in CONNECT or in an AUTH that
the broker asks for, the others in AUTH. It can be repeated later (`reauthenticate`), by the same method, and a failed
repetition ends the connection. Every other method is refused with 0x8C.

The object lives as long as the handshake, or as long as the connection when a method was agreed on.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import TypeVar

from trunkline.broker.counters import MqttCounters
from trunkline.broker.logins import Exchange, LoginRefused, Step
from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.access import Admission
from trunkline.protocols.mqtt.agenda import Agenda
from trunkline.protocols.mqtt.codec import Properties, TopicAliases, encode
from trunkline.protocols.mqtt.hub import Hub
from trunkline.protocols.mqtt.link import Link, Outlet, Phase
from trunkline.protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    ConnAck,
    Connect,
)
from trunkline.protocols.mqtt.sessions.registry import SessionRefused
from trunkline.protocols.mqtt.sessions.session import NEVER_EXPIRES_S, Session
from trunkline.security.rules import Operation

DEFAULT_RECEIVE_MAXIMUM = 65_535
LARGEST_KEEP_ALIVE_S = 65_535
KEEP_ALIVE_FACTOR = 1.5

T = TypeVar("T")


class Applicant(Link):
    """A connection that asks to be let in."""

    __slots__ = ("certificate", "keep_alive_ms")

    def __init__(self, agenda: Agenda, counters: MqttCounters, outlet: Outlet, peer: str, certificate: str) -> None:
        super().__init__(agenda, counters, outlet, peer)
        self.certificate = certificate  # the name in the one that the client has shown; or nothing
        self.keep_alive_ms = 0.0

    @abstractmethod
    def opened(self, session: Session, connack: bytes) -> None:
        """The handshake went well: say so when it is on disk."""

    @abstractmethod
    def refuse_connect(self, reason_code: int, text: str = "") -> None: ...

    @abstractmethod
    def wait_for(self, answer: Coroutine[None, None, T], then: Callable[[T], None]) -> None:
        """Take up nothing that the client has sent until this is known and `then` has made use of it."""

    @abstractmethod
    def turn_away(self) -> None:
        """Let the client go without an answer to its CONNECT, or after one."""

    @abstractmethod
    def say(self, packet: Auth) -> None:
        """Send a packet that the client waits for; without it there is no going on."""


class Handshake:
    __slots__ = ("_connection", "_exchange", "_hub", "_method", "_packet", "_user")

    def __init__(self, hub: Hub, connection: Applicant, packet: Connect) -> None:
        self._hub = hub
        self._connection = connection
        self._packet = packet
        self._user = packet.user_name
        self._method = (packet.properties.authentication_method or "") if packet.properties is not None else ""
        self._exchange: Exchange | None = None

    @property
    def with_method(self) -> bool:
        properties = self._packet.properties
        return properties is not None and properties.authentication_method is not None

    # -- authentication ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        packet, connection = self._packet, self._connection
        if not self._check_client_id():
            connection.refuse_connect(errors.CLIENT_IDENTIFIER_NOT_VALID, "this client identifier is not taken")
        elif (refusal := self._will_refusal()) != errors.SUCCESS:
            connection.refuse_connect(refusal, "the will could not be published: its topic is not taken")
        elif not self.with_method:
            access = self._hub.access
            admission = access.at_once(packet.user_name, packet.password, connection.peer, connection.certificate)
            if admission is not None:
                self._admitted(admission)
                return
            assert packet.user_name is not None
            checked = access.check(packet.user_name, packet.password, connection.peer)
            connection.wait_for(checked, self._admitted)
        else:
            properties = packet.properties
            assert properties is not None
            self._exchange = self._hub.access.exchange(self._method, connection.peer)
            if self._exchange is None:
                text = "this authentication method is not offered"
                connection.refuse_connect(errors.BAD_AUTHENTICATION_METHOD, text)
            elif properties.authentication_data is None:
                connection.say(self._auth(errors.CONTINUE_AUTHENTICATION))
            else:
                self._check(properties.authentication_data)

    def _admitted(self, admission: Admission) -> None:
        if admission.principal is None:
            self._connection.refuse_connect(admission.reason_code)
        else:
            self._connection.principal = admission.principal
            self._open()

    def answered(self, packet: Auth) -> None:
        """An AUTH before CONNACK: what was asked for."""
        data = self._data(packet, errors.CONTINUE_AUTHENTICATION)
        if data is None:
            self._connection.refuse_connect(errors.PROTOCOL_ERROR)
        else:
            self._check(data)

    def reauthenticate(self, packet: Auth) -> None:
        """An AUTH after CONNACK."""
        connection = self._connection
        started = packet.reason_code == errors.REAUTHENTICATE
        data = self._data(packet, errors.REAUTHENTICATE if started else errors.CONTINUE_AUTHENTICATION)
        if started:
            self._exchange = self._hub.access.exchange(self._method, connection.peer)
        if data is None or self._exchange is None:
            connection.refuse(errors.PROTOCOL_ERROR, "this is not how the authentication method goes on")
        elif not data and started:
            connection.say(self._auth(errors.CONTINUE_AUTHENTICATION))
        else:
            self._check(data)

    def _data(self, packet: Auth, reason_code: int) -> bytes | None:
        """The packet's authentication data; None if it does not belong to this method and step [MQTT-4.12.0-5]."""
        properties = packet.properties
        if packet.reason_code != reason_code or properties is None or properties.authentication_method != self._method:
            return None
        return properties.authentication_data or b""

    def _check(self, data: bytes) -> None:
        assert self._exchange is not None
        self._connection.wait_for(_stepped(self._exchange, data), self._checked)

    def _checked(self, step: Step | None) -> None:
        """None: the client is not who it says."""
        connection = self._connection
        if step is None:
            self._exchange = None
            connection.refuse(errors.NOT_AUTHORIZED, "the user or the password is wrong")
        elif step.principal is None:
            connection.say(self._auth(errors.CONTINUE_AUTHENTICATION, step.answer))
        else:
            self._exchange = None
            self._user = step.principal.name
            connection.user_name = self._user
            if connection.principal != step.principal:
                connection.principal = step.principal
                self._hub.sessions.access_changed()
            if connection.phase is Phase.AUTHENTICATING:
                self._open(step.answer)
            else:
                connection.say(self._auth(errors.SUCCESS, step.answer))

    def _auth(self, reason_code: int, data: bytes = b"") -> Auth:
        properties = Properties()
        properties.authentication_method = self._method
        properties.authentication_data = data or None
        return Auth(reason_code, properties)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _check_client_id(self) -> bool:
        packet, connection = self._packet, self._connection
        connection.client_id = packet.client_id
        if not packet.client_id:
            if packet.version == V31 or (packet.version == V311 and not packet.clean_start):
                return False
            connection.client_id = "auto-" + uuid.uuid4().hex
        return len(connection.client_id.encode()) <= self._hub.limits.max_client_id_bytes

    def _will_refusal(self) -> int:
        """Why the will's topic is not taken; said now, since nobody is there to be told when the will is due."""
        will = self._packet.will
        return errors.SUCCESS if will is None else self._hub.routes.refusal(will.topic)

    def _open(self, proof: bytes = b"") -> None:
        """`proof` is the method's last word, which CONNACK carries."""
        hub, limits, packet, connection = self._hub, self._hub.limits, self._packet, self._connection
        connection.user_name = self._user
        if packet.will is not None and not self._may_have(packet.will.topic):
            hub.control.refused_mqtt(connection.principal, Operation.WRITE, packet.will.topic)
            connection.refuse_connect(errors.NOT_AUTHORIZED, "the will may not be published by this user")
            return
        expiry_s = 0 if packet.clean_start else NEVER_EXPIRES_S
        receive_maximum = DEFAULT_RECEIVE_MAXIMUM
        if packet.version == V5:
            properties = packet.properties or Properties()
            expiry_s = properties.session_expiry_interval or 0
            receive_maximum = properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
            if properties.topic_alias_maximum:
                maximum = min(properties.topic_alias_maximum, limits.topic_alias_maximum)
                connection.aliases = TopicAliases(maximum, connection.client_max_packet_bytes)
            connection.particular = connection.client_max_packet_bytes > 0 or connection.aliases is not None
        expiry_s = min(expiry_s, limits.max_session_expiry_s)
        window = limits.max_stored_inflight_messages if expiry_s else limits.max_inflight_messages
        keep_alive_s = packet.keep_alive_s
        if packet.version == V5 and limits.max_keep_alive_s < LARGEST_KEEP_ALIVE_S:
            keep_alive_s = min(keep_alive_s or LARGEST_KEEP_ALIVE_S, limits.max_keep_alive_s)
        connection.keep_alive_ms = keep_alive_s * 1000 * KEEP_ALIVE_FACTOR
        answer = self._answer(expiry_s, keep_alive_s, proof) if packet.version == V5 else None
        if connection.fitting(ConnAck(False, errors.SUCCESS, answer)) is None:
            connection.turn_away()  # every property in it has to be known: better no connection than wrong ideas
            return
        try:
            session, present = hub.sessions.open(
                connection,
                connection.client_id,
                clean_start=packet.clean_start,
                expiry_s=expiry_s,
                will=packet.will,
                window_limit=min(window, receive_maximum),
            )
        except SessionRefused as refusal:
            connection.refuse_connect(refusal.reason_code)
            return
        connection.opened(session, encode(ConnAck(present, errors.SUCCESS, answer), packet.version))

    def _may_have(self, will_topic: str) -> bool:
        """Whether the client may publish the will that it leaves."""
        connection, hub = self._connection, self._hub
        return hub.control.may_publish(
            connection.principal, connection.client_id, will_topic, hub.routes.log_topic(will_topic)
        )

    def _answer(self, expiry_s: int, keep_alive_s: int, proof: bytes) -> Properties:
        """What CONNACK tells a client of 5.0 that is not as it asked, or as it would assume."""
        limits, packet = self._hub.limits, self._packet
        properties = Properties()
        asked = packet.properties.session_expiry_interval if packet.properties is not None else None
        if expiry_s != (asked or 0):
            properties.session_expiry_interval = expiry_s
        properties.receive_maximum = limits.receive_maximum
        properties.maximum_packet_size = limits.max_packet_bytes
        properties.topic_alias_maximum = limits.topic_alias_maximum
        if not packet.client_id:
            properties.assigned_client_identifier = self._connection.client_id
        if keep_alive_s != packet.keep_alive_s:
            properties.server_keep_alive = keep_alive_s
        if self.with_method:
            properties.authentication_method = self._method
            properties.authentication_data = proof or None
        return properties


async def _stepped(exchange: Exchange, data: bytes) -> Step | None:
    try:
        return await exchange.step(data)
    except LoginRefused:
        return None
