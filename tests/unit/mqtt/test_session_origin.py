"""Who wrote a record: headers that anyone can write make nobody believe that a publication is stored already."""

from __future__ import annotations

from tests.unit.log.stores import records_of, run
from tests.unit.mqtt.front_door import FrontDoor, Peer, after_a_kill, front_door
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.records import encode_headers, encode_records
from trunkline.log.store import Durability, TopicPartition
from trunkline.protocols.mqtt.message import header_section
from trunkline.protocols.mqtt.packets import V311, Connect, PubComp, Publish, PubRec, PubRel
from trunkline.protocols.mqtt.sessions.journal import encode_flow

TP = TopicPartition("mqtt", 0)


def copied(client: str, packet_id: int) -> bytes:
    """A record as it is in a topic of MQTT publications, in a Kafka producer's batch."""
    headers = [("mqtt.qos", b"2"), ("mqtt.client", client.encode()), ("mqtt.packet-id", b"%d" % packet_id)]
    return build_batch([NewRecord(b"t", b"copied", headers)], timestamp_ms=0)


async def publish_again(door: FrontDoor, client: str, packet_id: int, payload: bytes) -> None:
    peer = await door.returning(client)
    await peer.publish("t", payload, qos=2, packet_id=packet_id)
    peer.drop()


async def stored(door: FrontDoor) -> list[bytes | None]:
    """The payloads in the log."""
    return [record.value for record in await records_of(door.store, TP)]


def test_a_copied_record_does_not_keep_a_publication_from_being_stored() -> None:
    async def main() -> None:
        async with front_door() as door:
            await publish_again(door, "client", 9, b"first")
            for packet_id in range(1, 6):
                await door.store.append(TP, copied("client", packet_id), Durability.DISK, foreign=True)
            async with after_a_kill(door) as again:
                for packet_id in range(1, 6):
                    await publish_again(again, "client", packet_id, b"new %d" % packet_id)
                assert [value for value in await stored(again) if value and value.startswith(b"new")] == [
                    b"new %d" % packet_id for packet_id in range(1, 6)
                ]

    run(main())


def test_nor_does_one_that_was_there_before_the_first_publication() -> None:
    async def main() -> None:
        async with front_door() as door:
            (await door.returning("client")).drop()
            await door.store.create_topic("mqtt", 1)
            await door.store.append(TP, copied("client", 1), Durability.DISK, foreign=True)
            async with after_a_kill(door) as again:
                await publish_again(again, "client", 1, b"new")
                assert await stored(again) == [b"copied", b"new"]

    run(main())


def test_a_record_that_amqp_wrote_to_the_topic_is_not_taken_for_a_publication() -> None:
    async def main() -> None:
        async with front_door() as door:
            await publish_again(door, "client", 9, b"first")
            section = [("mqtt.client", b"client"), ("mqtt.packet-id", b"1")]
            batch = encode_records([(b"t", b"letter", encode_headers(section), -1)], timestamp_ms=0)
            await door.store.append(TP, batch, Durability.DISK)
            async with after_a_kill(door) as again:
                await publish_again(again, "client", 1, b"new")
                assert (await stored(again))[-1] == b"new"

    run(main())


def test_a_publication_of_the_broker_whose_identifier_was_not_written_is_known() -> None:
    async def main() -> None:
        async with front_door() as door:
            peer = await door.returning("client")
            await peer.publish("t", b"first", qos=2, packet_id=9)
            source = door.server.hub.sources.all[0]
            section = _section("client", 4)
            await source.append([(b"t", b"unrecorded", section, -1)], Durability.DISK)
            peer.drop()
            async with after_a_kill(door) as again:
                back = Peer(again.server, V311)
                back.send(Connect(V311, "client", False))
                back.send(Publish("t", b"unrecorded", 2, dup=True, packet_id=4))
                await back.until(lambda: any(isinstance(packet, PubRec) for packet in back.got))
                back.send(PubRel(4))
                await back.until(lambda: any(isinstance(packet, PubComp) for packet in back.got))
                assert (await stored(again)).count(b"unrecorded") == 1

    run(main())


def test_what_a_version_left_that_did_not_mark_its_batches_is_believed_once() -> None:
    async def main() -> None:
        async with front_door() as door:
            peer = await door.returning("client")
            await peer.publish("t", b"first", qos=2, packet_id=9)
            peer.drop()
            end = door.store.bounds(TP).high_watermark
            # As that version wrote them: no mark on the batch, none in `seen:`.
            seen = encode_records([(b"seen:", encode_flow({TP: end}, {}), b"\x00", -1)], timestamp_ms=0)
            batch = encode_records([(b"t", b"unrecorded", _section("client", 4), -1)], timestamp_ms=0)
            await door.store.append(TP, batch, Durability.DISK)
            await door.store.append(TopicPartition("__sessions", 0), seen, Durability.DISK)
            async with after_a_kill(door) as again:
                await publish_again(again, "client", 4, b"unrecorded")
                assert (await stored(again)).count(b"unrecorded") == 1
                await again.store.append(TP, copied("client", 5), Durability.DISK, foreign=True)
                async with after_a_kill(again) as third:
                    await publish_again(third, "client", 5, b"new")
                    assert (await stored(third))[-1] == b"new"

    run(main())


def _section(client: str, packet_id: int) -> bytes:
    return header_section(qos=2, retain=False, publisher=client, packet_id=packet_id)
