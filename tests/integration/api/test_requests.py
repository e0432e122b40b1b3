"""request and serve."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.api.scenario import FACES, now, play
from trunkline import NoRoute, RequestFailed, Timeout

Unique = Callable[[str], str]
pytestmark = pytest.mark.parametrize("face", FACES)


def test_a_request_gets_the_services_reply(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        service = unique("double")

        def double(number: int) -> int:
            if number < 0:
                raise ValueError("negative")
            return 2 * number

        handle = await now(t.serve(service, double))
        for number in range(20):
            assert (await now(t.request(service, number))).value == 2 * number
        with pytest.raises(RequestFailed, match="ValueError: negative"):
            await now(t.request(service, -1))
        assert (await now(t.request(service, 4))).value == 8
        await now(handle.stop())
        with pytest.raises(Timeout):
            await now(t.request(service, 5, timeout=0.2))

    play(face, url, scenario)


def test_a_request_that_nobody_ever_served_says_so_at_once(face: str, url: str, unique: Unique) -> None:
    async def scenario(t: Any) -> None:
        started = time.monotonic()
        with pytest.raises(NoRoute):
            await now(t.request(unique("nobody"), 1, timeout=15))
        assert time.monotonic() - started < 10

    play(face, url, scenario)
