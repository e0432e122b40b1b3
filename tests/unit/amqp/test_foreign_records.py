"""Records that other protocols' clients wrote into a queue's topic, with headers that nobody should write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.undecodable import UNDECODABLE
from tests.unit.amqp.harness import Broker, until, with_broker
from trunkline.broker.messaging.dead_letters import bury
from trunkline.broker.messaging.envelope import MAX_HEADERS
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.cursors.queue import Delivery
from trunkline.log.batch import MAX_RECORD_HEADERS, NewRecord, build_batch
from trunkline.log.records import check_headers, encode_headers
from trunkline.log.store import TopicPartition
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import decode_properties
from trunkline.protocols.amqp.consumer import Consumer
from trunkline.protocols.amqp.mapping import MAX_TABLE_BYTES, envelope_of_section
from trunkline.protocols.amqp.properties import Properties, encode_properties

Headers = Sequence[tuple[str, bytes | None]]

DEEP = b"[" * 100_000 + b"]" * 100_000
HOSTILE: dict[str, Headers] = {
    "typed fields that are none": [("amqp.headers", b"garbage")],
    "typed fields without end": [("amqp.headers", b"\x01aF\xff\xff\xff\xff")],
    "a deep history": [("x-death", DEEP)],
    "a history nested in objects": [("x-death", b'[{"a":' * 900 + b"1" + b"}]" * 900)],
    "a history of numbers": [("x-death", b"[1, 2, 3]")],
    "a history of large numbers": [("x-death", b'[{"count": %d}]' % 10**40)],
    "a history before time": [("x-death", b'[{"time": -5, "queue": "q"}]')],
    "a history with half a character": [("x-death", b'[{"queue": "\\ud800"}]')],
    "a history with long names": [("x-death", json.dumps([{"n" * 300: 1}]).encode())],
    "an exchange that is no text": [("amqp.exchange", b"\xff" * 255), ("amqp.routing-key", b"\xfe" * 400)],
    "numbers that are none": [("amqp.priority", b"-1"), ("amqp.delivery-mode", b"many"), ("amqp.timestamp", b"9" * 30)],
    "properties that are too long": [("amqp.content-type", b"x" * 300), ("amqp.message-id", b"y" * 70_000)],
    "an expiration that is none": [("amqp.expiration", b"soon")],
    "more than fits a frame": [("large", bytes(200_000)), ("small", b"kept")],
    "many": [(f"h{number}", None) for number in range(MAX_RECORD_HEADERS)],
    "names of 300 bytes": [("n" * 300, b"x")],
    "empty": [("", None), ("", b"")],
    "publications of MQTT": [("mqtt.qos", b"9"), ("mqtt.topic", b"\xff"), ("mqtt.expiry-s", b"x" * 1000)],
}


async def append(started: Broker, topic: str, *records: NewRecord) -> None:
    await started.core.store.append(TopicPartition(topic, 0), build_batch(records, timestamp_ms=1), foreign=True)


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("form", HOSTILE)
def test_hostile_headers_hold_nobody_up(tmp_path: Path, form: str, no_ack: bool) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await started.core.create_topic("q", 1)
        await append(started, "q", NewRecord(None, b"before"), NewRecord(None, b"bad", HOSTILE[form]))
        await append(started, "q", NewRecord(None, b"behind"))
        await peer.consume("q", no_ack=no_ack)
        assert await peer.bodies(3) == [b"before", b"bad", b"behind"]
        for delivery in peer.deliveries():
            decode_properties(delivery.properties)
            assert len(delivery.properties) < 128 << 10
        if not no_ack:
            peer.method(m.BasicReject(2, False))  # its history is read again
            peer.ack(3, multiple=True)
            await peer.settle()
        assert started.core.messaging is not None
        (queue,) = started.core.messaging.queues
        await until(lambda: queue.cursor.unacked == 0 and queue.cursor.ready == 0)

    with_broker(tmp_path, test)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["amqp.headers", "x-death", "amqp.exchange", "amqp.routing-key", "amqp.priority", "amqp.timestamp", "CC"]
            )
            | st.text(max_size=20).map(lambda text: text.encode("utf-8", "ignore").decode()),
            st.none()
            | st.binary(max_size=80)
            | st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
                           | st.dictionaries(st.text(max_size=5), inner, max_size=3)).map(lambda tree: json.dumps(tree).encode()),
        ),
        max_size=6,
    )
)  # fmt: skip
@example([("x-death", b'[{"":-9223372036854775809}]')])
@example([("x-death", b'[{"queue":"q","reason":"rejected","count":9223372036854775807}]')])
@example([("x-death", b'[{"a":"\\ud800"}]')])
@example([("x-death", b'[{"' + b"n" * 300 + b'":1}]')])
def test_no_headers_raise_on_the_way_to_a_consumer_or_to_the_dead_letters(headers: Headers) -> None:
    section = encode_headers(headers)
    envelope = envelope_of_section(section)
    decode_properties(envelope.properties)
    envelope.table()
    envelope.with_header("x-delivery-count", 1)
    assert len(envelope.exchange.encode()) <= 255
    assert len(envelope.routing_key.encode()) <= 255
    letter = bury(section, "q", "rejected", routing_key=None, exchange="dlx", now_ms=0)
    buried = envelope_of_section(letter.section)
    deaths = buried.table()["x-death"]
    assert isinstance(deaths, list)
    assert isinstance(deaths[0], dict)
    assert deaths[0]["queue"] == "q"


def test_the_headers_that_do_not_fit_a_frame_are_left_out() -> None:
    headers: Headers = [("large", bytes(MAX_TABLE_BYTES)), ("small", b"kept")]
    assert envelope_of_section(encode_headers(headers)).table() == {"small": "kept"}


def test_a_dead_letter_has_room_for_its_history() -> None:
    section = encode_headers([(f"h{number}", None) for number in range(MAX_RECORD_HEADERS)])
    letter = bury(section, "q", "rejected", routing_key=None, exchange="dlx", now_ms=0)
    check_headers(letter.section)
    assert "x-death" in envelope_of_section(letter.section).table()


def test_a_publication_with_more_headers_than_a_record_may_have_is_refused(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q")
        fields: dict[str, FieldValue] = {f"h{number}": None for number in range(MAX_HEADERS)}
        peer.publish("q", b"x", properties=encode_properties(Properties(headers=fields)))
        assert (await peer.expect(m.ChannelClose)).reply_code == codes.PRECONDITION_FAILED

    with_broker(tmp_path, test)


class Defect(Exception):
    pass


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_message_that_cannot_be_encoded_is_dead_lettered_and_the_others_go_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ack: bool
) -> None:
    encoded = Consumer._encoded

    def defective(self: Consumer, deliveries: list[Delivery]) -> bytes:
        if any(delivery.message.value == b"bad" for delivery in deliveries):
            raise Defect("this cannot be encoded")
        return encoded(self, deliveries)

    monkeypatch.setattr(Consumer, "_encoded", defective)

    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("dead")
        await peer.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        for body in (b"before", b"bad", b"behind"):
            peer.publish("q", body)
        await peer.consume("q", no_ack=no_ack)
        assert await peer.bodies(2) == [b"before", b"behind"]
        assert peer.tags() == [1, 2]
        monkeypatch.undo()
        await peer.consume("dead", tag="d")
        assert (await peer.bodies(3))[2] == b"bad"
        headers = decode_properties(peer.deliveries()[2].properties).headers
        assert headers is not None
        deaths = headers["x-death"]
        assert isinstance(deaths, list)
        assert isinstance(deaths[0], dict)
        assert deaths[0]["reason"] == "undeliverable"

    with_broker(tmp_path, test)


def test_the_leases_of_a_consumer_that_fails_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(self: Consumer, deliveries: list[Delivery]) -> None:
        raise Defect("whatever it is")

    async def test(started: Broker) -> None:
        peer, other = await started.peer(), await started.peer()
        await peer.declare("q")
        for number in range(3):
            peer.publish("q", b"%d" % number)
        with monkeypatch.context() as patch:
            patch.setattr(Consumer, "deliver", defective)
            await peer.consume("q")
            await peer.expect(m.BasicCancel)
        await other.consume("q")
        assert await other.bodies(3) == [b"0", b"1", b"2"]

    with_broker(tmp_path, test)


@pytest.mark.parametrize("form", UNDECODABLE)
def test_a_queue_goes_on_before_and_behind_records_that_do_not_parse(tmp_path: Path, form: str) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await started.core.create_topic("q", 1)
        tp = TopicPartition("q", 0)
        await append(started, "q", NewRecord(None, b"before"))
        await started.core.store.append(tp, UNDECODABLE[form], foreign=True)
        await append(started, "q", NewRecord(None, b"behind"))
        await peer.consume("q")
        assert await peer.bodies(2) == [b"before", b"behind"]
        peer.ack(2, multiple=True)
        assert started.core.messaging is not None
        (queue,) = started.core.messaging.queues
        await until(lambda: queue.cursor.stats().head_offset == started.core.store.bounds(tp).high_watermark)

    with_broker(tmp_path, test)
