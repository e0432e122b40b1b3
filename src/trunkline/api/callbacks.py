"""A user's function, called with what it asks for.

What its first parameter is annotated with is what it gets: `Message` (or nothing) the message itself, any other type the body
as that type. A coroutine function runs on the loop; any other in a thread, so that it may block.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trunkline.api.message import Message

_OURS = "trunkline.api."  # whose classes are messages, of either face


class Callback:
    def __init__(
        self,
        function: Callable[..., object],
        *,
        wrap: Callable[[Any], object] | None = None,
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        """`wrap` makes of a message what the function's face calls one."""
        self.function = function
        self.into, self.parameters = _asked_for(function)
        self._wrap = wrap
        self.threads = threads
        self.awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    async def __call__(self, message: Message[Any], *further: object) -> object:
        """Raises what the function raises, and BodyRefused if the body is not what it asks for.

        What is given beside the message the function gets if it has parameters for it.
        """
        given: object = message
        if self.into is not None:
            given = message.value_as(self.into)
        elif self._wrap is not None:
            given = self._wrap(message)
        beside = further[: self.parameters - 1]
        arguments = [given, *(beside if self._wrap is None else map(self._wrap, beside))]
        if self.awaited:
            result = self.function(*arguments)
            assert isinstance(result, Awaitable)
            return await result
        return await asyncio.get_running_loop().run_in_executor(self.threads, self.function, *arguments)


def _asked_for(function: Callable[..., object]) -> tuple[object | None, int]:
    """The type of the body that it wants, None for the message; and how many parameters it has."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except (TypeError, ValueError, NameError):
        return None, 1
    if not parameters:
        raise TypeError(f"{function!r} takes no message")
    wanted: object | None = hints.get(parameters[0].name)
    named = typing.get_origin(wanted) or wanted
    own = getattr(named, "__module__", "").startswith(_OURS)
    return None if own else wanted, len([each for each in parameters if each.default is each.empty])
