"""Advertisements: kept while the publisher is connected, and asked for by subscribers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.integration.api.conftest import url_of
from tests.integration.server import ServerProcess
from trunkline import Channel, Content, Refused, Topic, Type, aio


@dataclass
class Event:
    n: int


@dataclass
class Quote(Event):
    price: float = 0.0


@dataclass
class Order(Event):
    pass


def test_advertisements_stand_while_their_publisher_is_connected(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with aio.connect(url_of(server), timeout=30) as asking:
            assert await asking.advertised(Topic("#")) == 0
            async with aio.connect(url_of(server), timeout=30) as publisher:
                stocks = await publisher.advertise(Topic("stocks/+"))
                await publisher.advertise(Channel("news"))
                assert await asking.advertised(Topic("stocks/telco")) == 1
                assert await asking.advertised(Topic("#")) == 2
                assert await asking.advertised(Channel("weather")) == 0
                server.kill()
                server.start()
                assert await publisher.advertised(Topic("stocks/telco")) == 1, "made anew on the next connection"
                await stocks.stop()
                assert await asking.advertised(Topic("stocks/telco")) == 0
                await publisher.advertise(Type(Quote))
                await publisher.advertise(Content("price > 100"))
                assert await asking.advertised(Type(Event)) == 3, "of other kinds nothing is known"
                assert await asking.advertised(Type(Order)) == 2
                assert await asking.advertised(Content("price < 50")) == 2
            with pytest.raises(Refused):
                await asking.advertised(Content("price <"))
            async with asyncio.timeout(30):  # the broker ends what was the connection's in its own time
                while await asking.advertised(Topic("#")):
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
