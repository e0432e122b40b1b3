"""The fields of a publication, as filters see them: its headers, and the members of a JSON body.

A field is named by a path, `order.items[0].price`. A header whose whole name is the path's text comes first; otherwise
the path is followed into the body. A field that is nowhere, or is JSON's null, is null. Objects, arrays and header types
that the filter language does not have are present but equal to nothing and in no order (`OPAQUE`).

The body is parsed at the first question about it, once for all filters of a publication. A body that is not JSON in
UTF-8, is larger than MAX_PARSED_BODY_BYTES, or nests deeper than the parser goes, has no fields: a publisher cannot make
routing fail by what it sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Final, Literal, NamedTuple

from trunkline.routing.limits import MAX_PARSED_BODY_BYTES


class _Opaque(Enum):
    OPAQUE = "opaque"


OPAQUE: Final = _Opaque.OPAQUE
Scalar = bool | int | float | str
FieldValue = Scalar | Literal[_Opaque.OPAQUE] | None


class FieldPath(NamedTuple):
    text: str
    # Member names and array indexes from the top of the body.
    steps: tuple[str | int, ...]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_MISSING: Final = object()
_EXACT: Final = frozenset({bool, int, float, str})


class Fields:
    """What one publication offers to headers and content exchanges."""

    __slots__ = ("_body", "_document", "headers")

    def __init__(self, headers: Mapping[str, object] | None = None, body: bytes | Mapping[str, object] = b"") -> None:
        self.headers: Mapping[str, object] = {} if headers is None else headers
        self._body = body
        self._document: object = _MISSING

    def value(self, path: FieldPath) -> FieldValue:
        found = self.headers.get(path.text, _MISSING)
        if found is _MISSING:
            found = self._in_body(path.steps)
        if found is None or found.__class__ in _EXACT:
            return found  # type: ignore[return-value]  # the class was looked up in _EXACT
        return _scalar(found)

    def shared_names(self, names: Mapping[str, object]) -> set[str]:
        """Those of the names that a header or a member of the body's top has."""
        found = set(names.keys() & self.headers.keys())
        document = self._in_body(())
        if isinstance(document, Mapping):
            found |= names.keys() & document.keys()
        return found

    def _in_body(self, steps: tuple[str | int, ...]) -> object:
        place = self._document
        if place is _MISSING:
            place = self._document = _parse(self._body)
        for step in steps:
            if isinstance(step, str):
                if not isinstance(place, Mapping):
                    return None
                place = place.get(step)
            else:
                if not isinstance(place, list) or step >= len(place):
                    return None
                place = place[step]
        return place


def _parse(body: bytes | Mapping[str, object]) -> object:
    if not isinstance(body, (bytes, bytearray, memoryview)):
        return body
    # Raising and catching a decoding error costs more than this look at the first byte of what is seldom JSON.
    if len(body) > MAX_PARSED_BODY_BYTES or not bytes(body[:64]).lstrip().startswith(b"{"):
        return None
    try:
        document: object = _DECODER.decode(str(body, "utf-8"))
    except (ValueError, RecursionError):
        return None
    return document


def _scalar(value: object) -> FieldValue:
    """Subclasses and AMQP's further types, as the four types that the language compares."""
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() else OPAQUE
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return OPAQUE
    return OPAQUE


NO_FIELDS: Final = Fields()
