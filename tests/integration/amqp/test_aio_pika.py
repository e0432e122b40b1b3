"""aio-pika: its robust connection, confirms, iteration, RPC pattern and float headers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import aio_pika
import aio_pika.exceptions
import aio_pika.patterns
import pytest

from tests.integration.amqp.brokers import AmqpBroker, RestartableAmqpBroker, url

TEST_SECONDS = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TEST_SECONDS))


def test_publish_confirmed_and_iterate(amqp: AmqpBroker, unique: Callable[[str], str]) -> None:
    async def work() -> None:
        async with await aio_pika.connect_robust(url(amqp)) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange(unique("exchange"), aio_pika.ExchangeType.TOPIC, auto_delete=True)
            queue = await channel.declare_queue(unique("queue"), durable=True)
            await queue.bind(exchange, "order.*")
            headers = {"ratio": 0.5, "n": 1, "deep": {"list": [1, 2.5, "three"]}}
            sends: list[Awaitable[Any]] = [
                exchange.publish(
                    aio_pika.Message(
                        b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, headers=headers, app_id="tests"
                    ),
                    "order.new",
                )
                for number in range(100)
            ]
            await asyncio.gather(*sends)
            bodies: list[bytes] = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        bodies.append(message.body)
                        assert message.headers == headers
                        assert message.app_id == "tests"
                    if len(bodies) == 100:
                        break
            assert bodies == [b"%d" % number for number in range(100)]
            await queue.delete(if_unused=False)

    run(work())


def test_an_exception_while_processing_requeues(amqp: AmqpBroker, unique: Callable[[str], str]) -> None:
    async def work() -> None:
        async with await aio_pika.connect(url(amqp)) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(unique("queue"), exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"x"), queue.name)
            message = await queue.get(timeout=10)
            with pytest.raises(ValueError, match="broken"):
                async with message.process(requeue=True):
                    raise ValueError("broken")
            again = await queue.get(timeout=10)
            assert again.redelivered
            await again.ack()

    run(work())


def test_an_unroutable_message_is_returned(amqp: AmqpBroker, unique: Callable[[str], str]) -> None:
    async def work() -> None:
        async with await aio_pika.connect(url(amqp)) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.PublishError):
                await channel.default_exchange.publish(aio_pika.Message(b"x"), unique("nobody"), mandatory=True)

    run(work())


def test_a_transaction_commits_or_rolls_back(amqp: AmqpBroker, unique: Callable[[str], str]) -> None:
    async def work() -> None:
        async with await aio_pika.connect(url(amqp)) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(unique("queue"), exclusive=True)
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"kept"), queue.name)

            async def give_up() -> None:
                async with channel.transaction():
                    await channel.default_exchange.publish(aio_pika.Message(b"dropped"), queue.name)
                    raise ValueError("no")

            with pytest.raises(ValueError, match="no"):
                await give_up()
            message = await queue.get(timeout=10)
            assert message.body == b"kept"
            await message.ack()
            assert await queue.get(fail=False) is None

    run(work())


def test_the_rpc_pattern(amqp: AmqpBroker, unique: Callable[[str], str]) -> None:
    async def work() -> None:
        async with (
            await aio_pika.connect_robust(url(amqp)) as serving,
            await aio_pika.connect_robust(url(amqp)) as asking,
        ):
            name = unique("multiply")

            async def multiply(*, x: int, y: int) -> int:
                return x * y

            server = await aio_pika.patterns.RPC.create(await serving.channel())
            await server.register(name, multiply, auto_delete=True)
            client = await aio_pika.patterns.RPC.create(await asking.channel())
            results = await asyncio.gather(*(client.call(name, {"x": n, "y": n}) for n in range(30)))
            assert results == [n * n for n in range(30)]
            await client.close()
            await server.close()

    run(work())


def test_a_robust_connection_recovers_when_the_broker_restarts(fresh_amqp: RestartableAmqpBroker) -> None:
    async def work() -> None:
        got: list[bytes] = []
        connection = await aio_pika.connect_robust(url(fresh_amqp), reconnect_interval=0.2)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("robust", durable=True)

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                async with message.process():
                    got.append(message.body)

            await queue.consume(take)
            message = aio_pika.Message(b"before", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, queue.name)
            await _until(lambda: got == [b"before"])
            await connection.channel()  # when it is open, what was sent before, the acknowledgement, has arrived
            await asyncio.to_thread(fresh_amqp.stop)
            await asyncio.to_thread(fresh_amqp.start)
            publisher = await aio_pika.connect(url(fresh_amqp))
            async with publisher:
                other = await publisher.channel()
                await other.default_exchange.publish(aio_pika.Message(b"after"), queue.name)
                await _until(lambda: got[-1:] == [b"after"])
            assert got == [b"before", b"after"]

    run(work())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)
