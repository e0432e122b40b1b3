"""paho-mqtt writes and reads the same packets."""

from __future__ import annotations

import socket
import struct

import paho.mqtt.client as paho
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.unit.mqtt.codec_samples import PLACES, properties_for
from trunkline.protocols.mqtt.codec import Parser, encode_properties
from trunkline.protocols.mqtt.packets import (
    V5,
    V311,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from trunkline.protocols.mqtt.properties import Properties

PAHO_NAMES = {
    "payload_format_indicator": "PayloadFormatIndicator",
    "message_expiry_interval": "MessageExpiryInterval",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "subscription_identifiers": "SubscriptionIdentifier",
    "session_expiry_interval": "SessionExpiryInterval",
    "assigned_client_identifier": "AssignedClientIdentifier",
    "server_keep_alive": "ServerKeepAlive",
    "authentication_method": "AuthenticationMethod",
    "authentication_data": "AuthenticationData",
    "request_problem_information": "RequestProblemInformation",
    "will_delay_interval": "WillDelayInterval",
    "request_response_information": "RequestResponseInformation",
    "response_information": "ResponseInformation",
    "server_reference": "ServerReference",
    "reason_string": "ReasonString",
    "receive_maximum": "ReceiveMaximum",
    "topic_alias_maximum": "TopicAliasMaximum",
    "maximum_qos": "MaximumQoS",
    "retain_available": "RetainAvailable",
    "user_properties": "UserProperty",
    "maximum_packet_size": "MaximumPacketSize",
    "wildcard_subscription_available": "WildcardSubscriptionAvailable",
    "subscription_identifier_available": "SubscriptionIdentifierAvailable",
    "shared_subscription_available": "SharedSubscriptionAvailable",
}
PAHO_PLACES = {
    "connect": PacketTypes.CONNECT,
    "connack": PacketTypes.CONNACK,
    "publish": PacketTypes.PUBLISH,
    "will": PacketTypes.WILLMESSAGE,
    "ack": PacketTypes.PUBACK,
    "subscribe": PacketTypes.SUBSCRIBE,
    "unsubscribe": PacketTypes.UNSUBSCRIBE,
    "disconnect": PacketTypes.DISCONNECT,
    "auth": PacketTypes.AUTH,
}


@given(st.sampled_from(sorted(PLACES)), st.data())
def test_paho_reads_the_properties_that_we_write(place: str, data: st.DataObject) -> None:
    ours = data.draw(properties_for(place, V5).filter(lambda properties: properties is not None))
    assert isinstance(ours, Properties)
    section = encode_properties(ours)
    theirs = PahoProperties(PAHO_PLACES[place])
    _, used = theirs.unpack(section)
    assert used == len(section)
    for name, paho_name in PAHO_NAMES.items():
        value = getattr(ours, name)
        assert getattr(theirs, paho_name, [] if isinstance(value, list) else None) == value, name
    assert sorted(theirs.pack()) == sorted(section)


class _Socketless(paho.Client):  # type: ignore[misc]
    """A paho client whose packets are collected and not sent."""

    def __init__(self, protocol: int) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id="client", protocol=MQTTProtocolVersion(protocol))
        self.collected = b""
        self._sock = socket.socket()  # it only has to be there

    def _packet_queue(  # type: ignore[no-untyped-def]
        self, command, packet, mid, qos, info=None
    ) -> MQTTErrorCode:
        self.collected += bytes(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def test_packets_of_paho_are_read() -> None:
    for version in (V311, V5):
        client = _Socketless(version)
        client.username_pw_set("user", "secret")
        client.will_set("will/topic", b"gone", 1, True)
        client._send_connect(60)
        client._send_publish(1, b"a/b", b"payload", 1, True, False)
        client._send_publish(0, b"a/b", b"", 0, False, False)
        options = [(b"a/#", SubscribeOptions(qos=2, noLocal=True)) if version == V5 else (b"a/#", 2)]
        mid = client._send_subscribe(False, options)[1]
        client._send_unsubscribe(False, [b"a/#"])
        client._send_disconnect()
        assert Parser().feed(client.collected) == [
            Connect(version, "client", True, 60, Will("will/topic", b"gone", 1, True), "user", b"secret"),
            Publish("a/b", b"payload", 1, True, False, 1),
            Publish("a/b", b""),
            Subscribe(mid, [Subscription("a/#", 2, version == V5)]),
            Unsubscribe(mid + 1, ["a/#"]),
            Disconnect(),
        ]


def test_remaining_length_at_its_borders_is_pahos() -> None:
    for size in (0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152):
        theirs = paho.Client._pack_remaining_length(_Socketless(V311), bytearray(b"\x30"), size)
        parser = Parser(server_side=False, version=V311, max_packet_bytes=2**28)
        assert parser.feed(bytes(theirs)) == [] or size == 0
        assert len(theirs) == 1 + sum(size >= border for border in (0, 128, 16_384, 2_097_152))
        topic = struct.pack(">H", 1) + b"t"
        if size > len(topic):
            (read,) = parser.feed(topic + bytes(size - len(topic)))
            assert isinstance(read, Publish)
            assert len(read.payload) == size - len(topic)
