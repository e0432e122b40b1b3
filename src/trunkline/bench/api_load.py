"""One measurement of the Python API, or of a library on RabbitMQ, in a process of its own.

    python -m trunkline.bench.api_load KIND LIBRARY HOST:PORT COUNT     prints messages per second

LIBRARY is trunkline, aio-pika or faststream.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any
from uuid import uuid4

from trunkline.bench.api_cases import (
    AIO_PIKA,
    FASTSTREAM,
    GET,
    PUBLISH_SUBSCRIBE,
    PUT_EACH,
    PUT_MANY,
    REQUEST_MANY,
    REQUEST_REPLY,
    WORKER,
)
from trunkline.bench.librdkafka import LoadError

OURS = "trunkline"
AT_A_TIME = 50
PREFETCH = 256
CONCURRENCY = 50
_TIMEOUT_S = 120.0


def measure(kind: str, library: str, address: str, count: int) -> float:
    """In a process of its own, so that no measurement pays for another's garbage."""
    command = [sys.executable, "-m", "trunkline.bench.api_load", kind, library, address, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise LoadError(f"{kind} with {library}: {done.stderr.strip().splitlines()[-1:] or 'it failed'}")
    return float(done.stdout)


def body(number: int) -> dict[str, object]:
    return {"number": number, "customer": "c-1234", "items": ["a", "b", "c"], "price": 99.5}


class Stopwatch:
    """Counts what arrives; `done` is set by the last."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = asyncio.Event()
        self.started = 0.0
        self.ended = 0.0

    def start(self) -> None:
        self.started = time.perf_counter()

    def arrived(self) -> None:
        self._left -= 1
        if not self._left:
            self.ended = time.perf_counter()
            self.done.set()

    @property
    def seconds(self) -> float:
        return self.ended - self.started


async def in_portions(count: int, ask: Any) -> None:
    """`count` calls, so many at a time."""
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for number in numbers:
            await ask(number)

    await asyncio.gather(*[one_after_the_other() for _ in range(AT_A_TIME)])


# -- ours ----------------------------------------------------------------------------------------------------------------


async def run_ours(kind: str, address: str, count: int) -> float:
    from trunkline import Topic, aio

    async with aio.connect(f"trunkline://{address}", timeout=60) as t:
        queue = t.queue(f"bench-{uuid4().hex}")
        watch = Stopwatch(count)
        if kind in (GET, WORKER):
            await queue.put_all(map(body, range(count)))
        else:
            await queue.put(body(0))  # declares it
        if kind == PUT_EACH:
            watch.start()
            for number in range(count):
                await queue.put(body(number))
                watch.arrived()
        elif kind == PUT_MANY:
            watch.start()
            await queue.put_all(map(body, range(count)))
            watch.ended = time.perf_counter()
        elif kind == GET:
            watch.start()
            for _ in range(count):
                message = await queue.get()
                assert message.value["price"] == 99.5
                await message.ack()
                watch.arrived()
        elif kind == WORKER:

            async def work(job: dict[str, object]) -> None:
                watch.arrived()

            watch.start()
            await queue.notify(work, concurrency=CONCURRENCY)
        elif kind == PUBLISH_SUBSCRIBE:

            async def heard(event: dict[str, object]) -> None:
                watch.arrived()

            topic = f"bench/{uuid4().hex}"
            await t.subscribe(Topic(topic), heard)
            watch.start()
            await asyncio.gather(*[t.publish(body(number), topic) for number in range(count)])
        else:
            service = f"bench-{uuid4().hex}"

            async def serve(job: dict[str, object]) -> dict[str, object]:
                return job

            await t.serve(service, serve, concurrency=CONCURRENCY)

            async def ask(number: int) -> None:
                assert (await t.request(service, body(number))).value["number"] == number
                watch.arrived()

            watch.start()
            if kind == REQUEST_REPLY:
                for number in range(count):
                    await ask(number)
            else:
                await in_portions(count, ask)
        if not watch.ended:
            await watch.done.wait()
        return count / watch.seconds


# -- aio-pika on RabbitMQ --------------------------------------------------------------------------------------------------


async def run_aio_pika(kind: str, address: str, count: int) -> float:
    import json

    import aio_pika
    from aio_pika.patterns import RPC

    connection = await aio_pika.connect_robust(f"amqp://guest:guest@{address}/")
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(f"bench-{uuid4().hex}", durable=True)
        watch = Stopwatch(count)

        async def put(number: int, exchange: Any = None, key: str = "") -> None:
            message = aio_pika.Message(
                json.dumps(body(number)).encode(),
                content_type="application/json",
                message_id=uuid4().hex,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await (exchange or channel.default_exchange).publish(message, key or queue.name)

        if kind in (GET, WORKER):
            await in_portions(count, put)
        if kind == PUT_EACH:
            watch.start()
            for number in range(count):
                await put(number)
                watch.arrived()
        elif kind == PUT_MANY:
            watch.start()
            await asyncio.gather(*[put(number) for number in range(count)])
            watch.ended = time.perf_counter()
        elif kind == GET:
            watch.start()
            async with queue.iterator() as messages:
                async for message in messages:
                    assert json.loads(message.body)["price"] == 99.5
                    await message.ack()
                    watch.arrived()
                    if watch.done.is_set():
                        break
        elif kind == WORKER:

            async def work(message: Any) -> None:
                async with message.process():
                    json.loads(message.body)
                    watch.arrived()

            watch.start()
            await queue.consume(work)
        elif kind == PUBLISH_SUBSCRIBE:
            exchange = await channel.declare_exchange(f"bench-{uuid4().hex}", "topic")
            mine = await channel.declare_queue("", exclusive=True)
            await mine.bind(exchange, "bench.#")

            async def heard(message: Any) -> None:
                json.loads(message.body)
                await message.ack()
                watch.arrived()

            await mine.consume(heard)
            watch.start()
            await asyncio.gather(*[put(number, exchange, "bench.event") for number in range(count)])
        else:
            rpc = await RPC.create(channel)

            async def serve(*, job: dict[str, object]) -> dict[str, object]:
                return job

            service = f"bench-{uuid4().hex}"
            await rpc.register(service, serve, auto_delete=True)

            async def ask(number: int) -> None:
                assert (await rpc.call(service, kwargs={"job": body(number)}))["number"] == number
                watch.arrived()

            watch.start()
            if kind == REQUEST_REPLY:
                for number in range(count):
                    await ask(number)
            else:
                await in_portions(count, ask)
        if not watch.ended:
            await watch.done.wait()
        return count / watch.seconds


# -- FastStream on RabbitMQ ------------------------------------------------------------------------------------------------


async def run_faststream(kind: str, address: str, count: int) -> float:
    import logging

    from faststream.rabbit import Channel, ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue

    broker = RabbitBroker(
        f"amqp://guest:guest@{address}/",
        logger=logging.getLogger("quiet"),
        default_channel=Channel(prefetch_count=PREFETCH),
    )
    logging.getLogger("quiet").setLevel(logging.CRITICAL)
    name = f"bench-{uuid4().hex}"
    watch = Stopwatch(count)
    queue = RabbitQueue(name, durable=True)
    exchange = RabbitExchange(f"{name}-x", type=ExchangeType.TOPIC)

    async def put(number: int) -> None:
        await broker.publish(body(number), queue=name, persist=True)

    if kind == WORKER:

        @broker.subscriber(queue)  # type: ignore[untyped-decorator]
        async def work(job: dict[str, object]) -> None:
            watch.arrived()

        filling = RabbitBroker(f"amqp://guest:guest@{address}/", logger=logging.getLogger("quiet"))
        async with filling:
            await filling.declare_queue(queue)
            await in_portions(count, lambda number: filling.publish(body(number), queue=name, persist=True))
    elif kind == PUBLISH_SUBSCRIBE:

        @broker.subscriber(RabbitQueue("", exclusive=True, routing_key="bench.#"), exchange)  # type: ignore[untyped-decorator]
        async def heard(event: dict[str, object]) -> None:
            watch.arrived()

    elif kind in (REQUEST_REPLY, REQUEST_MANY):

        @broker.subscriber(queue)  # type: ignore[untyped-decorator]
        async def serve(job: dict[str, object]) -> dict[str, object]:
            return job

    async with broker:
        if kind in (PUT_EACH, PUT_MANY):
            await broker.declare_queue(queue)
        watch.start()
        await broker.start()
        if kind == PUT_EACH:
            for number in range(count):
                await put(number)
                watch.arrived()
        elif kind == PUT_MANY:
            await asyncio.gather(*[put(number) for number in range(count)])
            watch.ended = time.perf_counter()
        elif kind == PUBLISH_SUBSCRIBE:
            watch.start()
            await asyncio.gather(
                *[broker.publish(body(number), exchange=exchange, routing_key="bench.event") for number in range(count)]
            )
        elif kind in (REQUEST_REPLY, REQUEST_MANY):
            import json

            async def ask(number: int) -> None:
                reply = await broker.request(body(number), queue=name, timeout=60)
                assert json.loads(reply.body)["number"] == number
                watch.arrived()

            watch.start()
            if kind == REQUEST_REPLY:
                for number in range(count):
                    await ask(number)
            else:
                await in_portions(count, ask)
        if not watch.ended:
            await watch.done.wait()
        return count / watch.seconds


RUN = {OURS: run_ours, AIO_PIKA: run_aio_pika, FASTSTREAM: run_faststream}


def main() -> None:
    kind, library, address, count = sys.argv[1:]
    print(asyncio.run(RUN[library](kind, address, int(count))))


if __name__ == "__main__":
    main()
