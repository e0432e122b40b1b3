"""The publications of one client: from PUBLISH to their acknowledgement, and PUBREL.

Made when a client publishes for the first time: many never do.

A publication of QoS 1 or 2 counts against the client's Receive Maximum until it is complete. Those of QoS 2 that the client
may send again are in the session's `inbound`, by their identifiers: they are published once.
"""

from __future__ import annotations

from trunkline.protocols.mqtt import errors
from trunkline.protocols.mqtt.codec import NO_PROPERTIES, encode
from trunkline.protocols.mqtt.hub import Hub
from trunkline.protocols.mqtt.link import Link, Phase
from trunkline.protocols.mqtt.message import header_section, wire_properties
from trunkline.protocols.mqtt.packets import PUBACK, PUBCOMP, PUBREC, V5, PubAck, PubComp, Publications, Publish, PubRec
from trunkline.protocols.mqtt.routes import Route
from trunkline.protocols.mqtt.run import Run
from trunkline.protocols.mqtt.sessions.session import Session
from trunkline.security.rules import Kind, Operation


class Publisher:
    __slots__ = ("_connection", "_hub", "_sections", "_session")

    def __init__(self, hub: Hub, connection: Link, session: Session) -> None:
        self._hub = hub
        self._connection = connection
        self._session = session
        self._sections: dict[int, bytes] = {}  # header sections of publications with a topic of their own, by QoS

    def publish_run(self, packet: Publications) -> None:
        connection = self._connection
        hub = self._hub
        topic, qos = packet.topic, packet.qos
        route = hub.routes.known.get(topic)
        if route is None:
            route = hub.routes.route(topic)
        if (
            route.refusal
            or not (hub.control.open or self._may_publish(route))
            or (qos and not self._admit_run(qos, packet.packet_ids))
        ):
            for each in packet.packets():
                if isinstance(each, Publish) and connection.phase is Phase.CONNECTED:
                    self.publish(each)
            return
        hub.counters.messages_received += len(packet.payloads)
        if route.named:
            section = self._sections.get(qos)
            if section is None:
                section = self._sections[qos] = header_section(qos=qos, retain=False, publisher=connection.client_id)
        else:
            section = header_section(qos=qos, retain=False, publisher=connection.client_id, topic=topic)
        hub.publishing.publish(
            route, Run(topic, packet.payloads, qos, False, NO_PROPERTIES, None, connection.client_id), section
        )

    def _admit_run(self, qos: int, packet_ids: list[int]) -> bool:
        """Count QoS 1 or 2 publications and arrange for their acknowledgement; False if each needs a look of its own."""
        connection = self._connection
        count = len(packet_ids)
        if connection.version == V5 and connection.unacknowledged + count > self._hub.limits.receive_maximum:
            return False
        if qos == 1:
            connection.acknowledge(PUBACK, packet_ids)
        else:
            session = self._session
            fresh = set(packet_ids)
            if session.persistent or len(fresh) < count or not session.inbound.isdisjoint(fresh):
                return False
            session.inbound |= fresh
            connection.acknowledge(PUBREC, packet_ids)
        connection.unacknowledged += count
        return True

    def publish(self, packet: Publish) -> None:
        connection = self._connection
        hub = self._hub
        route = hub.routes.route(packet.topic)
        hub.counters.messages_received += 1
        qos = packet.qos
        refusal = route.refusal
        if refusal and hub.management.handle(connection.principal, packet):
            if qos and connection.phase is Phase.CONNECTED and not (qos == 2 and self._repeated(packet)):
                self._admit(packet, qos)
            return
        if qos == 2 and self._repeated(packet):
            return
        if not refusal and not hub.control.open and not self._may_publish(route):
            self._deny(packet)
            return
        if qos and packet.retain and not refusal and not hub.retained.reserve(packet.topic, len(packet.payload)):
            hub.counters.retained_refused += 1
            refusal = errors.QUOTA_EXCEEDED
        if refusal:
            hub.counters.refused += 1
            self._refuse_publication(packet, refusal)
            return
        if qos and not self._admit(packet, qos):
            return
        hub.publishing.publish(route, *self._publication(packet, route))

    def _publication(self, packet: Publish, route: Route) -> tuple[Run, bytes]:
        connection = self._connection
        properties = packet.properties
        expires_ms = None
        if properties is not None and properties.message_expiry_interval is not None:
            expires_ms = self._hub.clock.wall_ms() + properties.message_expiry_interval * 1000
        section = header_section(
            qos=packet.qos,
            retain=packet.retain,
            publisher=connection.client_id,
            properties=properties,
            topic=None if route.named else packet.topic,
            packet_id=packet.packet_id if packet.qos == 2 and self._session.persistent else 0,
        )
        run = Run(
            packet.topic, [packet.payload], packet.qos, packet.retain, wire_properties(properties), expires_ms, connection.client_id
        )  # fmt: skip
        return run, section

    def _may_publish(self, route: Route) -> bool:
        """Whether this client may write to the topic, and to the queues that are bound to it."""
        connection, control = self._connection, self._hub.control
        log_topic = None if route.mapped is None else route.mapped.topic
        return control.may_publish(connection.principal, connection.client_id, route.topic, log_topic) and all(
            control.allows(connection.principal, Operation.WRITE, Kind.TOPIC, queue.topic)
            for queue in self._hub.publishing.queues_of(route)
        )

    def _deny(self, packet: Publish) -> None:
        """Drop what this client may not publish. As Mosquitto, only 5.0 is told, which has a way to say so."""
        connection, hub, qos = self._connection, self._hub, packet.qos
        hub.counters.refused += 1
        hub.control.refused_mqtt(connection.principal, Operation.WRITE, packet.topic)
        if qos and connection.version == V5:
            self._refuse_publication(packet, errors.NOT_AUTHORIZED)
        elif qos:
            self._admit(packet, qos)

    def _refuse_publication(self, packet: Publish, reason_code: int) -> None:
        """Tell the client that this will not be stored, in the one way that there is for it."""
        connection = self._connection
        text = errors.PUBLISH_REFUSALS[reason_code]
        if connection.version != V5 or packet.qos == 0:
            connection.refuse(reason_code, text)
            return
        answer = PubAck(packet.packet_id, reason_code) if packet.qos == 1 else PubRec(packet.packet_id, reason_code)
        data = connection.fitting(answer, text)
        assert data is not None, "whoever takes a CONNACK takes this"
        connection.answer(data)

    def _repeated(self, packet: Publish) -> bool:
        """Whether this QoS 2 publication was published when it came first [MQTT-4.3.3-10]; it is acknowledged again."""
        if packet.packet_id not in self._session.inbound:
            return False
        self._connection.acknowledge(PUBREC, [packet.packet_id])
        return True

    def _admit(self, packet: Publish, qos: int) -> bool:
        """Count a QoS 1 or 2 publication and arrange for its acknowledgement; False if it is one too many."""
        connection = self._connection
        packet_id = packet.packet_id
        session = self._session
        connection.unacknowledged += 1
        if connection.version == V5 and connection.unacknowledged > self._hub.limits.receive_maximum:
            connection.refuse(errors.RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged publications than Receive Maximum")
            return False
        if qos == 1:
            connection.acknowledge(PUBACK, [packet_id])
        else:
            session.inbound.add(packet_id)
            if session.persistent:
                self._hub.journal.inbound_changed(session)
            connection.acknowledge(PUBREC, [packet_id])
        return True

    def release(self, packet_ids: list[int]) -> None:
        """PUBREL: the client will not send these publications again."""
        connection = self._connection
        session = self._session
        known = set(packet_ids)
        if len(known) == len(packet_ids) and known <= session.inbound:
            session.inbound -= known
            if session.persistent:
                self._hub.journal.inbound_changed(session)
            connection.acknowledge(PUBCOMP, packet_ids)
        elif len(packet_ids) > 1:
            for packet_id in packet_ids:
                self.release([packet_id])
        else:
            reason = errors.PACKET_IDENTIFIER_NOT_FOUND if connection.version == V5 else errors.SUCCESS
            connection.answer(encode(PubComp(packet_ids[0], reason), connection.version))
