"""One connection: packets in, packets out. No socket: `Outlet` is where bytes go.

    NEW --CONNECT--> AUTHENTICATING --(AUTH, AUTH)--> CONNECTING --what CONNECT changed is on disk--> CONNECTED
    any --DISCONNECT, error, loss--> CLOSED

Rules it keeps:
- Until CONNACK is sent, nothing else is; what the client sends meanwhile waits, unread beyond one read. The same holds while
  a password is checked, before CONNACK or later.
- Nothing is written to the socket while packets are being handled (see `link`).
- PUBACK and PUBREC leave when the publication is on disk; PUBCOMP of a session that is kept, when it is on disk that the
  identifier is free.
- A violation closes this connection, with a reason where the version has one, and touches nothing else.
- No packet is larger than the client takes. Reason strings give way; where that is not enough, the connection ends.
- A publication that is not stored is not acknowledged: 5.0 has a reason code for it in PUBACK and PUBREC; without one,
  that is in the older versions and for QoS 0, the connection ends.
- While the disk is short of space, a connection waits at its next PUBLISH and is not read further, so that it need not be
  acknowledged nor stored; until then, and on every other connection, pings are answered and messages go out. What waits is
  not silent: no keep-alive runs out meanwhile.
- A SUBSCRIBE waits, and all that comes behind it, until retained publications that came before it have their place in the
  log: at once with a store in this process.
- Whatever ends the connection, but a DISCONNECT that says otherwise, makes the will due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from trunkline.broker.administration.connections import About
from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.codec import (
    PINGRESP_PACKET,
    MalformedPacket,
    Parser,
    ParserEvent,
    Properties,
    encode,
)
from trunkline.protocols.mqtt.content import EXPIRY_PROPERTY, FILTER_PROPERTY, seconds
from trunkline.protocols.mqtt.handshake import Applicant, Handshake, T
from trunkline.protocols.mqtt.hub import Hub
from trunkline.protocols.mqtt.link import VERSION_NAMES, Outlet, Phase
from trunkline.protocols.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Acknowledgement,
    Acknowledgements,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    Publications,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from trunkline.protocols.mqtt.publisher import Publisher
from trunkline.protocols.mqtt.sessions.session import Session
from trunkline.protocols.mqtt.sessions.window import WrongAcknowledgement

_NO_RETAINED = 2  # what Retain Handling says in a subscription that wants no retained messages


class ClientConnection(Applicant):
    __slots__ = ("_checking", "_handshake", "_held", "_held_bytes", "_hub", "_parser", "_publisher", "_send_will", "_subscribing",
                 "last_active_ms", "session")  # fmt: skip

    def __init__(self, hub: Hub, outlet: Outlet, peer: str, certificate: str = "") -> None:
        super().__init__(hub.agenda, hub.counters, outlet, peer, certificate)
        self._hub = hub
        self.session: Session | None = None
        self.last_active_ms = hub.clock.monotonic_ms()
        self._parser = Parser(
            max_packet_bytes=hub.limits.max_packet_bytes,
            max_connect_bytes=hub.limits.max_connect_bytes,
            topic_alias_maximum=hub.limits.topic_alias_maximum,
            in_runs=True,
        )
        self._handshake: Handshake | None = None
        self._checking: asyncio.Task[None] | None = None  # while it is not known whether the client is who it says
        self._held: list[ParserEvent] | None = None
        self._held_bytes = 0  # what was read while `_held` is there
        self._send_will = True
        self._subscribing = False  # what is held begins with a SUBSCRIBE that waits for retained messages
        self._publisher: Publisher | None = None

    def pump(self) -> None:
        if self.session is not None and self.phase is Phase.CONNECTED:
            self.session.pump()

    # -- in ------------------------------------------------------------------------------------------------------------

    @property
    def in_packet(self) -> bool:
        """Whether what was received so far ends within a packet."""
        return self._parser.buffered_bytes > 0

    @property
    def held_bytes(self) -> int:
        """What this client has made the broker keep that is not complete, or not taken up."""
        return self._parser.held_bytes + self._held_bytes

    @property
    def settled(self) -> bool:
        """Whether the client has said who it is, or is gone."""
        return self.phase > Phase.AUTHENTICATING

    def read(self, data: memoryview) -> None:
        """What one read of the connection has brought."""
        turn = self._hub.turn
        turn.hold()
        try:
            self.receive(data)
        finally:
            turn.let_go(unfinished=self.in_packet)

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        hub = self._hub
        self.last_active_ms = hub.clock.monotonic_ms()
        hub.counters.bytes_received += len(data)
        events = self._parser.feed(data)
        if hub.limits_of_users.by_place:
            self._slow_down(events)
        if self._held is not None:
            self._held.extend(events)
            self._held_bytes += len(data)
            return
        self._handle(events)
        if self._held is not None:
            self._held_bytes = len(data)
        elif hub.publishing.congested() and self.phase is Phase.CONNECTED:
            self._outlet.pause_reading()
            hub.publishing.hold(self)

    def _slow_down(self, events: list[ParserEvent]) -> None:
        """Read no more for as long as the user has sent more than it may."""
        hub = self._hub
        count = sum(
            len(event.payloads) if isinstance(event, Publications) else isinstance(event, Publish) for event in events
        )
        wait_ms = hub.limits_of_users.rate_wait_ms(self.principal.name, count, hub.clock.monotonic_ms())
        if wait_ms:
            self._outlet.pause_reading()
            asyncio.get_running_loop().call_later(wait_ms / 1000, self.resume)

    def resume(self) -> None:
        """The turn has room again, or the client has rested."""
        if self._held is None and self.phase is not Phase.CLOSED:
            self._outlet.resume_reading()

    @property
    def waiting(self) -> bool:
        """Whether this connection is not read because of the broker, not of its client."""
        return self._held is not None

    def _hold(self, events: list[ParserEvent]) -> None:
        """Take up these, what is held behind them, and whatever else was read, when `_take_up` says so."""
        self._held = events if self._held is None else events + self._held
        self._outlet.pause_reading()

    def _take_up(self) -> None:
        held, self._held = self._held, None
        self._held_bytes = 0
        self.last_active_ms = self._hub.clock.monotonic_ms()
        if held is not None:
            self._handle(held)
            if self._held is None and self.phase in (Phase.AUTHENTICATING, Phase.CONNECTED):
                self._outlet.resume_reading()

    def _room_again(self) -> None:
        """The disk has space again."""
        if self.phase is Phase.CONNECTED and not self._subscribing and self._checking is None:
            self._take_up()

    def _handle(self, events: list[ParserEvent]) -> None:
        acknowledged = False
        if self.phase is not Phase.CONNECTED:
            self._handle_first(events)
            return
        if self._hub.space.blocked is not None:
            events = self._up_to_a_publication(events)
        for index, event in enumerate(events, 1):
            if isinstance(event, Publications):
                (self._publisher or self._begin_to_publish()).publish_run(event)
            elif isinstance(event, Acknowledgements):
                acknowledged = True
                self._acknowledgements(event)
            elif isinstance(event, Publish):
                (self._publisher or self._begin_to_publish()).publish(event)
            elif isinstance(event, Acknowledgement):
                acknowledged = True
                self._acknowledgement(event)
            elif isinstance(event, Subscribe) and self._must_wait(event):
                self._hold(events[index - 1 :])
                break
            else:
                self._handle_other(event)
                if self._checking is not None:
                    self._hold(events[index:])
                    return
            if self.phase is not Phase.CONNECTED:
                return
        if acknowledged and self.session is not None and self.session.waits():
            self._touch()

    def _begin_to_publish(self) -> Publisher:
        assert self.session is not None
        self._publisher = Publisher(self._hub, self, self.session)
        return self._publisher

    def _handle_first(self, events: list[ParserEvent]) -> None:
        """Packets up to the one that completes the handshake; the rest waits for CONNACK."""
        for index, event in enumerate(events):
            if self.phase is Phase.CONNECTING or self._checking is not None:
                self._hold(events[index:])
                return
            if self.phase is Phase.CONNECTED:
                self._handle(events[index:])
                return
            if self.phase is Phase.CLOSED:
                return
            if isinstance(event, MalformedPacket | Connect | Auth):
                self._handle_other(event)
            elif isinstance(event, Disconnect):
                self._close()
            else:
                self.refuse_connect(errors.PROTOCOL_ERROR)  # [MQTT-3.1.2-30]
        if self.phase is Phase.CONNECTING or self._checking is not None:
            self._hold([])

    def _up_to_a_publication(self, events: list[ParserEvent]) -> list[ParserEvent]:
        """Events that can be handled while nothing can be stored; the others wait. What is not stored anyway goes on."""
        for index, event in enumerate(events):
            if isinstance(event, Publications) or (
                isinstance(event, Publish) and not self._hub.routes.refusal(event.topic)
            ):
                self._hold(events[index:])
                self._hub.wait_for_space(self, self._room_again)
                return events[:index]
        return events

    def _handle_other(self, event: ParserEvent) -> None:
        if isinstance(event, MalformedPacket):
            self._malformed(event)
        elif isinstance(event, Connect):
            self._connect(event)
        elif isinstance(event, PingReq):
            self.send(PINGRESP_PACKET)
        elif isinstance(event, Subscribe):
            self._subscribe(event)
        elif isinstance(event, Unsubscribe):
            self._unsubscribe(event)
        elif isinstance(event, Disconnect):
            self._disconnect(event)
        elif isinstance(event, Auth):
            self._authenticate(event)

    def _malformed(self, error: MalformedPacket) -> None:
        self._counters.malformed += 1
        if self.phase is Phase.NEW:
            if error.reason_code == errors.UNSUPPORTED_PROTOCOL_VERSION:
                # A level that exists belongs to a name that does not: that is no MQTT client, and gets no answer.
                if error.version not in (V311, V5):
                    self.version = V311
                    self.refuse_connect(error.reason_code)
                self._close()
            elif error.version == V5:
                self.version = V5
                self._heed(self._parser.connect_properties)
                self.refuse_connect(error.reason_code, error.text)
            else:
                self._close()
        else:
            self.refuse(error.reason_code, error.text)

    # -- CONNECT and the end -------------------------------------------------------------------------------------------

    def _connect(self, packet: Connect) -> None:
        self.version = packet.version
        self._heed(packet.properties)
        self.phase = Phase.AUTHENTICATING
        handshake = Handshake(self._hub, self, packet)
        if handshake.with_method:
            self._handshake = handshake
        handshake.start()

    def _heed(self, properties: Properties | None) -> None:
        """What CONNECT says about our answers, the first of which is CONNACK."""
        if properties is not None:
            self.client_max_packet_bytes = properties.maximum_packet_size or 0
            self.wants_reasons = properties.request_problem_information != 0

    def _authenticate(self, packet: Auth) -> None:
        if self._handshake is None:
            self.refuse(errors.PROTOCOL_ERROR, "no authentication method was agreed on")
        elif self.phase is Phase.AUTHENTICATING:
            self._handshake.answered(packet)
        else:
            self._handshake.reauthenticate(packet)

    def wait_for(self, answer: Coroutine[None, None, T], then: Callable[[T], None]) -> None:
        self._checking = asyncio.get_running_loop().create_task(self._wait_for(answer, then))

    async def _wait_for(self, answer: Coroutine[None, None, T], then: Callable[[T], None]) -> None:
        try:
            found = await answer
        except Exception as error:
            self._hub.complaints.add("failed MQTT login", self.peer, "closing an MQTT connection", error=error)
            self.abandon()
            return
        self._checking = None
        if self.phase is Phase.CLOSED:
            return
        then(found)
        if self.phase in (Phase.AUTHENTICATING, Phase.CONNECTED):
            self._take_up()

    def opened(self, session: Session, connack: bytes) -> None:
        """The handshake went well: say so when it is on disk."""
        self.session = session
        self.phase = Phase.CONNECTING
        self.unacknowledged = len(session.inbound)
        if session.persistent:
            self._agenda.after_stored(lambda stored: self._connected(connack, stored))
        else:
            self._connected(connack, True)

    def _connected(self, connack: bytes, stored: bool) -> None:
        session = self.session
        if self.phase is not Phase.CONNECTING or session is None:
            return
        if not stored:
            self.refuse_connect(errors.SERVER_UNAVAILABLE)
            return
        self.phase = Phase.CONNECTED
        self._hub.keep_alive.add(self)
        self.send(connack)
        session.wake()
        self._take_up()

    def refuse_connect(self, reason_code: int, text: str = "") -> None:
        code = reason_code if self.version == V5 else errors.V3_RETURN_CODES.get(reason_code, 3)
        answer = self.fitting(ConnAck(False, code), text)
        if answer is not None:
            self.send(answer)
        self.turn_away()

    def turn_away(self) -> None:
        """Let the client go without an answer to its CONNECT, or after one."""
        self._counters.connections_refused += 1
        self._close()

    def _disconnect(self, packet: Disconnect) -> None:
        properties = packet.properties
        session = self.session
        assert session is not None
        if properties is not None and properties.session_expiry_interval is not None:
            wanted_s = min(properties.session_expiry_interval, self._hub.limits.max_session_expiry_s)
            if session.expiry_s == 0 and wanted_s != 0:
                self.refuse(errors.PROTOCOL_ERROR, "a session expiry in DISCONNECT, after none in CONNECT")
                return
            session.expiry_s = wanted_s
        self._send_will = packet.reason_code == errors.DISCONNECT_WITH_WILL
        self._close()

    def refuse(self, reason_code: int, text: str) -> None:
        """End the connection because of something that the client, or the broker, did."""
        if self.phase is Phase.CLOSED:
            return
        if self.phase in (Phase.AUTHENTICATING, Phase.CONNECTING):
            self.refuse_connect(reason_code, text)
            return
        if self.version == V5:
            farewell = self.fitting(Disconnect(reason_code), text)
            if farewell is not None:
                self.send(farewell)
        self._close()

    def out_of_input(self) -> None:
        """The broker has no room for what all clients have begun to send, and this one has begun most of it."""
        self.refuse(errors.QUOTA_EXCEEDED, "too much is begun and not finished on this connection")

    def say(self, packet: Auth) -> None:
        """Send a packet that the client waits for; without it there is no going on."""
        data = self.fitting(packet)
        if data is None:
            self.refuse(errors.PACKET_TOO_LARGE, "")
        else:
            self.send(data)

    def about(self) -> About | None:
        session = self.session
        if session is None:
            return None
        details: dict[str, object] = {
            "client_id": self.client_id,
            "kept": session.persistent,
            "subscriptions": len(session.subscriptions),
            "inflight": len(session.window),
            "dropped": session.dropped,
        }
        return About(f"MQTT {VERSION_NAMES.get(self.version, self.version)}", self.principal, details)

    def force_close(self, reason: str) -> None:
        self.refuse(errors.ADMINISTRATIVE_ACTION, reason)

    def shut_down(self) -> None:
        """The broker ends. The session stays as it is: when the broker is back, the connection was lost."""
        if self.phase is Phase.CONNECTED and self.version == V5:
            self._releases = []
            self.send(encode(Disconnect(errors.SERVER_SHUTTING_DOWN), V5))
            self.flush()
        self.phase = Phase.CLOSED
        self._outlet.close()

    def keep_alive_expired(self) -> None:
        self._counters.keep_alive_timeouts += 1
        self.refuse(errors.KEEP_ALIVE_TIMEOUT, "")

    def storage_failed(self) -> None:
        self.refuse(errors.IMPLEMENTATION_SPECIFIC_ERROR, "the publication could not be stored")

    def _close(self) -> None:
        self._releases = []  # nothing follows a DISCONNECT, and what they release is not written down yet
        self.flush()
        self._outlet.close()
        self.lost()

    def abandon(self) -> None:
        self._outlet.close()
        self.lost()

    def lost(self) -> None:
        """The connection is gone, or as good as gone."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        session, self.session, self._publisher = self.session, None, None
        self._held = None
        self._out = []
        if session is not None and session.link is self:
            self._hub.sessions.close(session, send_will=self._send_will)

    def congested(self) -> bool:
        """Whether QoS 0 messages are to be dropped: the client does not take what it has been sent."""
        if not self.paused:
            return False
        return self._outlet.unsent_bytes() > self._hub.limits.max_unsent_bytes or self._outlet.crowded()

    # -- acknowledgements from the client ------------------------------------------------------------------------------

    def _acknowledgements(self, run: Acknowledgements) -> None:
        try:
            self._settle(run)
        except WrongAcknowledgement as wrong:
            self.refuse(errors.PROTOCOL_ERROR, str(wrong))

    def _settle(self, run: Acknowledgements) -> None:
        session = self.session
        assert session is not None
        kind, packet_ids = run.kind, run.packet_ids
        if kind == PUBREL:
            (self._publisher or self._begin_to_publish()).release(packet_ids)
            return
        if kind == PUBREC:
            self._client_received(packet_ids)
            changed = True
        elif kind == PUBACK:
            changed = session.window.acknowledged(packet_ids)
        else:
            changed = session.window.completed(packet_ids)
        if changed and session.persistent:
            self._hub.journal.flow_changed(session)

    def _acknowledgement(self, packet: Acknowledgement) -> None:
        """One with a reason, or properties."""
        if isinstance(packet, PubRec) and packet.reason_code >= errors.UNSPECIFIED_ERROR:
            session = self.session
            assert session is not None
            try:
                changed = session.window.refused(packet.packet_id)
            except WrongAcknowledgement as wrong:
                self.refuse(errors.PROTOCOL_ERROR, str(wrong))
                return
            if changed and session.persistent:
                self._hub.journal.flow_changed(session)
            return
        kind = PUBCOMP
        if isinstance(packet, PubAck):
            kind = PUBACK
        elif isinstance(packet, PubRec):
            kind = PUBREC
        elif isinstance(packet, PubRel):
            kind = PUBREL
        self._acknowledgements(Acknowledgements(kind, [packet.packet_id]))

    def _client_received(self, packet_ids: list[int]) -> None:
        """PUBREC: the client has these publications, and is told that it may let go of their identifiers."""
        session = self.session
        assert session is not None
        known = session.window.received(packet_ids)
        if known:
            self.send_releases(known)
        if len(known) < len(packet_ids):
            reason = errors.PACKET_IDENTIFIER_NOT_FOUND if self.version == V5 else errors.SUCCESS
            for packet_id in packet_ids:
                if packet_id not in known:
                    self.send(encode(PubRel(packet_id, reason), self.version))

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def _must_wait(self, packet: Subscribe) -> bool:
        """Whether retained messages that this asks for are under way; it is taken up when they are there."""
        filters = [each.topic_filter for each in packet.subscriptions if each.retain_handling < _NO_RETAINED]
        self._subscribing = self._hub.retention.under_way.wait(filters, self._retained_landed)
        return self._subscribing

    def _retained_landed(self) -> None:
        # Behind the turn: what it offers to those who follow live is not this subscription's.
        self._hub.later(self, self._subscribe_now)

    def _subscribe_now(self) -> None:
        self._subscribing = False
        if self.phase is Phase.CONNECTED and self._held:
            first = self._held.pop(0)
            assert isinstance(first, Subscribe)
            self._subscribe(first)
            self._take_up()

    def _subscribe(self, packet: Subscribe) -> None:
        session = self.session
        assert session is not None
        identifier = 0
        if packet.properties is not None and packet.properties.subscription_identifiers:
            identifier = packet.properties.subscription_identifiers[0]
        wishes = {} if packet.properties is None else dict(packet.properties.user_properties)
        content, expiry_s = wishes.get(FILTER_PROPERTY), seconds(wishes.get(EXPIRY_PROPERTY))
        if any(each.no_local and each.topic_filter.startswith("$share/") for each in packet.subscriptions):
            self.refuse(errors.PROTOCOL_ERROR, "No Local on a shared subscription")  # [MQTT-3.8.3-4]
            return
        if self.fitting(SubAck(packet.packet_id, [0] * len(packet.subscriptions))) is None:
            self.refuse(errors.PACKET_TOO_LARGE, "the SUBACK is larger than the Maximum Packet Size")
            return
        codes = [
            self._hub.sessions.subscribe(session, each, identifier, content, expiry_s) for each in packet.subscriptions
        ]
        if self.version != V5:
            codes = [min(code, errors.UNSPECIFIED_ERROR) for code in codes]
        self._answer_when_stored(encode(SubAck(packet.packet_id, codes), self.version))
        self._touch()

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        session = self.session
        assert session is not None
        if self.fitting(UnsubAck(packet.packet_id, [0] * len(packet.topic_filters))) is None:
            self.refuse(errors.PACKET_TOO_LARGE, "the UNSUBACK is larger than the Maximum Packet Size")
            return
        found = [self._hub.sessions.unsubscribe(session, each) for each in packet.topic_filters]
        codes = [errors.SUCCESS if each else errors.NO_SUBSCRIPTION_EXISTED for each in found]
        self._answer_when_stored(encode(UnsubAck(packet.packet_id, codes), self.version))

    def _answer_when_stored(self, answer: bytes) -> None:
        """A kept session's answer waits until what it promises is on disk."""
        if self.session is None or not self.session.persistent:
            self.send(answer)
            return

        self.answers_due += 1

        def then(stored: bool) -> None:
            self.answers_due -= 1
            if self.phase is not Phase.CONNECTED:
                return
            if stored:
                self.send(answer)
            else:
                self.storage_failed()

        self._agenda.after_stored(then)
