"""The MQTT load generator: it must notice everything that a broker can do wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from trunkline.bench.mqtt_cases import all_mqtt_cases
from trunkline.bench.mqtt_contest import FULL, QUICK, cases_for
from trunkline.bench.mqtt_stream import LEAD, WINDOW, Layout, Publisher, StreamError, Subscriber, publish_all
from trunkline.protocols.mqtt.codec import Parser
from trunkline.protocols.mqtt.packets import V311, PubComp, Publish, PubRec, PubRel

COUNT = 50


@pytest.fixture
def wires() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, broker = socket.socketpair()
    with client, broker:
        yield client, broker


def parsed(data: bytes) -> list[object]:
    parser = Parser(server_side=False, version=V311)
    return list(parser.feed(data))


def receive_all_of(subscriber: Subscriber, broker: socket.socket, data: bytes) -> bytes:
    """Feed it in odd pieces and return what it answered."""
    answered = b""
    for start in range(0, len(data), 777):
        broker.sendall(data[start : start + 777])
        subscriber.read()
        broker.setblocking(False)
        try:
            answered += broker.recv(1 << 16)
        except BlockingIOError:
            pass
        broker.setblocking(True)
    return answered


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_are_well_formed_and_numbered(qos: int) -> None:
    events = parsed(Layout(qos, 100).encode(3, COUNT))
    assert len(events) == COUNT
    for number, event in enumerate(events):
        assert isinstance(event, Publish)
        assert (event.qos, len(event.payload), event.packet_id) == (qos, 100, number + 1 if qos else 0)
        assert event.payload[:8] == event.payload[-8:] == (3 << 32 | number).to_bytes(8, "big")


@pytest.mark.parametrize("qos", [0, 1])
def test_a_complete_stream_passes_and_is_acknowledged(wires: tuple[socket.socket, socket.socket], qos: int) -> None:
    layout = Layout(qos, 100)
    subscriber = Subscriber(wires[0], layout, 2 * COUNT)
    answered = receive_all_of(subscriber, wires[1], layout.encode(0, COUNT) + layout.encode(1, COUNT))
    subscriber.verify(2)
    wanted = b"".join(b"\x40\x02" + (number % COUNT + 1).to_bytes(2, "big") for number in range(2 * COUNT))
    assert answered == (wanted if qos else b"")


def test_qos_2_is_released_and_completed(wires: tuple[socket.socket, socket.socket]) -> None:
    layout = Layout(2, 100)
    subscriber = Subscriber(wires[0], layout, COUNT)
    releases = b"".join(b"\x62\x02" + (number + 1).to_bytes(2, "big") for number in range(COUNT))
    answered = receive_all_of(subscriber, wires[1], layout.encode(0, COUNT) + releases)
    subscriber.verify(1)
    packets = parsed(answered)
    assert [packet.packet_id for packet in packets if isinstance(packet, PubRec)] == list(range(1, COUNT + 1))
    assert [packet.packet_id for packet in packets if isinstance(packet, PubComp)] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("fault", ["lost", "doubled", "swapped", "torn"])
def test_a_stream_with_a_fault_fails(wires: tuple[socket.socket, socket.socket], fault: str) -> None:
    layout = Layout(0, 100)
    step = layout.packet_bytes
    data = bytearray(layout.encode(0, COUNT + 1))
    if fault == "lost":
        del data[5 * step : 6 * step]
    elif fault == "doubled":
        data[6 * step : 7 * step] = data[5 * step : 6 * step]
    elif fault == "swapped":
        data[5 * step : 7 * step] = data[6 * step : 7 * step] + data[5 * step : 6 * step]
    else:
        data[6 * step - 1] ^= 1
    subscriber = Subscriber(wires[0], layout, COUNT)
    receive_all_of(subscriber, wires[1], bytes(data[: COUNT * step]))
    with pytest.raises(StreamError):
        subscriber.verify(1)


def test_a_publisher_keeps_to_its_window_and_releases_what_was_received(
    wires: tuple[socket.socket, socket.socket],
) -> None:
    count = 3 * WINDOW
    publisher = Publisher(wires[0], Layout(2, 100), 0, count)
    most = [0]

    def broker() -> None:
        parser = Parser(version=V311)
        unfinished = 0
        while unfinished or not most[0] or publisher.done < count:
            data = wires[1].recv(1 << 16)
            if not data:
                return
            for event in parser.feed(data):
                if isinstance(event, Publish):
                    unfinished += 1
                    most[0] = max(most[0], unfinished)
                    wires[1].sendall(b"\x50\x02" + event.packet_id.to_bytes(2, "big"))
                elif isinstance(event, PubRel):
                    unfinished -= 1
                    wires[1].sendall(b"\x70\x02" + event.packet_id.to_bytes(2, "big"))

    thread = threading.Thread(target=broker)
    thread.start()
    publish_all([publisher], 2, [0])
    wires[0].shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert publisher.done == count
    assert 0 < most[0] <= WINDOW


def test_every_case_has_a_name_of_its_own_and_enough_messages() -> None:
    cases = all_mqtt_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert "100to1/qos1/1KB" in {case.name for case in cases}
    for scale in (FULL, QUICK):
        assert all(scale.messages(case) > LEAD for case in cases if case.kind == "stream")
    assert {case.kind for case in cases_for(is_ours=False)} == {"stream"}
