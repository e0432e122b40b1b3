"""Records that Kafka clients wrote into a mapped topic, with headers and keys that nobody should write."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.undecodable import UNDECODABLE
from tests.unit.log.stores import run
from tests.unit.mqtt.front_door import FrontDoor, front_door, payloads
from trunkline.log.batch import MAX_RECORD_HEADERS, NewRecord, build_batch
from trunkline.log.records import encode_headers
from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.codec import OutgoingPublish, Properties, TopicAliases, encode_publishes
from trunkline.protocols.mqtt.errors import QUOTA_EXCEEDED
from trunkline.protocols.mqtt.message import read_traits, topic_of
from trunkline.protocols.mqtt.packets import V5, Disconnect, PubAck, Publish
from trunkline.protocols.mqtt.properties import MAX_USER_PROPERTIES, decode_properties
from trunkline.protocols.mqtt.sessions import session
from trunkline.protocols.mqtt.values import ValueReader

TP = TopicPartition("mqtt", 0)
Headers = Sequence[tuple[str, bytes | None]]

HOSTILE: dict[str, Headers] = {
    "a topic with wildcards": [("mqtt.topic", b"a/#")],
    "a topic that is no text": [("mqtt.topic", b"\xff\x00")],
    "an endless topic": [("mqtt.topic", b"a/" * 32_000)],
    "numbers that are none": [("mqtt.qos", b"7"), ("mqtt.packet-id", b"x"), ("mqtt.expiry-s", b"9" * 50)],
    "a response topic that is none": [("mqtt.response-topic", b"#"), ("mqtt.correlation-data", bytes(100_000))],
    "much": [(f"h{number}", bytes(60_000)) for number in range(40)],
    "many": [(f"h{number}", b"x") for number in range(MAX_RECORD_HEADERS)],
    "no text": [("h", b"\xff"), ("\x00", b"x"), ("", b"\x00")],
    "of AMQP": [("amqp.headers", b"garbage"), ("x-death", b"[" * 50_000)],
}


async def append(door: FrontDoor, *records: NewRecord) -> None:
    if door.store.topic("mqtt") is None:
        await door.store.create_topic("mqtt", 1, {"max.message.bytes": str(16 << 20)})
        door.server.hub.sources.discover()
    await door.store.append(TP, build_batch(records, timestamp_ms=door.clock.wall_ms()), foreign=True)


@pytest.mark.parametrize("form", HOSTILE)
@pytest.mark.parametrize("qos", [0, 1])
def test_hostile_headers_hold_nobody_up(form: str, qos: int) -> None:
    async def main() -> None:
        async with front_door() as door:
            live = await door.connect("live", V5)
            await live.subscribe("#", qos=qos)
            away = await door.returning("away")
            await away.subscribe("#", qos=1)
            away.drop()
            await append(door, NewRecord(b"t", b"before"), NewRecord(b"t", b"bad", HOSTILE[form]))
            await append(door, NewRecord(b"t", b"behind"))
            await live.until(lambda: len(payloads(live.got)) == 3)
            assert payloads(live.got) == [b"before", b"bad", b"behind"]
            back = await door.returning("away")
            await back.until(lambda: len(payloads(back.got)) == 3)
            assert payloads(back.got) == [b"before", b"bad", b"behind"]

    run(main())


@pytest.mark.parametrize("form", UNDECODABLE)
def test_publications_go_on_before_and_behind_records_that_do_not_parse(form: str) -> None:
    async def main() -> None:
        async with front_door() as door:
            away = await door.returning("away")
            await away.subscribe("#", qos=1)
            away.drop()
            await door.store.create_topic("mqtt", 1)
            for batch in (
                build_batch([NewRecord(b"t", b"before")]),
                UNDECODABLE[form],
                build_batch([NewRecord(b"t", b"x")]),
            ):
                await door.store.append(TP, batch, foreign=True)
            door.server.hub.sources.discover()
            back = await door.returning("away")
            await back.until(lambda: len(payloads(back.got)) == 2)
            assert payloads(back.got) == [b"before", b"x"]

    run(main())


@settings(max_examples=300, deadline=None)
@given(
    st.none() | st.binary(max_size=40),
    st.lists(
        st.tuples(
            st.sampled_from(["mqtt.qos", "mqtt.topic", "mqtt.expiry-s", "mqtt.payload-format", "mqtt.content-type",
                             "mqtt.response-topic", "mqtt.correlation-data", "mqtt.user.a", "mqtt.user.", "mqtt."])
            | st.text(max_size=10).map(lambda text: text.encode("utf-8", "ignore").decode()),
            st.none() | st.binary(max_size=40) | st.integers(-5, 1 << 40).map(lambda number: b"%d" % number),
        ),
        max_size=6,
    ),
)  # fmt: skip
def test_whatever_the_headers_are_a_packet_can_be_made_of_them(key: bytes | None, headers: Headers) -> None:
    section = encode_headers(headers)
    traits = read_traits(section)
    topic = topic_of((0, 0, key, b"", section), "default")
    decode_properties(ValueReader(traits.properties, 0, len(traits.properties)), 4)
    encode_publishes([(topic, b"x", traits.qos, False, False, 1, traits.properties)], V5, TopicAliases(10))
    assert topic
    assert "#" not in topic


class Defect(Exception):
    pass


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_cannot_be_encoded_is_dropped_and_the_others_go_out(
    monkeypatch: pytest.MonkeyPatch, persistent: bool, qos: int
) -> None:
    def defective(messages: list[OutgoingPublish], version: int, aliases: TopicAliases | None = None) -> bytes:
        data = encode_publishes(messages, version, aliases)
        if any(message[1] == b"bad" for message in messages):
            raise Defect("this cannot be encoded")
        return data

    def never(*_: object) -> bytes:
        raise Defect("runs cannot be encoded at all")

    async def main() -> None:
        monkeypatch.setattr(session, "encode_publishes", defective)
        monkeypatch.setattr(session, "encode_run", never)
        async with front_door() as door:
            peer = await door.connect(
                "c", V5, clean=not persistent, expiry_s=60 if persistent else 0, topic_alias_maximum=5
            )
            await peer.subscribe("#", qos=qos)
            other = await door.connect("p")
            for body in (b"before", b"bad", b"behind"):
                await other.publish("t", body, qos=1)
            await peer.until(lambda: len(payloads(peer.got)) == 2)
            assert payloads(peer.got) == [b"before", b"behind"]
            found = door.server.hub.sessions.by_client["c"]
            assert found.dropped == 1
            assert len(found.window) == (2 if qos else 0)

    run(main())


def test_more_user_properties_than_a_record_has_headers_are_refused() -> None:
    async def main() -> None:
        async with front_door() as door:
            peer = await door.connect("c", V5)
            await peer.publish("t", b"x", properties=with_user_properties(MAX_USER_PROPERTIES))
            peer.send(Publish("t", b"x", 1, packet_id=1, properties=with_user_properties(MAX_USER_PROPERTIES + 1)))
            (last,) = [packet for packet in await peer.ended() if not isinstance(packet, PubAck)]
            assert isinstance(last, Disconnect)
            assert last.reason_code == QUOTA_EXCEEDED

    run(main())


def with_user_properties(count: int) -> Properties:
    properties = Properties()
    properties.user_properties = [("a", "b")] * count
    return properties
