"""From CONNECT to CONNACK: client identifiers, authentication, what both sides allow each other.

Authentication is by user name and password in CONNECT or, for 5.0, by the enhanced method `PLAIN` (RFC 4616), whose data
(`authorization NUL user NUL password`) comes in CONNECT or in an AUTH that the broker asks for; it can be repeated later
(`reauthenticate`), and a failed repetition ends the connection. Every other method is refused with 0x8C.

The object lives as long as the handshake, or as long as the connection when a method was agreed on.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.codec import Properties, TopicAliases, encode
from trunkline.protocols.mqtt.packets import V5, V31, V311, Auth, ConnAck, Connect
from trunkline.protocols.mqtt.sessions import SessionRefused
from trunkline.protocols.mqtt.state import NEVER_EXPIRES_S

if TYPE_CHECKING:
    from trunkline.protocols.mqtt.hub import Hub
    from trunkline.protocols.mqtt.session import Session

METHOD = "PLAIN"
DEFAULT_RECEIVE_MAXIMUM = 65_535
LARGEST_KEEP_ALIVE_S = 65_535
KEEP_ALIVE_FACTOR = 1.5


class Handshake:
    __slots__ = ("_hub", "_packet", "_session", "_user")

    def __init__(self, hub: Hub, session: Session, packet: Connect) -> None:
        self._hub = hub
        self._session = session
        self._packet = packet
        self._user = packet.user_name

    @property
    def with_method(self) -> bool:
        properties = self._packet.properties
        return properties is not None and properties.authentication_method is not None

    # -- authentication ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        packet, session = self._packet, self._session
        if not self._check_client_id():
            session.refuse_connect(errors.CLIENT_IDENTIFIER_NOT_VALID, "this client identifier is not taken")
        elif (refusal := self._will_refusal()) != errors.SUCCESS:
            session.refuse_connect(refusal, "the will could not be published: its topic is not taken")
        elif not self.with_method:
            admission = self._hub.access.admit(packet.user_name, packet.password, session.peer)
            if admission.reason_code != errors.SUCCESS:
                session.refuse_connect(admission.reason_code)
                return
            session.administrator = admission.administrator
            self._open()
        else:
            properties = packet.properties
            assert properties is not None
            if properties.authentication_method != METHOD:
                session.refuse_connect(errors.BAD_AUTHENTICATION_METHOD, f"the only authentication method is {METHOD}")
            elif properties.authentication_data is None:
                session.say(_auth(errors.CONTINUE_AUTHENTICATION))
            elif self._authenticated(properties.authentication_data):
                self._open()
            else:
                session.refuse_connect(errors.NOT_AUTHORIZED)

    def answered(self, packet: Auth) -> None:
        """An AUTH before CONNACK: what was asked for."""
        data = self._data(packet, errors.CONTINUE_AUTHENTICATION)
        if data is None:
            self._session.refuse_connect(errors.PROTOCOL_ERROR)
        elif self._authenticated(data):
            self._open()
        else:
            self._session.refuse_connect(errors.NOT_AUTHORIZED)

    def reauthenticate(self, packet: Auth) -> None:
        """An AUTH after CONNACK."""
        session = self._session
        started = packet.reason_code == errors.REAUTHENTICATE
        data = self._data(packet, errors.REAUTHENTICATE if started else errors.CONTINUE_AUTHENTICATION)
        if data is None:
            session.refuse(errors.PROTOCOL_ERROR, "this is not how the authentication method goes on")
        elif not data and started:
            session.say(_auth(errors.CONTINUE_AUTHENTICATION))
        elif self._authenticated(data):
            session.say(_auth(errors.SUCCESS))
        else:
            session.refuse(errors.NOT_AUTHORIZED, "the user or the password is wrong")

    def _data(self, packet: Auth, reason_code: int) -> bytes | None:
        """The packet's authentication data; None if it does not belong to this method and step [MQTT-4.12.0-5]."""
        properties = packet.properties
        if packet.reason_code != reason_code or properties is None or properties.authentication_method != METHOD:
            return None
        return properties.authentication_data or b""

    def _authenticated(self, data: bytes) -> bool:
        parts = data.split(b"\0")
        if len(parts) != 3:
            return False
        user = parts[1].decode(errors="replace")
        admission = self._hub.access.verify(user, parts[2], self._session.peer)
        if admission.reason_code != errors.SUCCESS:
            return False
        self._user = user
        self._session.user_name = user
        self._session.administrator = admission.administrator
        return True

    # -- opening -------------------------------------------------------------------------------------------------------

    def _check_client_id(self) -> bool:
        packet, session = self._packet, self._session
        session.client_id = packet.client_id
        if not packet.client_id:
            if packet.version == V31 or (packet.version == V311 and not packet.clean_start):
                return False
            session.client_id = "auto-" + uuid.uuid4().hex
        return len(session.client_id.encode()) <= self._hub.limits.max_client_id_bytes

    def _will_refusal(self) -> int:
        """Why the will's topic is not taken; said now, since nobody is there to be told when the will is due."""
        will = self._packet.will
        return errors.SUCCESS if will is None else self._hub.routes.refusal(will.topic)

    def _open(self) -> None:
        hub, limits, packet, session = self._hub, self._hub.limits, self._packet, self._session
        session.user_name = self._user
        expiry_s = 0 if packet.clean_start else NEVER_EXPIRES_S
        receive_maximum = DEFAULT_RECEIVE_MAXIMUM
        if packet.version == V5:
            properties = packet.properties or Properties()
            expiry_s = properties.session_expiry_interval or 0
            receive_maximum = properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
            if properties.topic_alias_maximum:
                maximum = min(properties.topic_alias_maximum, limits.topic_alias_maximum)
                session.aliases = TopicAliases(maximum, session.client_max_packet_bytes)
            session.particular = session.client_max_packet_bytes > 0 or session.aliases is not None
        expiry_s = min(expiry_s, limits.max_session_expiry_s)
        window = limits.max_stored_inflight_messages if expiry_s else limits.max_inflight_messages
        keep_alive_s = packet.keep_alive_s
        if packet.version == V5 and limits.max_keep_alive_s < LARGEST_KEEP_ALIVE_S:
            keep_alive_s = min(keep_alive_s or LARGEST_KEEP_ALIVE_S, limits.max_keep_alive_s)
        session.keep_alive_ms = keep_alive_s * 1000 * KEEP_ALIVE_FACTOR
        answer = self._answer(expiry_s, keep_alive_s) if packet.version == V5 else None
        if session.fitting(ConnAck(False, errors.SUCCESS, answer)) is None:
            session.turn_away()  # every property in it has to be known: better no connection than wrong ideas
            return
        try:
            state, present = hub.sessions.open(
                session,
                session.client_id,
                clean_start=packet.clean_start,
                expiry_s=expiry_s,
                will=packet.will,
                window_limit=min(window, receive_maximum),
            )
        except SessionRefused as refusal:
            session.refuse_connect(refusal.reason_code)
            return
        session.opened(state, encode(ConnAck(present, errors.SUCCESS, answer), packet.version))

    def _answer(self, expiry_s: int, keep_alive_s: int) -> Properties:
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
            properties.assigned_client_identifier = self._session.client_id
        if keep_alive_s != packet.keep_alive_s:
            properties.server_keep_alive = keep_alive_s
        if self.with_method:
            properties.authentication_method = METHOD
        return properties


def _auth(reason_code: int) -> Auth:
    properties = Properties()
    properties.authentication_method = METHOD
    return Auth(reason_code, properties)
