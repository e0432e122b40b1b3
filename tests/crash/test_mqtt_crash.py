"""QoS 1 never loses and QoS 2 never loses nor doubles, while the broker is killed and clients cut at random moments."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.crash.mqtt_clients import Device, PublishingDevice, ReceivingDevice
from tests.integration.mqtt.brokers import Trunkline
from tests.integration.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

KILLS = 8
MESSAGES = 1_500
CUT_PROBABILITY = 0.004
FINISH_SECONDS = 120.0


def test_mqtt_promises_survive_kill_9_of_broker_and_clients(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
    chance = random.Random(seed)
    broker = Trunkline(tmp_path)
    broker.start()
    receiver = ReceivingDevice(broker.port, "receiver", ["crash/1", "crash/2"], seed, CUT_PROBABILITY)
    publishers = [
        PublishingDevice(broker.port, f"publisher-{qos}", f"crash/{qos}", qos, MESSAGES, seed + qos, CUT_PROBABILITY)
        for qos in (1, 2)
    ]
    devices: list[Device] = [receiver, *publishers]
    try:
        receiver.start()
        wait_until(lambda: receiver.subscribed, what="the subscriptions")
        for publisher in publishers:
            publisher.start()
        kills = 0
        while kills < KILLS and not all(publisher.done() for publisher in publishers):
            time.sleep(chance.uniform(0.05, 0.7))  # the moment of the kill is what varies
            broker.kill()
            broker.start()
            kills += 1
        wait_until(
            lambda: all(publisher.done() for publisher in publishers) or any(device.complaints for device in devices),
            FINISH_SECONDS,
            "the publishers to finish",
        )
        wait_until(
            lambda: all(len(set(got)) == MESSAGES for got in receiver.received.values()) or bool(receiver.complaints),
            FINISH_SECONDS,
            f"everything to arrive (seed {seed}): { {topic: len(set(got)) for topic, got in receiver.received.items()} }",
        )
    finally:
        for device in devices:
            device.stopping.set()
        for device in devices:
            if device.is_alive():
                device.join(30)
        broker.close()
    assert not [complaint for device in devices for complaint in device.complaints], f"seed {seed}\n{broker.log_tail()}"
    assert kills > 0
    assert receiver.received["crash/2"] == list(range(MESSAGES)), f"seed {seed}"
    first_seen = list(dict.fromkeys(receiver.received["crash/1"]))
    assert first_seen == list(range(MESSAGES)), f"seed {seed}"
    assert "Traceback" not in broker.server.log.read_text(errors="replace"), broker.log_tail()
