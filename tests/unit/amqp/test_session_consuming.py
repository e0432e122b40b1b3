"""Consuming through a session: prefetch, settlement, back-pressure, direct replies, management."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.amqp.harness import FRAME_MAX, Broker, Peer, until, with_broker
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.store import TopicPartition
from trunkline.protocols.amqp import errors as codes
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import Properties, decode_properties, encode_properties, encode_publish
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.management import ADDRESS


def fill(peer: Peer, queue: str, count: int) -> None:
    peer.send(b"".join(encode_publish(1, "", queue, b"\0\0", b"%d" % n, FRAME_MAX) for n in range(count)))


def test_prefetch_bounds_what_each_consumer_holds(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q")
        fill(peer, "q", 10)
        await peer.call(m.BasicQos(0, 3, False), m.BasicQosOk)
        await peer.consume("q")
        assert await peer.bodies(3) == [b"0", b"1", b"2"]
        await peer.settle()
        assert len(peer.deliveries()) == 3
        peer.ack(2, multiple=True)
        assert len(await peer.bodies(5)) == 5
        await peer.settle()
        assert peer.tags() == [1, 2, 3, 4, 5]

    with_broker(tmp_path, test)


def test_the_channels_prefetch_is_shared_exactly_and_starves_nobody(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        for name in ("a", "b", "empty"):
            await peer.declare(name)
        await peer.call(m.BasicQos(0, 2, True), m.BasicQosOk)
        for name in ("empty", "a", "b"):
            await peer.consume(name, tag=name)
        fill(peer, "a", 20)
        fill(peer, "b", 20)
        settled = 0
        while settled < 40:
            await until(lambda: len(peer.deliveries()) > settled)  # noqa: B023 (used at once)
            await peer.settle()
            assert len(peer.deliveries()) - settled <= 2
            settled += 1
            peer.ack(settled)
        await peer.settle()
        assert sorted(peer.tags()) == list(range(1, 41))

    with_broker(tmp_path, test)


def test_what_is_free_of_a_channels_prefetch_goes_to_the_queue_that_has_waited_longest(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        for name in ("a", "b", "c", "empty"):
            await peer.declare(name)
            if name != "empty":
                fill(peer, name, 10)
        await peer.call(m.BasicQos(0, 1, True), m.BasicQosOk)
        for name in ("a", "empty", "b", "c"):
            await peer.consume(name, tag=name)
        for settled in range(30):
            await until(lambda settled=settled: len(peer.deliveries()) > settled)  # type: ignore[misc]
            await peer.settle()
            assert len(peer.deliveries()) == settled + 1
            peer.ack(settled + 1)
        came = [e.method.consumer_tag for e in peer.deliveries() if isinstance(e.method, m.BasicDeliver)]
        # "a" was in line again before the others were consumed from.
        assert came == ["a", *["a", "b", "c"] * 9, "b", "c"]

    with_broker(tmp_path, test)


def test_what_is_free_is_shared_evenly_by_queues_with_something_ready(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        for name in ("a", "b", "short"):
            await peer.declare(name)
            fill(peer, name, 100 if name != "short" else 2)
        await peer.call(m.BasicQos(0, 1, True), m.BasicQosOk)
        for name in ("a", "b", "short"):
            await peer.consume(name, tag=name)
        await peer.bodies(1)
        await peer.call(m.BasicQos(0, 41, True), m.BasicQosOk)
        await peer.bodies(41)
        await peer.settle()
        came = [e.method.consumer_tag for e in peer.deliveries() if isinstance(e.method, m.BasicDeliver)]
        assert (came.count("short"), len(came)) == (2, 41)
        assert min(came.count("a"), came.count("b")) >= 17

    with_broker(tmp_path, test)


def test_who_was_stopped_by_the_channels_maximum_is_served_when_another_queues_message_is_settled(
    tmp_path: Path,
) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        for name in ("a", "b"):
            await peer.declare(name)
            fill(peer, name, 5)
        await peer.consume("a", tag="a")
        await peer.bodies(5)
        await peer.consume("b", tag="b")
        await peer.settle()
        assert len(peer.deliveries()) == 5
        peer.ack(5, multiple=True)
        assert len(await peer.bodies(10)) == 10

    with_broker(tmp_path, test, AmqpLimits(max_unsettled_per_channel=5))


def test_a_client_that_does_not_read_gets_nothing_more(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q")
        await peer.consume("q", no_ack=True)
        peer.session.pause_writing()
        fill(peer, "q", 5)
        await peer.settle()
        assert peer.deliveries() == []
        peer.session.resume_writing()
        assert len(await peer.bodies(5)) == 5

    with_broker(tmp_path, test)


def test_what_is_rejected_goes_back_to_its_place(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q")
        fill(peer, "q", 4)
        await peer.call(m.BasicQos(0, 2, False), m.BasicQosOk)
        await peer.consume("q")
        assert await peer.bodies(2) == [b"0", b"1"]
        peer.method(m.BasicNack(2, True, True))
        bodies = await peer.bodies(4)
        assert bodies[2:] == [b"0", b"1"]

    with_broker(tmp_path, test)


def test_an_unknown_tag_ends_the_channel(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        peer.ack(1)
        close = await peer.expect(m.ChannelClose)
        assert (close.reply_code, close.reply_text) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")

    with_broker(tmp_path, test)


def test_a_deleted_queue_tells_its_consumers(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("q")
        fill(peer, "q", 1)
        await peer.consume("q", tag="mine")
        await peer.bodies(1)
        other = await started.peer()
        await other.call(m.QueueDelete(0, "q", False, False, False), m.QueueDeleteOk)
        assert (await peer.expect(m.BasicCancel)).consumer_tag == "mine"
        peer.ack(1)  # what it held is gone with the queue, and nobody minds
        await peer.call(m.BasicQos(0, 1, False), m.BasicQosOk)
        peer.ack(1)
        assert (await peer.expect(m.ChannelClose)).reply_code == codes.PRECONDITION_FAILED

    with_broker(tmp_path, test)


def test_a_kafka_topic_is_a_queue_by_its_name(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await started.core.create_topic("stream", 1)
        batch = build_batch([NewRecord(b"k", b"value", (("trace", b"abc"),))], timestamp_ms=1)
        await started.core.store.append(TopicPartition("stream", 0), batch)
        await peer.consume("stream")
        assert await peer.bodies(1) == [b"value"]
        (delivery,) = peer.deliveries()
        assert isinstance(delivery.method, m.BasicDeliver)
        assert (delivery.method.exchange, delivery.method.routing_key) == ("", "stream")
        assert decode_properties(delivery.properties).headers == {"trace": "abc"}

    with_broker(tmp_path, test)


def test_definitions_have_streams_like_other_queues(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        def queue(name: str, kind: str) -> dict[str, object]:
            return {"name": name, "vhost": "/", "durable": True, "arguments": {"x-queue-type": kind}}

        def binding(name: str) -> dict[str, object]:
            return {
                "source": "amq.fanout",
                "vhost": "/",
                "destination": name,
                "destination_type": "queue",
                "routing_key": "",
            }

        document: dict[str, object] = {
            "queues": [queue("q", "classic"), queue("s", "stream")],
            "bindings": [binding("q"), binding("s")],
        }
        done = await started.core.administration.import_definitions(document)
        assert done["left_out"] == {}
        imported = done["imported"]
        assert isinstance(imported, dict)
        assert (imported["queues"], imported["bindings"]) == (2, 2)
        queues = started.service.vhosts["/"].queues
        assert [queues[name].is_stream for name in ("q", "s")] == [False, True]

    with_broker(tmp_path, test)


def test_a_reply_goes_straight_to_the_channel_that_asked(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        asking, answering = await started.peer(), await started.peer()
        await answering.declare("requests")
        await answering.consume("requests", no_ack=True)
        await asking.consume("amq.rabbitmq.reply-to", no_ack=True)
        section = encode_properties(Properties(reply_to="amq.rabbitmq.reply-to", correlation_id="7"))
        asking.publish("requests", b"?", properties=section)
        assert await answering.bodies(1) == [b"?"]
        address = decode_properties(answering.deliveries()[0].properties).reply_to
        assert address is not None
        assert address.startswith("amq.rabbitmq.reply-to.")
        answering.publish(address, b"!")
        assert await asking.bodies(1) == [b"!"]
        asking.session.lost()
        answering.publish(address, b"too late", mandatory=True)
        await until(lambda: any(getattr(event, "body", b"") == b"too late" for event in answering.events))

    with_broker(tmp_path, test)


async def manage(peer: Peer, **request: object) -> dict[str, object]:
    section = encode_properties(Properties(reply_to="amq.rabbitmq.reply-to"))
    before = len(peer.deliveries())
    peer.publish(ADDRESS, json.dumps(request).encode(), properties=section)
    await until(lambda: len(peer.deliveries()) > before)
    answer = json.loads(peer.deliveries()[-1].body)
    assert isinstance(answer, dict)
    return answer


def test_management_lists_peeks_and_moves_for_administrators_only(tmp_path: Path) -> None:
    async def test(started: Broker) -> None:
        peer = await started.peer()
        await peer.declare("a")
        await peer.declare("b", durable=True)
        fill(peer, "a", 3)
        await peer.consume("amq.rabbitmq.reply-to", no_ack=True)
        queues = (await manage(peer, do="queues"))["ok"]
        assert isinstance(queues, list)
        assert {entry["name"]: entry["ready"] for entry in queues} == {"a": 3, "b": 0}
        assert (await manage(peer, do="move", source="a", destination="b", count=2))["ok"] == {"moved": 2}
        peeked = (await manage(peer, do="peek", queue="b", count=5))["ok"]
        assert isinstance(peeked, list)
        assert len(peeked) == 2
        assert (await manage(peer, do="peek", queue="nowhere"))["error"] == "not found"
        assert (await manage(peer, do="nonsense"))["error"] == "precondition failed"
        assert "ok" in await manage(peer, do="put_user", name="worker", password="w", tags=[])
        assert "ok" in await manage(peer, do="put_permission", user="worker", vhost="/")
        worker = await started.peer(user="worker", password="w")
        await worker.consume("amq.rabbitmq.reply-to", no_ack=True)
        assert (await manage(worker, do="queues"))["error"] == "access refused"

    with_broker(tmp_path, test)
