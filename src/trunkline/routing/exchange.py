"""What every exchange is: bindings, and an index of them that each kind has for itself (see `exchanges`).

A binding is its destination, routing key and arguments: binding the same again changes nothing, and two that differ in
arguments alone are two, of which each must be unbound. Destinations are opaque; each comes once in an answer. A binding
that a kind cannot take is refused before anything changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from trunkline.routing.errors import InvalidBinding
from trunkline.routing.fields import NO_FIELDS, Fields
from trunkline.routing.table import freeze

D = TypeVar("D", bound=Hashable)

_NO_ARGUMENTS: Final[Mapping[str, object]] = MappingProxyType({})


class Binding(NamedTuple, Generic[D]):
    destination: D
    routing_key: str
    arguments: Mapping[str, object]


_Identity = tuple[D, str, Hashable]


class Exchange(ABC, Generic[D]):
    kind: ClassVar[str]
    # Whether routing key and bindings alone decide the answer, so that it may be remembered by key.
    by_key_alone: ClassVar[bool] = True

    def __init__(self) -> None:
        self._bindings: dict[_Identity[D], Binding[D]] = {}
        # Further bindings that the index cannot tell from one it holds (they differ in arguments it does not read).
        self._repeats: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def bind(self, destination: D, routing_key: str = "", arguments: Mapping[str, object] | None = None) -> bool:
        """Add a binding; False if it is there already. InvalidBinding or InvalidPattern if the kind refuses it."""
        identity = _identity(destination, routing_key, arguments)
        if identity in self._bindings:
            return False
        # A copy: the caller's table may change, the binding may not.
        binding = Binding(destination, routing_key, dict(arguments) if arguments else _NO_ARGUMENTS)
        if not self._add(binding):
            token = self._token(binding)
            self._repeats[token] = self._repeats.get(token, 0) + 1
        self._bindings[identity] = binding
        return True

    def unbind(self, destination: D, routing_key: str = "", arguments: Mapping[str, object] | None = None) -> bool:
        """Remove a binding; False if there is none like it."""
        binding = self._bindings.pop(_identity(destination, routing_key, arguments), None)
        if binding is None:
            return False
        token = self._token(binding)
        repeats = self._repeats.get(token, 0)
        if repeats > 1:
            self._repeats[token] = repeats - 1
        elif repeats == 1:
            del self._repeats[token]
        else:
            self._remove(binding)
        return True

    def holds(self, destination: D, routing_key: str = "", arguments: Mapping[str, object] | None = None) -> bool:
        return _identity(destination, routing_key, arguments) in self._bindings

    def bindings(self) -> Iterator[Binding[D]]:
        """All bindings, in the order they were made. The exchange must not change meanwhile."""
        return iter(self._bindings.values())

    @abstractmethod
    def route(self, routing_key: str, fields: Fields = NO_FIELDS) -> tuple[D, ...]:
        """The destinations of a publication, each once."""

    @abstractmethod
    def _add(self, binding: Binding[D]) -> bool:
        """Index the binding; False if the index holds one that it cannot tell from this."""

    @abstractmethod
    def _remove(self, binding: Binding[D]) -> None:
        """Drop from the index what `_add` put there."""

    def _token(self, binding: Binding[D]) -> Hashable:
        """What the index tells bindings apart by."""
        return binding.destination, binding.routing_key


def _identity(destination: D, routing_key: str, arguments: Mapping[str, object] | None) -> _Identity[D]:
    try:
        return destination, routing_key, freeze(arguments) if arguments else None
    except (TypeError, ValueError) as error:
        raise InvalidBinding(str(error)) from error


def argument_text(value: object) -> str | None:
    """A string argument; clients send both str and bytes for the same AMQP type."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
