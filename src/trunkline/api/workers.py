"""Functions that were decorated, to be started together: by `t.start()`, or by `trunkline work app:t`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from trunkline.api.callbacks import Callback
from trunkline.api.handle import Handle

Function = TypeVar("Function", bound=Callable[..., Any])
Begin = Callable[[Callback], Awaitable[Handle]]


class Workers:
    def __init__(self) -> None:
        self._registered: list[tuple[str, Begin, Callable[..., object]]] = []

    def __len__(self) -> int:
        return len(self._registered)

    @property
    def names(self) -> list[str]:
        return [f"{getattr(function, '__name__', function)}: {what}" for what, _, function in self._registered]

    def registers(self, what: str, begin: Begin) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            self._registered.append((what, begin, function))
            return function

        return register

    async def start(self, callback: Callable[[Callable[..., object]], Callback]) -> list[Handle]:
        return [await begin(callback(function)) for _, begin, function in self._registered]
