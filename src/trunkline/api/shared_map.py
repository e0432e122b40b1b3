"""A map that many processes share: every change is decided by the broker, in one order, and stored when the call returns.

    d = t.shared_map("config")
    await d.put("limit", 10)
    value, version = await d.entry("limit")
    await d.compare_and_set("limit", value + 1, version)     # False if somebody else was quicker
    await d.watch(lambda key, value: ...)

A version grows with every change of the map; 0 is the version of what is not there. `watch` tells every change from now on, or from
a version that one knows on; after a lost connection it goes on where it was. Of a key that changed several times in between
it may tell the last change only.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar, cast

from trunkline.api.asking import Asking, Json, packed, unpacked
from trunkline.api.errors import ConnectionLost, Timeout, TrunklineError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Watcher = Callable[[str, Any], object]

_WATCH_S = 10.0  # one question after changes
_AGAIN_S = 0.2


class Versioned(NamedTuple, Generic[T]):
    value: T | None  # None also if there is nothing: then the version is 0
    version: int


class Watch:
    """A watch that goes on until it is stopped. `version` is the last change that it has told of."""

    def __init__(self, shared_map: SharedMap[Any], function: Watcher, after: int) -> None:
        self.version = after
        self._map = shared_map
        self._function = function
        self._threads = None if inspect.iscoroutinefunction(function) else ThreadPoolExecutor(1, "trunkline-watch")
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                changes, following = await self._map.changes(self.version, _WATCH_S)
            except (ConnectionLost, Timeout):
                await asyncio.sleep(_AGAIN_S)
                continue
            except TrunklineError:
                logger.exception("the map %s cannot be watched any more", self._map.name)
                return
            for key, value, version in changes:
                await self._tell(key, value)
                self.version = version
            self.version = max(self.version, following)

    async def _tell(self, key: str, value: object) -> None:
        try:
            if self._threads is None:
                await cast("Awaitable[object]", self._function(key, value))
            else:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._function, key, value)
        except Exception:
            logger.exception("a watcher failed")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False)


class SharedMap(Generic[T]):
    def __init__(self, asking: Asking, name: str, of: object = object) -> None:
        self.name = name
        self._asking = asking
        self._of = of
        self._watches: list[Watch] = []

    def __repr__(self) -> str:
        return f"SharedMap({self.name!r})"

    async def _ask(self, what: str, more: Json, timeout: float | None, *, wait: float = 0.0) -> Json:
        return await self._asking.ask({"do": f"map.{what}", "name": self.name, **more}, timeout, wait=wait)

    def _read(self, entry: Json) -> Versioned[T]:
        version = cast(int, entry["version"])
        if not version:
            return Versioned(None, 0)
        return Versioned(cast(T, unpacked(entry["value"], entry["type"], self._of)), version)

    async def entry(self, key: str, *, timeout: float | None = None) -> Versioned[T]:
        """The value and its version, as they are after every change that has returned."""
        return self._read(await self._ask("get", {"key": key}, timeout))

    async def get(self, key: str, default: T | None = None, *, timeout: float | None = None) -> T | None:
        entry = await self.entry(key, timeout=timeout)
        return entry.value if entry.version else default

    async def items(self, *, timeout: float | None = None) -> dict[str, T]:
        found = await self._ask("items", {}, timeout)
        return {key: cast(T, self._read(cast(Json, entry)).value) for key, entry in found.items()}

    async def put(self, key: str, value: T, *, timeout: float | None = None) -> int:
        """Stored when it returns; the version that it made."""
        body, kind = packed(value)
        question: Json = {"key": key, "value": body, "type": kind, "change": secrets.token_hex(8)}
        return cast(int, (await self._ask("put", question, timeout))["version"])

    async def compare_and_set(self, key: str, value: T, version: int, *, timeout: float | None = None) -> bool:
        """Set the value if that is its version: 0 if nothing may be there yet."""
        body, kind = packed(value)
        question: Json = {"key": key, "value": body, "type": kind, "change": secrets.token_hex(8), "if": version}
        return (await self._ask("put", question, timeout))["done"] is True

    async def remove(self, key: str, version: int | None = None, *, timeout: float | None = None) -> bool:
        """Remove the key, if that is its version."""
        question: Json = {"key": key, "change": secrets.token_hex(8), "if": version}
        return (await self._ask("remove", question, timeout))["done"] is True

    async def changes(self, after: int, wait: float = 0.0) -> tuple[list[tuple[str, T | None, int]], int]:
        """Changes since a version, as key, value (None: removed) and version; and the version to go on from."""
        question: Json = {"after": after, "wait_ms": round(wait * 1000)}
        found = await self._ask("changes", question, None, wait=wait)
        changes: list[tuple[str, T | None, int]] = []
        for each in cast("list[Json]", found["changes"]):
            value = self._read(each).value if "value" in each else None
            changes.append((str(each["key"]), value, cast(int, each["version"])))
        return changes, cast(int, found["next"])

    async def watch(self, function: Watcher, *, after: int | None = None) -> Watch:
        """Call `function(key, value)` for each change from now on, or since a version; the value is None when a key goes."""
        if after is None:
            after = cast(int, (await self._ask("version", {}, None))["version"])
        watch = Watch(self, function, after)
        self._watches.append(watch)
        return watch

    async def close(self) -> None:
        for watch in self._watches:
            await watch.stop()
