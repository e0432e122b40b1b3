"""The eager selector sees what any selector sees."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import time

import pytest

from trunkline import selector as module
from trunkline.selector import EagerSelector, new_event_loop


@pytest.mark.parametrize("eager", [False, True])
def test_it_sees_what_is_there_and_what_comes_while_it_sleeps(eager: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, EagerSelector() as selector:
        selector.register(ours, selectors.EVENT_READ, "ours")
        selector._eager = eager
        theirs.send(b"x")
        assert [key.data for key, _ in selector.select()] == ["ours"]
        assert ours.recv(1) == b"x"
        selector._eager = eager
        timer = threading.Timer(0.05, theirs.send, [b"y"])
        timer.start()
        assert [key.data for key, _ in selector.select(30)] == ["ours"]
        timer.join()


def test_it_looks_again_only_after_it_was_woken_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float | None] = []

    base = selectors.DefaultSelector.select

    def counted(
        self: selectors.DefaultSelector, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        looks.append(timeout)
        return base(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)
    ours, theirs = socket.socketpair()
    with ours, theirs, EagerSelector() as selector:
        selector.register(ours, selectors.EVENT_READ)
        monkeypatch.setattr(module, "_WORTH_NS", 60_000_000_000)
        theirs.send(b"x")
        selector.select(30)  # was woken at once
        assert looks == [30]
        ours.recv(1)
        monkeypatch.setattr(module, "_WORTH_NS", 0)
        selector.select(0.001)
        assert looks[1:-1]
        assert set(looks[1:-1]) == {0}
        assert looks[-1] == 0.001
        looks.clear()
        selector.select(0.001)  # was in vain: sleeps at once
        assert looks == [0.001]


def test_a_loop_with_it_keeps_time() -> None:
    async def test() -> None:
        for _ in range(20):
            begun = time.monotonic()
            await asyncio.sleep(0.002)
            assert time.monotonic() - begun >= 0.0019

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(test())
