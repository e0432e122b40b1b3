"""Strategies for MQTT packets of every type and version."""

from __future__ import annotations

from hypothesis import strategies as st

from trunkline.protocols.mqtt.packets import (
    V5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from trunkline.protocols.mqtt.properties import Properties

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
topics = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00+#"), min_size=1, max_size=20)
payloads = st.binary(max_size=30).flatmap(lambda blob: st.sampled_from([blob, blob * 20]))
packet_ids = st.integers(1, 65_535)
flags = st.integers(0, 1)
u16 = st.integers(0, 65_535)
u32 = st.integers(0, 2**32 - 1)

_VALUES: dict[str, st.SearchStrategy[object]] = {
    "payload_format_indicator": flags,
    "message_expiry_interval": u32,
    "content_type": texts,
    "response_topic": topics,
    "correlation_data": st.binary(max_size=20),
    "session_expiry_interval": u32,
    "assigned_client_identifier": texts,
    "server_keep_alive": u16,
    "authentication_method": texts,
    "authentication_data": st.binary(max_size=20),
    "request_problem_information": flags,
    "will_delay_interval": u32,
    "request_response_information": flags,
    "response_information": texts,
    "server_reference": texts,
    "reason_string": texts,
    "receive_maximum": st.integers(1, 65_535),
    "topic_alias_maximum": u16,
    "topic_alias": st.integers(1, 10),
    "maximum_qos": flags,
    "retain_available": flags,
    "maximum_packet_size": st.integers(1, 268_435_455),
    "wildcard_subscription_available": flags,
    "subscription_identifier_available": flags,
    "shared_subscription_available": flags,
    "user_properties": st.lists(st.tuples(texts, texts), min_size=1, max_size=3),
    "subscription_identifiers": st.lists(st.integers(1, 268_435_455), min_size=1, max_size=1),
}
MESSAGE = ["payload_format_indicator", "message_expiry_interval", "content_type", "response_topic", "correlation_data"]
REASON = ["reason_string"]
PLACES = {
    "connect": [
        "session_expiry_interval", "authentication_method", "request_problem_information",
        "request_response_information", "receive_maximum", "topic_alias_maximum", "maximum_packet_size",
    ],
    "connack": [
        "session_expiry_interval", "assigned_client_identifier", "server_keep_alive", "authentication_method",
        "authentication_data", "response_information", "server_reference", "reason_string", "receive_maximum",
        "topic_alias_maximum", "maximum_qos", "retain_available", "maximum_packet_size",
        "wildcard_subscription_available", "subscription_identifier_available", "shared_subscription_available",
    ],
    "publish": MESSAGE,
    "will": [*MESSAGE, "will_delay_interval"],
    "ack": REASON,
    "subscribe": ["subscription_identifiers"],
    "unsubscribe": [],
    "disconnect": ["session_expiry_interval", "server_reference", "reason_string"],
    "auth": ["authentication_data", "reason_string"],
}  # fmt: skip


def filled(values: dict[str, object]) -> Properties:
    properties = Properties()
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def properties_for(place: str, version: int) -> st.SearchStrategy[Properties | None]:
    if version != V5:
        return st.none()
    chosen = {name: _VALUES[name] for name in [*PLACES[place], "user_properties"]}
    if place == "auth":
        required: dict[str, st.SearchStrategy[object]] = {"authentication_method": texts}
    else:
        required = {}
    some = st.fixed_dictionaries(required, optional=chosen).filter(bool)
    return (st.none() if place != "auth" else st.nothing()) | some.map(filled)


def publishes(version: int) -> st.SearchStrategy[Publish]:
    @st.composite
    def build(draw: st.DrawFn) -> Publish:
        qos = draw(st.integers(0, 2))
        return Publish(
            draw(topics),
            draw(payloads),
            qos,
            draw(st.booleans()),
            draw(st.booleans()) and qos > 0,
            draw(packet_ids) if qos else 0,
            draw(properties_for("publish", version)),
        )

    return build()


def acknowledgements(version: int) -> st.SearchStrategy[Packet]:
    extra = properties_for("ack", version)
    first = st.sampled_from([0, 0x10, 0x80, 0x87, 0x91, 0x97]) if version == V5 else st.just(0)
    second = st.sampled_from([0, 0x92]) if version == V5 else st.just(0)
    return (
        st.builds(PubAck, packet_ids, first, extra)
        | st.builds(PubRec, packet_ids, first, extra)
        | st.builds(PubRel, packet_ids, second, extra)
        | st.builds(PubComp, packet_ids, second, extra)
    )


def connects(version: int) -> st.SearchStrategy[Connect]:
    will = st.builds(
        Will, topics, st.binary(max_size=30), st.integers(0, 2), st.booleans(), properties_for("will", version)
    )

    @st.composite
    def build(draw: st.DrawFn) -> Connect:
        user_name = draw(st.none() | texts)
        password = draw(st.none() | st.binary(max_size=20)) if user_name is not None or version == V5 else None
        return Connect(
            version,
            draw(texts),
            draw(st.booleans()),
            draw(u16),
            draw(st.none() | will),
            user_name,
            password,
            draw(properties_for("connect", version)),
        )

    return build()


def client_packets(version: int) -> st.SearchStrategy[Packet]:
    """What a client sends after CONNECT."""
    handling = st.integers(0, 2) if version == V5 else st.just(0)
    bit = st.booleans() if version == V5 else st.just(False)
    filters = texts.filter(bool)
    subscription = st.builds(Subscription, filters, st.integers(0, 2), bit, bit, handling)
    options: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        acknowledgements(version),
        st.builds(Subscribe, packet_ids, st.lists(subscription, min_size=1, max_size=3), properties_for("subscribe", version)),
        st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=3), properties_for("unsubscribe", version)),
        st.builds(PingReq),
    ]  # fmt: skip
    if version == V5:
        options.append(st.builds(Disconnect, st.sampled_from([0, 4, 0x82]), properties_for("disconnect", version)))
        options.append(st.builds(Auth, st.sampled_from([0x18, 0x19]), properties_for("auth", version)))
    else:
        options.append(st.builds(Disconnect))
    return st.one_of(options)


def server_packets(version: int) -> st.SearchStrategy[Packet]:
    """What a server sends."""
    codes = st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1, max_size=4)
    options: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        acknowledgements(version),
        st.builds(ConnAck, st.booleans() if version > 3 else st.just(False), st.integers(0, 5), properties_for("connack", version)),
        st.builds(SubAck, packet_ids, codes, properties_for("ack", version)),
        st.builds(UnsubAck, packet_ids, codes if version == V5 else st.just([]), properties_for("ack", version)),
        st.builds(PingResp),
    ]  # fmt: skip
    if version == V5:
        options.append(st.builds(Disconnect, st.sampled_from([0, 0x8B, 0x8E]), properties_for("disconnect", version)))
        options.append(st.builds(Auth, st.just(0x18), properties_for("auth", version)))
    return st.one_of(options)
