"""A full disk: what cannot be stored is not acknowledged, and the connection that sent it ends; before that, publishers wait."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.hostile.test_disk import MEGABYTE, mounted
from tests.integration.mqtt.brokers import Trunkline
from tests.integration.mqtt.wire import Closed, Wire
from tests.integration.waiting import wait_until
from trunkline.protocols.mqtt.packets import V5, V311, Disconnect, PubAck, Publish, PubRec

mqtt311 = pytest.mark.mqtt311
mqtt5 = pytest.mark.mqtt5
pytestmark = [pytest.mark.ours_only("starts brokers of its own"), pytest.mark.xdist_group("hostile disk")]

PAYLOAD_BYTES = 200_000
DISK_BYTES = 64 * MEGABYTE
MIN_FREE_BYTES = 24 * MEGABYTE


def is_stored(port: int, version: int, payload: bytes) -> bool:
    """Whether a publication is acknowledged; if not, the connection must end, in 5.0 with a reason code."""
    with Wire(port, version) as wire:
        wire.connect("publisher")
        wire.send(Publish("disk", payload, 1, False, False, 1))
        try:
            answer = wire.receive_any()
        except Closed:
            return False
        if isinstance(answer, Disconnect):
            assert version == V5
            assert answer.reason_code >= 0x80
            wire.closed()
            return False
        assert isinstance(answer, PubAck)
        return answer.reason_code < 0x80


@mqtt311("MQTT-4.8.0-2")
@mqtt5("MQTT-4.13.2-1", "MQTT-4.3.2-4")
@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
def test_what_cannot_be_stored_is_not_acknowledged(tmp_path: Path, version: int) -> None:
    broker = Trunkline(tmp_path, {"min_free_bytes": "0"})
    with mounted(broker.server.data, "size=24m"):
        filler = broker.server.data / "filler"
        filler.write_bytes(bytes(14 * MEGABYTE))
        broker.start()
        try:
            stored = 0
            while is_stored(broker.port, version, b"%010d" % stored + bytes(PAYLOAD_BYTES)):
                stored += 1
                assert stored < 200, "the disk never filled"
            filler.unlink()
            wait_until(lambda: is_stored(broker.port, version, b"room again"), what="a broker that stores again")
            broker.stop()
        finally:
            broker.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
def test_publishers_wait_until_there_is_room(tmp_path: Path, version: int, qos: int) -> None:
    broker = Trunkline(tmp_path, {"min_free_bytes": str(MIN_FREE_BYTES)})
    with mounted(broker.server.data, f"size={DISK_BYTES}"):
        filler = broker.server.data / "filler"
        broker.start()
        try:
            with Wire(broker.port, version) as reader, Wire(broker.port, version) as publisher:
                reader.connect("reader")
                reader.subscribe("disk", qos=0)
                filler.write_bytes(bytes(DISK_BYTES - MIN_FREE_BYTES))
                wait_until(lambda: "publications wait: low on disk" in broker.log_tail(), what="a broker that blocks")
                publisher.connect("publisher", keep_alive_s=1)
                publisher.send(*(Publish("disk", b"%d" % n, qos, packet_id=n if qos else 0) for n in (1, 2)))
                # Longer than one and a half times its keep-alive; the other connection is served.
                deadline = time.monotonic() + 3.5
                while time.monotonic() < deadline:
                    reader.quiet()
                filler.unlink()
                assert [reader.receive(Publish).payload for _ in range(2)] == [b"1", b"2"]
                if qos:
                    answers = [publisher.receive_any() for _ in range(2)]
                    assert [type(answer) for answer in answers] == [PubAck if qos == 1 else PubRec] * 2
                publisher.quiet()
            broker.stop()
        finally:
            broker.close()
