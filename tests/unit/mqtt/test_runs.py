"""Publications that come in one go are handled as one: nothing of what holds for each of them may get lost by that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from tests.unit.mqtt.front_door import FrontDoor, after_a_kill, front_door, payloads
from trunkline.broker.messaging.mapping import Mapping, MappingRule
from trunkline.log.batch import iter_file
from trunkline.log.store import TopicPartition
from trunkline.protocols.mqtt.codec import encode
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.packets import V5, V311, PubAck, PubComp, Publish, PubRec, PubRel


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def numbered(count: int, qos: int, topic: str = "t", first_id: int = 1, padding: int = 0) -> list[Publish]:
    return [
        Publish(topic, b"%d" % number + bytes(padding), qos, packet_id=first_id + number if qos else 0)
        for number in range(count)
    ]


def test_a_run_is_acknowledged_stored_and_delivered_message_by_message() -> None:
    async def work() -> None:
        async with front_door() as door:
            readers = [await door.connect(f"r{qos}", V311) for qos in range(3)]
            for qos, reader in enumerate(readers):
                await reader.subscribe("t", qos=qos)
            publisher = await door.connect("p")
            publisher.send(*numbered(300, qos=1))
            acks = await publisher.receive_many(PubAck, 300)
            assert [ack.packet_id for ack in acks] == list(range(1, 301))
            for qos, reader in enumerate(readers):
                got = await reader.receive_many(Publish, 300)
                assert payloads(got) == [b"%d" % number for number in range(300)]
                assert {packet.qos for packet in got} == {min(qos, 1)}
                if qos:
                    assert len({packet.packet_id for packet in got}) == 300
            assert door.store.bounds(TopicPartition("mqtt", 0)).high_watermark == 300

    run(work())


def test_a_window_that_takes_part_of_a_run_gets_the_rest_as_it_frees() -> None:
    async def work() -> None:
        async with front_door(limits=MqttLimits(max_inflight_messages=7)) as door:
            reader = await door.connect("r")
            await reader.subscribe("t", qos=1)
            publisher = await door.connect("p")
            publisher.send(*numbered(50, qos=1))
            got: list[bytes] = []
            while len(got) < 50:
                packet = await reader.receive(Publish)
                got += payloads([packet])
                assert len(door.server.sessions.by_client["r"].window) <= 7
                reader.send(PubAck(packet.packet_id))
            assert got == [b"%d" % number for number in range(50)]

    run(work())


def test_of_a_qos_2_run_with_repetitions_each_is_published_once() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader = await door.connect("r")
            await reader.subscribe("t", qos=0)
            publisher = await door.connect("p")
            publisher.send(*numbered(3, qos=2))
            await publisher.receive_many(PubRec, 3)
            publisher.send(*numbered(5, qos=2), *numbered(5, qos=2))
            assert [packet.packet_id for packet in await publisher.receive_many(PubRec, 10)] == [1, 2, 3, 4, 5] * 2
            assert payloads(await reader.receive_many(Publish, 5)) == [b"0", b"1", b"2", b"3", b"4"]
            publisher.send(*[PubRel(number) for number in (1, 2, 3, 3, 9)])
            assert [packet.packet_id for packet in await publisher.receive_many(PubComp, 5)] == [1, 2, 3, 3, 9]
            publisher.send(*numbered(4, qos=2))
            assert [packet.packet_id for packet in await publisher.receive_many(PubRec, 4)] == [1, 2, 3, 4]
            assert payloads(await reader.receive_many(Publish, 3)) == [b"0", b"1", b"2"]
            assert not reader.got

    run(work())


def test_a_release_of_an_unknown_identifier_within_a_run_says_so() -> None:
    async def work() -> None:
        async with front_door() as door:
            publisher = await door.connect("p", V5)
            publisher.send(*numbered(2, qos=2))
            await publisher.receive_many(PubRec, 2)
            publisher.send(PubRel(1), PubRel(7), PubRel(2), PubRel(1))
            answers = await publisher.receive_many(PubComp, 4)
            assert [(each.packet_id, each.reason_code) for each in answers] == [(1, 0), (7, 0x92), (2, 0), (1, 0x92)]

    run(work())


def test_what_is_too_large_for_the_log_takes_nothing_else_with_it() -> None:
    async def work() -> None:
        async with front_door() as door:
            await door.core.create_topic("mqtt", 1)  # with Kafka's limit, not with the one that suits MQTT
            reader = await door.connect("r")
            await reader.subscribe("t", qos=1)
            large, other = await door.connect("large"), await door.connect("other")
            first, last = numbered(2, qos=1)
            large.send(first, Publish("t", bytes(1_200_000), 1, packet_id=9), last)
            other.send(*numbered(3, qos=1))
            assert [packet.packet_id for packet in await other.receive_many(PubAck, 3)] == [1, 2, 3]
            await large.ended()
            got = payloads(await reader.receive_many(Publish, 5))
            assert got == [b"0", b"1", b"0", b"1", b"2"]
            assert door.store.bounds(TopicPartition("mqtt", 0)).high_watermark == 5

    run(work())


def test_a_turn_larger_than_a_batch_is_stored_once_and_in_order() -> None:
    async def work() -> None:
        async with front_door() as door:
            publishers = [await door.connect(f"p{number}") for number in range(5)]
            for publisher in publishers:
                publisher.send(*numbered(25, qos=1, topic=publisher.connection.client_id, padding=10_000))
            for publisher in publishers:
                assert len(await publisher.receive_many(PubAck, 25)) == 25
            assert door.store.bounds(TopicPartition("mqtt", 0)).high_watermark == 125
            async with after_a_kill(door) as again:
                reader = await again.connect("r", clean=False)
                await reader.subscribe("#", qos=1)
                assert again.store.bounds(TopicPartition("mqtt", 0)).high_watermark == 125

    run(work())


def test_a_run_of_no_log_waits_for_the_window_up_to_its_limit() -> None:
    limits = MqttLimits(max_inflight_messages=2, max_queued_messages=3)

    async def work() -> None:
        async with front_door(limits=limits, mapping=Mapping([MappingRule("#", "off")])) as door:
            reader = await door.connect("r")
            await reader.subscribe("t", qos=1)
            publisher = await door.connect("p")
            publisher.send(*numbered(10, qos=1))
            await publisher.receive_many(PubAck, 10)
            got: list[bytes] = []
            while len(got) < 5:
                packet = await reader.receive(Publish)
                got += payloads([packet])
                reader.send(PubAck(packet.packet_id))
            assert got == [b"0", b"1", b"2", b"3", b"4"]
            assert door.server.hub.counters.dropped == 5

    run(work())


def test_a_run_of_ones_own_is_not_sent_to_who_wants_no_local() -> None:
    async def work() -> None:
        async with front_door() as door:
            both = await door.connect("both", V5)
            await both.subscribe("t", qos=1, no_local=True)
            other = await door.connect("other", V5)
            both.send(*numbered(3, qos=1))
            other.send(*numbered(2, qos=1))
            await other.receive_many(PubAck, 2)
            await both.until(lambda: len(both.got) >= 5)
            assert payloads(both.got) == [b"0", b"1"]

    run(work())


def test_a_kept_session_gets_a_run_after_a_kill_under_the_same_identifiers() -> None:
    async def work() -> None:
        async with front_door() as door:
            reader = await door.returning("r")
            await reader.subscribe("t", qos=1)
            publisher = await door.connect("p")
            publisher.send(*numbered(20, qos=1))
            await publisher.receive_many(PubAck, 20)
            before = await reader.receive_many(Publish, 20)
            reader.send(*[PubAck(packet.packet_id) for packet in before[:5]])
            await door.written()
            async with after_a_kill(door) as again:
                back = await again.returning("r")
                after = await back.receive_many(Publish, 15)
                assert [(each.packet_id, each.payload) for each in after] == [
                    (each.packet_id, each.payload) for each in before[5:]
                ]
                assert all(each.dup for each in after)

    run(work())


def test_publishers_of_one_turn_are_delivered_in_order_whoever_wants_to_know_them() -> None:
    async def work() -> None:
        async with front_door() as door:
            plain = await door.connect("plain")
            await plain.subscribe("t", qos=1)
            publishers = [await door.connect(f"p{number}", V5) for number in range(4)]

            def publish_all() -> None:
                for number, publisher in enumerate(publishers):
                    publisher.send(Publish("t", b"%d" % number, min(number, 1), packet_id=number))

            publish_all()
            got = await plain.receive_many(Publish, 4)
            assert [(packet.payload, packet.qos) for packet in got] == [(b"0", 0), (b"1", 1), (b"2", 1), (b"3", 1)]
            assert len({packet.packet_id for packet in got}) == 4
            for publisher in publishers[1:]:
                await publisher.receive(PubAck)
            assert door.store.bounds(TopicPartition("mqtt", 0)).high_watermark == 4

            one = publishers[2]
            await one.subscribe("t", qos=1, no_local=True)
            publish_all()
            assert payloads(await plain.receive_many(Publish, 4)) == [b"0", b"1", b"2", b"3"]
            await one.until(lambda: len(one.got) == 4)
            assert payloads(one.got) == [b"0", b"1", b"3"]

    run(work())


def test_a_burst_that_is_cut_within_a_packet_by_two_reads_is_one_append() -> None:
    async def work() -> None:
        async with front_door() as door:
            publisher = await door.connect("p")
            publisher.send(*numbered(1, qos=1, first_id=9000))  # the log topic is made
            await publisher.receive(PubAck)
            encoded = [encode(packet, V311) for packet in numbered(60, qos=1)]
            whole, data = 25, b"".join(encoded)
            cut = len(b"".join(encoded[:whole])) + 3
            hub, batches = door.server.hub, count_batches(door)

            def read(piece: bytes) -> None:
                hub.turn.hold()
                publisher.connection.receive(piece)
                hub.turn.let_go(unfinished=publisher.connection.in_packet)

            read(data[:cut])
            assert publisher.connection.in_packet
            await asyncio.sleep(0)  # what the loop finds to read in its next pass
            read(data[cut:])
            assert [ack.packet_id for ack in await publisher.receive_many(PubAck, 60)] == list(range(1, 61))
            assert count_batches(door) == batches + 1

            read(data[:cut])  # and nothing follows: what is whole does not wait for what is not
            assert len(await publisher.receive_many(PubAck, whole)) == whole

    run(work())


def count_batches(door: FrontDoor) -> int:
    (log,) = (door.data / "mqtt-0").glob("*.log")
    return sum(1 for _ in iter_file(log))
