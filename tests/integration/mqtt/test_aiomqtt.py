"""The aiomqtt client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import aiomqtt
import pytest

from tests.integration.mqtt.brokers import HOST, MqttBroker

TIMEOUT_SECONDS = 20.0


@pytest.fixture(params=[aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5], ids=["3.1.1", "5.0"])
def protocol(request: pytest.FixtureRequest) -> aiomqtt.ProtocolVersion:
    chosen: aiomqtt.ProtocolVersion = request.param
    return chosen


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_async_for_sees_every_message_in_order(
    mqtt: MqttBroker, protocol: aiomqtt.ProtocolVersion, transport: str, topic: str
) -> None:
    async def scenario() -> list[tuple[str, object, int]]:
        port = mqtt.ws_port if transport == "websockets" else mqtt.port
        over: Literal["tcp", "websockets"] = "websockets" if transport == "websockets" else "tcp"
        async with (
            aiomqtt.Client(HOST, port, protocol=protocol, transport=over) as subscriber,
            aiomqtt.Client(HOST, port, protocol=protocol, transport=over) as publisher,
        ):
            await subscriber.subscribe(f"{topic}/#", qos=2)
            for number in range(30):
                await publisher.publish(f"{topic}/{number % 2}", str(number), qos=number % 3)
            got: list[tuple[str, object, int]] = []
            async for message in subscriber.messages:
                got.append((str(message.topic), message.payload, message.qos))
                if len(got) == 30:
                    break
            return got

    got = asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_SECONDS))
    wanted = [(f"{topic}/{number % 2}", str(number).encode(), number % 3) for number in range(30)]
    for qos in range(3):
        assert [item for item in got if item[2] == qos] == [item for item in wanted if item[2] == qos]


def test_will_retained_and_unsubscribe(
    mqtt: MqttBroker, protocol: aiomqtt.ProtocolVersion, topic: str, unique: Callable[[str], str]
) -> None:
    async def scenario() -> list[object]:
        will = aiomqtt.Will(f"{topic}/will", "gone", qos=1, retain=True)
        got: list[object] = []
        async with aiomqtt.Client(HOST, mqtt.port, protocol=protocol) as watcher:
            await watcher.subscribe(f"{topic}/#", qos=1)
            dying = aiomqtt.Client(HOST, mqtt.port, protocol=protocol, identifier=unique("dying"), will=will)
            await dying.__aenter__()
            connection = dying._client.socket()
            assert connection is not None
            connection.shutdown(2)
            got.append((await anext(aiter(watcher.messages))).payload)
            await watcher.unsubscribe(f"{topic}/#")
            await watcher.subscribe(f"{topic}/+", qos=1)
            message = await anext(aiter(watcher.messages))
            got.append((message.payload, message.retain))
            return got

    assert asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_SECONDS)) == [b"gone", (b"gone", True)]
