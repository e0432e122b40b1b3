"""Sessions over the log: what is away comes back, what is slow catches up, what was killed is as it was."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path

import pytest

from tests.unit.mqtt.front_door import FrontDoor, after_a_kill, front_door, payloads
from trunkline.broker.messaging.mapping import Mapping, MappingRule
from trunkline.log.batch import NewRecord, build_batch, iter_batches, iter_records
from trunkline.log.store import Durability, TopicPartition
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.packets import (
    V5,
    V311,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


async def records_of(door: FrontDoor, topic: str) -> list[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
    found = []
    piece = await door.store.read(TopicPartition(topic, 0), 0, 1 << 20)
    for _, batch in iter_batches(piece.records):
        found += [(record.key, record.value, dict(record.headers)) for record in iter_records(batch)]
    return found


def test_a_publication_is_a_record_with_its_topic_as_key() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.connect("sensor-1", V5)
            await client.publish("site/7/temperature", b"21.5", qos=1)
            await client.publish("site/7/temperature", b"22.0", qos=0)
            await client.publish("last", b"x", qos=2)
            found = await records_of(door, "mqtt")
            assert [(key, value) for key, value, _ in found] == [
                (b"site/7/temperature", b"21.5"),
                (b"site/7/temperature", b"22.0"),
                (b"last", b"x"),
            ]
            assert [headers["mqtt.qos"] for _, _, headers in found] == [b"1", b"0", b"2"]
            assert {headers["mqtt.client"] for _, _, headers in found} == {b"sensor-1"}

    run(work())


def test_mapping_rules_decide_topic_key_and_whether_it_is_stored() -> None:
    mapping = Mapping(
        [MappingRule("plant/+/state", "plants", "{2}"), MappingRule("chat/#", "off"), MappingRule("plant/#", "other")]
    )

    async def work() -> None:
        async with front_door(mapping=mapping) as door:
            reader = await door.connect("reader")
            await reader.subscribe("#", qos=1)
            client = await door.connect("c")
            for topic in ("plant/a/state", "plant/a/more", "chat/b", "elsewhere"):
                await client.publish(topic, topic.encode())
            assert payloads(await reader.receive_many(Publish, 4)) == [
                b"plant/a/state",
                b"plant/a/more",
                b"chat/b",
                b"elsewhere",
            ]
            assert [(key, headers["mqtt.topic"]) for key, _, headers in await records_of(door, "plants")] == [
                (b"a", b"plant/a/state")
            ]
            assert [key for key, _, _ in await records_of(door, "other")] == [b"plant/a/more"]
            assert [key for key, _, _ in await records_of(door, "mqtt")] == [b"elsewhere"]
            # Read back from the log, a record with another key still has its topic.
            late = await door.returning("late")
            await late.subscribe("plant/#", qos=1)
            late.drop()
            await client.publish("plant/b/state", b"again")
            late = await door.returning("late")
            message = await late.receive(Publish)
            assert (message.topic, message.payload) == ("plant/b/state", b"again")

    run(work())


@pytest.mark.parametrize("version", [V311, V5])
def test_a_session_that_was_away_gets_what_it_missed_once_and_then_goes_on_live(version: int) -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("away", version)
            await client.subscribe("a/#", "a/b", qos=1)  # overlapping: still one copy
            client.drop()
            publisher = await door.connect("p")
            for number in range(50):
                await publisher.publish("a/b", b"%d" % number)
                await publisher.publish("other", b"no")
            await publisher.publish("a/b", b"unkept", qos=0)
            await publisher.publish("other", b"when this is acknowledged, the one before it is over")
            client = await door.returning("away", version)
            assert client.session_present
            for number in range(50, 60):
                await publisher.publish("a/b", b"%d" % number)
            got = await client.receive_many(Publish, 60)
            assert payloads(got) == [b"%d" % number for number in range(60)]
            assert not any(packet.dup for packet in got)
            await asyncio.sleep(0)
            assert client.got == []

    run(work())


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_window_is_filled_up_from_the_log_as_acknowledgements_come(qos: int) -> None:
    limits = MqttLimits(max_inflight_messages=10, max_stored_inflight_messages=10)

    async def work(kept: bool) -> None:
        async with front_door(limits=limits) as door:
            client = await (door.returning("slow") if kept else door.connect("slow"))
            await client.subscribe("t", qos=qos)
            publisher = await door.connect("p")
            for number in range(100):
                await publisher.publish("t", b"%d" % number, qos=qos)
            seen: list[bytes] = []
            while len(seen) < 100:
                message = await client.receive(Publish)
                assert len(client.got) < 10
                seen.append(message.payload)
                if qos == 1:
                    client.send(PubAck(message.packet_id))
                else:
                    client.send(PubRec(message.packet_id))
                    await client.until(lambda: any(isinstance(packet, PubRel) for packet in client.got))
                    release = next(packet for packet in client.got if isinstance(packet, PubRel))
                    client.got.remove(release)
                    client.send(PubComp(release.packet_id))
            assert seen == [b"%d" % number for number in range(100)]

    run(work(False))
    run(work(True))


def test_unacknowledged_publications_come_again_with_their_identifiers_after_a_kill() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("c")
            await client.subscribe("t", qos=2)
            publisher = await door.connect("p")
            for number in range(4):
                await publisher.publish("t", b"%d" % number, qos=2 if number else 1)
            first = await client.receive_many(Publish, 4)
            assert [packet.qos for packet in first] == [1, 2, 2, 2]
            client.send(PubRec(first[1].packet_id))  # released, not completed
            assert (await client.receive(PubRel)).packet_id == first[1].packet_id
            client.send(PubRec(first[2].packet_id))
            released = await client.receive(PubRel)
            client.send(PubComp(released.packet_id))
            await door.written()
            async with after_a_kill(door) as again:
                client = await again.returning("c")
                assert client.session_present
                await client.until(lambda: len(client.got) == 3)
                resent = [packet for packet in client.got if isinstance(packet, Publish)]
                assert [(packet.packet_id, packet.payload, packet.dup) for packet in resent] == [
                    (first[0].packet_id, b"0", True),
                    (first[3].packet_id, b"3", True),
                ]
                (release,) = (packet for packet in client.got if isinstance(packet, PubRel))
                assert release.packet_id == first[1].packet_id
                client.got.clear()
                publisher = await again.connect("p")
                await publisher.publish("t", b"new", qos=1)
                assert (await client.receive(Publish)).payload == b"new"
                assert client.got == []

    run(work())


def test_a_qos_2_publication_is_not_taken_twice_through_a_kill_before_its_pubrec() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("p")
            client.send(Publish("t", b"once", 2, packet_id=5))
            await client.receive(PubRec)
            async with after_a_kill(door) as again:
                client = await again.returning("p")
                client.send(Publish("t", b"once", 2, dup=True, packet_id=5))
                await client.receive(PubRec)
                client.send(PubRel(5))
                await client.receive(PubComp)
                client.send(Publish("t", b"another", 2, packet_id=5))
                await client.receive(PubRec)
                assert [value for _, value, _ in await records_of(again, "mqtt")] == [b"once", b"another"]

    run(work())


def test_a_qos_2_publication_that_reached_the_log_but_not_the_sessions_is_known_after_a_kill() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("p")
            await client.publish("t", b"before", qos=2)
            # As if the broker had been killed between its two writes: the publication is in the log, its identifier not.
            journal = door.server.hub.journal
            put_inbound, put_seen = journal.put_inbound, journal.put_seen
            journal.put_inbound = lambda session: None  # type: ignore[method-assign]
            journal.put_seen = lambda places: None  # type: ignore[method-assign]
            client.send(Publish("t", b"once", 2, packet_id=9))
            await client.receive(PubRec)
            async with after_a_kill(door) as again:
                client = await again.returning("p")
                client.send(Publish("t", b"once", 2, dup=True, packet_id=9))
                await client.receive(PubRec)
                assert [value for _, value, _ in await records_of(again, "mqtt")] == [b"before", b"once"]
            journal.put_inbound, journal.put_seen = put_inbound, put_seen  # type: ignore[method-assign]

    run(work())


def test_subscriptions_retained_messages_and_wills_survive_a_kill() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("c")
            await client.subscribe("status/#", qos=1)
            client.drop()
            doomed = await door.connect("doomed", will=Will("status/doomed", b"gone", 1, True))
            await doomed.publish("kept", b"value", retain=True)
            await doomed.publish("cleared", b"value", retain=True)
            await doomed.publish("cleared", b"", retain=True)
            async with after_a_kill(door) as again:
                client = await again.returning("c")
                will = await client.receive(Publish)
                assert (will.topic, will.payload) == ("status/doomed", b"gone")
                await client.subscribe("#", qos=0)
                got = await client.receive_many(Publish, 2)
                assert {(packet.topic, packet.payload, packet.retain) for packet in got} == {
                    ("kept", b"value", True),
                    ("status/doomed", b"gone", True),
                }

    run(work())


def test_sessions_that_are_away_do_not_multiply_the_bytes_on_disk() -> None:
    async def size_with(sessions: int) -> int:
        async with front_door() as door:
            for number in range(sessions):
                client = await door.returning(f"c{number}")
                await client.subscribe("a/#", "a/b", "+/b", qos=1)
                client.drop()
            await asyncio.sleep(0)
            before = _bytes_in(door.data)
            publisher = await door.connect("p")
            for number in range(200):
                await publisher.publish("a/b", b"x" * 1000, packet_id=number + 1)
            return _bytes_in(door.data) - before

    one, many = asyncio.run(size_with(1)), asyncio.run(size_with(40))
    assert many < one * 1.1


def _bytes_in(directory: Path) -> int:
    return sum(os.stat(path).st_size for path in directory.rglob("*.log"))


def test_a_record_that_a_kafka_producer_wrote_reaches_subscribers_in_the_order_of_the_log() -> None:
    async def work() -> None:
        async with front_door() as door:
            live, away = await door.connect("live"), await door.returning("away")
            await live.subscribe("#", qos=1)
            await away.subscribe("#", qos=2)
            away.drop()
            publisher = await door.connect("p")
            await publisher.publish("from/mqtt", b"1")
            batch = build_batch(
                [NewRecord(b"from/kafka", b"2", headers=[("trace", b"t1")]), NewRecord(None, b"3")],
                timestamp_ms=door.clock.wall_ms(),
            )
            await door.store.append(TopicPartition("mqtt", 0), batch, Durability.OS)
            await publisher.publish("from/mqtt", b"4")
            away = await door.returning("away")
            for peer in (live, away):
                got = await peer.receive_many(Publish, 4)
                assert [(packet.topic, packet.payload) for packet in got] == [
                    ("from/mqtt", b"1"),
                    ("from/kafka", b"2"),
                    ("mqtt", b"3"),
                    ("from/mqtt", b"4"),
                ]
            assert live.got == away.got == []

    run(work())


def test_a_session_does_not_read_the_log_when_nothing_came_that_it_wants() -> None:
    async def work() -> None:
        async with front_door() as door:
            publisher = await door.connect("p")
            await publisher.publish("first", b"")
            for topic_filter in ("mine/+/#", "mine"):
                client = await door.returning("c")
                await client.subscribe(topic_filter)
                client.drop()
                for number in range(200):
                    await publisher.publish(f"others/{number % 3}", b"x")
                (source,) = door.server.hub.sources.all
                assert source.nothing_since(1, [["mine"], ["mine", "#"], ["+"]])
                assert not source.nothing_since(1, [["others", "#"]])
                assert not source.nothing_since(1, [["mine"], ["others", "1"]])
                reads = door.store.read
                door.store.read = None  # type: ignore[assignment, method-assign]
                client = await door.returning("c")
                async with asyncio.timeout(10):
                    while not door.server.sessions.by_client["c"].live:
                        await asyncio.sleep(0)
                door.store.read = reads  # type: ignore[method-assign]
                client.drop()
            async with after_a_kill(door) as again:
                (source,) = again.server.hub.sources.all
                assert not source.nothing_since(0, [["mine"]])  # it does not know what was written before its start

    run(work())


def test_uncommitted_and_aborted_records_of_a_kafka_producer_are_not_delivered() -> None:
    async def work() -> None:
        async with front_door() as door:
            live = await door.connect("live")
            await live.subscribe("#", qos=1)
            publisher = await door.connect("p")
            await publisher.publish("t", b"first")
            tp = TopicPartition("mqtt", 0)
            for producer_id, value, commit in ((70, b"aborted", False), (71, b"committed", True)):
                batch = build_batch(
                    [NewRecord(b"t", value)],
                    timestamp_ms=door.clock.wall_ms(),
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
                await door.store.append(tp, batch, Durability.OS)
                await asyncio.sleep(0)
                await door.store.append_marker(tp, producer_id, 0, commit=commit)
            await publisher.publish("t", b"last")
            assert payloads(await live.receive_many(Publish, 3)) == [b"first", b"committed", b"last"]

    run(work())


def test_a_partitioned_topic_keeps_the_order_of_each_name() -> None:
    async def work() -> None:
        async with front_door() as door:
            await door.core.create_topic("mqtt", 4)
            client = await door.returning("c")
            await client.subscribe("#", qos=1)
            client.drop()
            publisher = await door.connect("p")
            for number in range(40):
                await publisher.publish(f"t/{number % 5}", b"%d" % number)
            ends = [door.store.bounds(TopicPartition("mqtt", number)).high_watermark for number in range(4)]
            assert sum(ends) == 40
            assert max(ends) < 40
            client = await door.returning("c")
            got = await client.receive_many(Publish, 40)
            for name in {packet.topic for packet in got}:
                numbers = [int(packet.payload) for packet in got if packet.topic == name]
                assert numbers == sorted(numbers)

    run(work())


def test_a_deleted_log_topic_is_made_again_and_nobody_waits_for_what_it_held() -> None:
    async def work() -> None:
        async with front_door() as door:
            client = await door.returning("c")
            await client.subscribe("#", qos=1)
            publisher = await door.connect("p")
            for number in range(3):
                await publisher.publish("t", b"%d" % number)
            for packet in await client.receive_many(Publish, 3):
                client.send(PubAck(packet.packet_id))
            client.drop()
            await publisher.publish("t", b"lost with the topic")
            await door.core.delete_topic("mqtt")
            await asyncio.sleep(0)
            await publisher.publish("t", b"new")
            client = await door.returning("c")
            assert (await client.receive(Publish)).payload == b"new"

    run(work())
