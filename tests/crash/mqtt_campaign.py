"""The campaign of MQTT clients: devices that publish at QoS 1 and 2, and one that receives, all with sessions that are kept.

They cut their own connections at random moments, too. QoS 1 loses nothing and keeps its order, QoS 2 brings everything once;
in the log, where Kafka clients find the same publications, each of QoS 2 stands once as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from tests.crash.clients import client_config
from tests.crash.kills import Campaign, Kills
from tests.crash.mqtt_clients import Device, PublishingDevice, ReceivingDevice
from tests.integration.waiting import wait_until

TOPICS = {1: "crash/1", 2: "crash/2"}
LOG_TOPIC = "mqtt"
CUT_PROBABILITY = 0.002
ENDLESS = 1 << 60
FINISH_SECONDS = 120.0
SHOWN_MAX = 5


class MqttCampaign(Campaign):
    def __init__(self, kills: Kills) -> None:
        super().__init__(kills)
        self._broken: list[str] = []
        self._receiver: ReceivingDevice | None = None
        self._publishers: dict[int, PublishingDevice] = {}

    @property
    def complaints(self) -> list[str]:
        return [*self._broken, *(complaint for device in self._devices() for complaint in device.complaints)]

    def begin(self) -> None:
        port = self.server.port_of("mqtt")
        receiver = self._receiver = ReceivingDevice(
            port, "receiver", list(TOPICS.values()), self.new_seed(), CUT_PROBABILITY
        )
        receiver.start()
        wait_until(lambda: receiver.subscribed, what="the subscriptions")
        for qos, topic in TOPICS.items():
            publisher = PublishingDevice(
                port, f"publisher-{qos}", topic, qos, ENDLESS, self.new_seed(), CUT_PROBABILITY
            )
            self._publishers[qos] = publisher
            publisher.start()

    def stop_sending(self) -> None:
        for publisher in self._publishers.values():
            publisher.finish()

    def finish(self) -> None:
        deadline = time.monotonic() + FINISH_SECONDS
        while not self._complete() and not self.complaints and time.monotonic() < deadline:
            time.sleep(0.05)

    def _complete(self) -> bool:
        return all(
            publisher.done() and len(set(self._received(qos))) == publisher.sent
            for qos, publisher in self._publishers.items()
        )

    def verify(self) -> None:
        for qos, publisher in self._publishers.items():
            if not publisher.done():
                self._broken.append(f"{publisher.name} was never told the end of what it sent")
            self._check("receiver", qos, self._received(qos))
        logged = self._logged()
        for qos, topic in TOPICS.items():
            self._check("log", qos, logged[topic.encode()])

    def _received(self, qos: int) -> list[int]:
        assert self._receiver is not None
        return self._receiver.received[TOPICS[qos]]

    def _check(self, where: str, qos: int, found: list[int]) -> None:
        """Everything is there; with QoS 2 once, and in either case for the first time in the order of its publication."""
        sent = self._publishers[qos].sent
        missing = sorted(set(range(sent)) - set(found))
        if missing:
            self._broken.append(f"{len(missing)} of QoS {qos} never came to the {where}, e.g. {missing[:SHOWN_MAX]}")
        elif list(dict.fromkeys(found)) != list(range(sent)):
            self._broken.append(f"publications of QoS {qos} came to the {where} out of order")
        if qos == 2 and len(set(found)) < len(found):
            again = sorted({number for number in found if found.count(number) > 1}) if len(found) < 100_000 else []
            self._broken.append(f"publications of QoS 2 came to the {where} twice, e.g. {again[:SHOWN_MAX]}")

    def _logged(self) -> dict[bytes, list[int]]:
        """What a Kafka client finds, by MQTT topic."""
        config = client_config(self.server.bootstrap, group_id="mqtt-reader", enable_auto_commit=False)
        consumer = Consumer({**config, "enable.partition.eof": True, "fetch.wait.max.ms": 20})
        consumer.assign([TopicPartition(LOG_TOPIC, 0, 0)])
        found: dict[bytes, list[int]] = {topic.encode(): [] for topic in TOPICS.values()}
        deadline = time.monotonic() + FINISH_SECONDS
        try:
            while time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.05):
                    if message.error() is None:
                        found[message.key()].append(int(message.value()))
                    elif message.error().name() == "_PARTITION_EOF":
                        return found
        finally:
            consumer.close()
        self._broken.append(f"topic {LOG_TOPIC} could not be read to its end")
        return found

    def _devices(self) -> list[Device]:
        return [*([self._receiver] if self._receiver is not None else []), *self._publishers.values()]

    def end(self) -> None:
        for device in self._devices():
            device.stopping.set()

    def checked(self) -> Mapping[str, int]:
        return {f"publications of QoS {qos}": publisher.sent for qos, publisher in self._publishers.items()} | {
            "MQTT connections": sum(device.connections for device in self._devices())
        }
