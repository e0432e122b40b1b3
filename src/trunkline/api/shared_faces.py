"""Spaces, shared maps and groups for code that is not asynchronous: see `faces`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from trunkline.api import group as core_group
from trunkline.api import shared_map as core_map
from trunkline.api import space as core_space
from trunkline.api.advertisement import Advertisement
from trunkline.api.handle import Handle as CoreHandle
from trunkline.api.portal import Portal
from trunkline.api.shared_map import Versioned
from trunkline.api.team_view import View

T = TypeVar("T")


class Stoppable:
    """Something that goes on until it is stopped, by `stop` or at the end of its block."""

    def __init__(self, portal: Portal, core: CoreHandle | core_map.Watch | Advertisement) -> None:
        self._portal = portal
        self.core = core

    def stop(self) -> None:
        self._portal.call(self.core.stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Space:
    def __init__(self, portal: Portal, core: core_space.Space) -> None:
        self._portal = portal
        self.core = core
        self.name = core.name

    def __repr__(self) -> str:
        return repr(self.core)

    def write(self, entry: object, *, lease: float | None = None, timeout: float | None = None) -> None:
        """Stored when it returns; gone after `lease` seconds, unless it is taken before."""
        self._portal.call(self.core.write(entry, lease=lease, timeout=timeout))

    def take(self, template: Any, timeout: float | None = None) -> Any:
        """The oldest that matches, which is gone then. Timeout if none comes in time; None at once if that is 0."""
        return self._portal.call(self.core.take(template, timeout))

    def read(self, template: Any, timeout: float | None = None) -> Any:
        """The oldest that matches, which stays. Timeout if none comes in time; None at once if that is 0."""
        return self._portal.call(self.core.read(template, timeout))

    def notify(self, template: Any, function: Callable[[Any], object]) -> Stoppable:
        """Call the function with everything that is written from now on and matches, until the handle is stopped."""
        return Stoppable(self._portal, self._portal.call(self.core.notify(template, function)))

    def transaction(self) -> SpaceTransaction:
        """`with s.transaction() as x`: x.write, x.take; an exception rolls back."""
        return SpaceTransaction(self._portal, self.core.transaction())


class SpaceTransaction:
    def __init__(self, portal: Portal, core: core_space.SpaceTransaction) -> None:
        self._portal = portal
        self.core = core

    def write(self, entry: object, *, lease: float | None = None) -> None:
        """There for others once the transaction has committed."""
        self._portal.call(self.core.write(entry, lease=lease))

    def take(self, template: Any, timeout: float | None = None) -> Any:
        """Hidden from others from now on, gone when the transaction commits."""
        return self._portal.call(self.core.take(template, timeout))

    def __enter__(self) -> Self:
        self._portal.call(self.core.begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self.core.commit() if kind is None else self.core.roll_back())


class SharedMap(Generic[T]):
    def __init__(self, portal: Portal, core: core_map.SharedMap[T]) -> None:
        self._portal = portal
        self.core = core
        self.name = core.name

    def __repr__(self) -> str:
        return repr(self.core)

    def __getitem__(self, key: str) -> T:
        entry = self.entry(key)
        if not entry.version:
            raise KeyError(key)
        return entry.value  # type: ignore[return-value]  # there is one: it has a version

    def __setitem__(self, key: str, value: T) -> None:
        self._portal.call(self.core.put(key, value))

    def __delitem__(self, key: str) -> None:
        if not self.entry(key).version:
            raise KeyError(key)
        self._portal.call(self.core.remove(key))

    def __contains__(self, key: str) -> bool:
        return self.entry(key).version > 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.items())

    def __len__(self) -> int:
        return len(self.items())

    def entry(self, key: str, *, timeout: float | None = None) -> Versioned[T]:
        """The value and its version, as they are after every change that has returned."""
        return self._portal.call(self.core.entry(key, timeout=timeout))

    def get(self, key: str, default: T | None = None, *, timeout: float | None = None) -> T | None:
        return self._portal.call(self.core.get(key, default, timeout=timeout))

    def items(self, *, timeout: float | None = None) -> dict[str, T]:
        return self._portal.call(self.core.items(timeout=timeout))

    def put(self, key: str, value: T, *, timeout: float | None = None) -> int:
        """Stored when it returns; the version that it made."""
        return self._portal.call(self.core.put(key, value, timeout=timeout))

    def compare_and_set(self, key: str, value: T, version: int, *, timeout: float | None = None) -> bool:
        """Set the value if that is its version: 0 if nothing may be there yet."""
        return self._portal.call(self.core.compare_and_set(key, value, version, timeout=timeout))

    def remove(self, key: str, version: int | None = None, *, timeout: float | None = None) -> bool:
        """Remove the key, if that is its version."""
        return self._portal.call(self.core.remove(key, version, timeout=timeout))

    def watch(self, function: Callable[[str, Any], object], *, after: int | None = None) -> Stoppable:
        """Call `function(key, value)` for each change from now on, or since a version; the value is None when a key goes."""
        return Stoppable(self._portal, self._portal.call(self.core.watch(function, after=after)))


class Group:
    def __init__(self, portal: Portal, core: core_group.Group) -> None:
        self._portal = portal
        self.core = core
        self.name = core.name

    def __repr__(self) -> str:
        return repr(self.core)

    def on_message(self, function: Callable[[str, Any], object]) -> None:
        """Call `function(sender, value)` for each message."""
        self.core.on_message(function)

    def on_view(self, function: Callable[[View], object]) -> None:
        """Call `function(view)` when somebody has come or gone."""
        self.core.on_view(function)

    def on_evicted(self, function: Callable[[], object]) -> None:
        """Call `function()` when the others went on without this member; it is joining again then."""
        self.core.on_evicted(function)

    def state(self, give: Callable[[], object], take: Callable[[Any], object]) -> None:
        """`give` returns what this member has become by all that it was called for; `take` becomes that."""
        self.core.state(give, take)

    @property
    def me(self) -> str | None:
        return self.core.me

    @property
    def view(self) -> View:
        """The last view that `on_view` was called with."""
        return self.core.view

    @property
    def members(self) -> list[str]:
        """Who is in the group now, as the broker knows it."""
        return self._portal.call(self.core.members())

    def join(self, *, timeout: float | None = None) -> Self:
        """Returns when this member is in the view, and has the state of the others."""
        self._portal.call(self.core.join(timeout=timeout))
        return self

    def send(self, value: object, *, timeout: float | None = None) -> None:
        """To all members; stored when it returns. Who is not a member may send to an open group."""
        self._portal.call(self.core.send(value, timeout=timeout))

    def leave(self) -> None:
        """The others see a view without this member."""
        self._portal.call(self.core.leave())

    def __enter__(self) -> Self:
        return self.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
