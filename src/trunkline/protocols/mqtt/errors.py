"""MQTT reason codes, and the error that bytes on the wire can cause.

`MalformedPacket` is both an exception and an event: the parser never raises it, it ends its list of packets with it, so
that what came before the offending bytes is still carried out.
"""

from __future__ import annotations

SUCCESS = 0x00
NORMAL_DISCONNECTION = 0x00
GRANTED_QOS_0 = 0x00
GRANTED_QOS_1 = 0x01
GRANTED_QOS_2 = 0x02
DISCONNECT_WITH_WILL = 0x04
NO_MATCHING_SUBSCRIBERS = 0x10
NO_SUBSCRIPTION_EXISTED = 0x11
CONTINUE_AUTHENTICATION = 0x18
REAUTHENTICATE = 0x19
UNSPECIFIED_ERROR = 0x80
MALFORMED_PACKET = 0x81
PROTOCOL_ERROR = 0x82
IMPLEMENTATION_SPECIFIC_ERROR = 0x83
UNSUPPORTED_PROTOCOL_VERSION = 0x84
CLIENT_IDENTIFIER_NOT_VALID = 0x85
BAD_USER_NAME_OR_PASSWORD = 0x86
NOT_AUTHORIZED = 0x87
SERVER_UNAVAILABLE = 0x88
SERVER_BUSY = 0x89
BANNED = 0x8A
SERVER_SHUTTING_DOWN = 0x8B
BAD_AUTHENTICATION_METHOD = 0x8C
KEEP_ALIVE_TIMEOUT = 0x8D
SESSION_TAKEN_OVER = 0x8E
TOPIC_FILTER_INVALID = 0x8F
TOPIC_NAME_INVALID = 0x90
PACKET_IDENTIFIER_IN_USE = 0x91
PACKET_IDENTIFIER_NOT_FOUND = 0x92
RECEIVE_MAXIMUM_EXCEEDED = 0x93
TOPIC_ALIAS_INVALID = 0x94
PACKET_TOO_LARGE = 0x95
MESSAGE_RATE_TOO_HIGH = 0x96
QUOTA_EXCEEDED = 0x97
ADMINISTRATIVE_ACTION = 0x98
PAYLOAD_FORMAT_INVALID = 0x99
RETAIN_NOT_SUPPORTED = 0x9A
QOS_NOT_SUPPORTED = 0x9B
USE_ANOTHER_SERVER = 0x9C
SERVER_MOVED = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
CONNECTION_RATE_EXCEEDED = 0x9F
MAXIMUM_CONNECT_TIME = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

# What a CONNACK says to a client of 3.1 or 3.1.1; every other refusal is 3, server unavailable.
V3_RETURN_CODES = {
    SUCCESS: 0,
    UNSUPPORTED_PROTOCOL_VERSION: 1,
    CLIENT_IDENTIFIER_NOT_VALID: 2,
    SERVER_UNAVAILABLE: 3,
    BAD_USER_NAME_OR_PASSWORD: 4,
    NOT_AUTHORIZED: 5,
    TOPIC_NAME_INVALID: 5,  # of the will: to try again is no use, which 3 would say
}

# Why a publication is not taken, for the reason string.
PUBLISH_REFUSALS = {
    NOT_AUTHORIZED: "clients may not publish here",
    TOPIC_NAME_INVALID: "the topic name is too long or has too many levels",
    QUOTA_EXCEEDED: "no more retained messages are kept",
}


class MalformedPacket(Exception):
    """Bytes that break the protocol; `reason_code` is what a DISCONNECT or CONNACK of 5.0 says about it.

    `version` is the protocol version of the connection, 0 when no CONNECT has told it.
    """

    def __init__(self, reason_code: int, text: str, version: int = 0) -> None:
        super().__init__(reason_code, text, version)
        self.reason_code = reason_code
        self.text = text
        self.version = version

    def __str__(self) -> str:
        return f"0x{self.reason_code:02x}: {self.text}"
