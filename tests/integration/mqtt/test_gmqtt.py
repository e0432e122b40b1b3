"""The gmqtt client: MQTT 5.0 written from scratch, not on paho."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import gmqtt
import pytest

from tests.integration.mqtt.brokers import HOST, MqttBroker

TIMEOUT_SECONDS = 20.0


class Gmqtt:
    """A connected client; messages and SUBACKs go to queues."""

    def __init__(self, client_id: str, **options: Any) -> None:
        self.client = gmqtt.Client(client_id, **options)
        self.messages: asyncio.Queue[tuple[str, bytes, int, dict[str, Any]]] = asyncio.Queue()
        self.subscribed: asyncio.Queue[int] = asyncio.Queue()
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda _client, mid, _qos, _properties: self.subscribed.put_nowait(mid)

    def _on_message(self, _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
        self.messages.put_nowait((topic, payload, qos, properties))
        return 0

    async def connect(self, port: int, version: int) -> Gmqtt:
        await self.client.connect(HOST, port, version=version)
        return self

    async def subscribe(self, topic_filter: str, qos: int, **options: Any) -> None:
        self.client.subscribe(topic_filter, qos=qos, **options)
        await self.subscribed.get()


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, TIMEOUT_SECONDS))


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
def test_messages_of_every_qos_arrive(mqtt: MqttBroker, topic: str, unique: Callable[[str], str], version: int) -> None:
    async def scenario() -> list[tuple[bytes, int]]:
        subscriber = await Gmqtt(unique("gmqtt")).connect(mqtt.port, version)
        publisher = await Gmqtt(unique("gmqtt")).connect(mqtt.port, version)
        await subscriber.subscribe(f"{topic}/#", 2)
        for number in range(24):
            publisher.client.publish(f"{topic}/{number % 3}", str(number), qos=number % 3)
        got = [await subscriber.messages.get() for _ in range(24)]
        await publisher.client.disconnect()
        await subscriber.client.disconnect()
        return [(payload, qos) for _, payload, qos, _ in got]

    got = run(scenario())
    for qos in range(3):
        assert [payload for payload, level in got if level == qos] == [
            b"%d" % number for number in range(24) if number % 3 == qos
        ]


def test_properties_pass_through(mqtt: MqttBroker, topic: str, unique: Callable[[str], str]) -> None:
    async def scenario() -> dict[str, Any]:
        subscriber = await Gmqtt(unique("gmqtt")).connect(mqtt.port, 5)
        publisher = await Gmqtt(unique("gmqtt")).connect(mqtt.port, 5)
        await subscriber.subscribe(topic, 1, subscription_identifier=7)
        publisher.client.publish(
            topic,
            "text",
            qos=1,
            content_type="a/b",
            user_property=[("k", "v")],
            response_topic="r",
            correlation_data=b"c",
        )
        _, payload, _, properties = await subscriber.messages.get()
        assert payload == b"text"
        await publisher.client.disconnect()
        await subscriber.client.disconnect()
        return properties

    properties = run(scenario())
    assert properties["content_type"] == ["a/b"]
    assert properties["user_property"] == [("k", "v")]
    assert properties["response_topic"] == ["r"]
    assert properties["subscription_identifier"] == [7]


def test_a_kept_session_gets_what_it_missed(mqtt: MqttBroker, topic: str, unique: Callable[[str], str]) -> None:
    name = unique("gmqtt-away")

    async def scenario() -> list[bytes]:
        away = await Gmqtt(name, clean_session=False, session_expiry_interval=600).connect(mqtt.port, 5)
        await away.subscribe(topic, 1)
        await away.client.disconnect()
        publisher = await Gmqtt(unique("gmqtt")).connect(mqtt.port, 5)
        watcher = await Gmqtt(unique("gmqtt")).connect(mqtt.port, 5)
        await watcher.subscribe(topic, 1)
        for number in range(10):
            publisher.client.publish(topic, str(number), qos=1)
        for _ in range(10):
            await watcher.messages.get()
        back = await Gmqtt(name, clean_session=False, session_expiry_interval=600).connect(mqtt.port, 5)
        got = [(await back.messages.get())[1] for _ in range(10)]
        for one in (back, publisher, watcher):
            await one.client.disconnect()
        return got

    assert run(scenario()) == [b"%d" % number for number in range(10)]
