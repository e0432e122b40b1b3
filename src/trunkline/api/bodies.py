"""Values to bytes and back.

| value | content type | read back without a type as |
|---|---|---|
| bytes, bytearray, memoryview | application/octet-stream | bytes |
| str | text/plain | str |
| None, bool, int, float, list, tuple, dict | application/json | what JSON makes of it |
| a dataclass, a msgspec Struct, a pydantic model | application/json, and the class's name as the message's type | a dict |

Anything else is refused: nothing is pickled, and nothing becomes its `repr`. With a type (a type hint, `of=`) the body is made
one of that type, and refused if it is not: pydantic models by pydantic, all others by msgspec where it is installed. Without
it, dataclasses of plain fields are made here.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from trunkline.api.errors import BodyRefused

BYTES: Final = "application/octet-stream"
TEXT: Final = "text/plain"
JSON: Final = "application/json"
_PLAIN: Final = (bool, int, float, str, type(None))

try:
    import msgspec
except ImportError:  # an optional part
    msgspec = None  # type: ignore[assignment]
_MALFORMED: Final = (ValueError, TypeError, RecursionError) + (() if msgspec is None else (msgspec.MsgspecError,))


class Body(NamedTuple):
    data: bytes
    content_type: str
    type_name: str | None = None


def encode(value: object) -> Body:
    """BodyRefused for a value that is none of the kinds above."""
    if isinstance(value, bytes):
        return Body(value, BYTES)
    if isinstance(value, str):
        return Body(value.encode(), TEXT)
    if isinstance(value, bytearray | memoryview):
        return Body(bytes(value), BYTES)
    kind = type(value)
    if kind in (dict, list, int, float, bool, tuple) or value is None:
        return Body(_to_json(value), JSON)
    if hasattr(kind, "model_dump_json"):
        dumped: str = value.model_dump_json()  # type: ignore[attr-defined]
        return Body(dumped.encode(), JSON, kind.__name__)
    if dataclasses.is_dataclass(value) or hasattr(kind, "__struct_fields__"):
        return Body(_to_json(value), JSON, kind.__name__)
    raise BodyRefused(f"a {kind.__name__} is no body: bytes, str, JSON values, dataclasses, msgspec and pydantic are")


def _to_json(value: object) -> bytes:
    try:
        if msgspec is not None:
            return msgspec.json.encode(value)
        return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False).encode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BodyRefused(f"a {type(value).__name__} that is not JSON: {error}") from None


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def type_names(kind: type) -> list[str]:
    """The class and those it is derived from, as events say what they are."""
    return [
        each.__name__
        for each in kind.__mro__
        if each.__module__ not in {"builtins", "typing", "msgspec", "pydantic.main"}
    ]


def decode(data: bytes, content_type: str | None, into: object = object) -> Any:
    """BodyRefused if the body is not of the type that is asked for."""
    if into is object or into is Any:
        return _as_it_came(data, content_type)
    if into is bytes:
        return data
    if into is str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BodyRefused(f"the body is not text: {error}") from None
    validate = getattr(into, "model_validate_json", None)
    if validate is not None:
        try:
            return validate(data)
        except ValueError as error:
            raise BodyRefused(f"the body is no {getattr(into, '__name__', into)}: {error}") from None
    if msgspec is not None:
        try:
            return _decoder(into).decode(data)
        except _MALFORMED as error:
            raise BodyRefused(f"the body is no {getattr(into, '__name__', into)}: {error}") from None
    return _checked(_from_json(data), into)


@lru_cache(256)
def _decoder(into: object) -> Any:
    return msgspec.json.Decoder(into)


def _as_it_came(data: bytes, content_type: str | None) -> object:
    if content_type is None or content_type == BYTES:
        return data
    if content_type == JSON:
        return _from_json(data)
    if content_type.startswith("text/"):
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BodyRefused(f"the body is not text: {error}") from None
    return data


def _from_json(data: bytes) -> object:
    try:
        return json.loads(data) if msgspec is None else msgspec.json.decode(data)
    except _MALFORMED as error:
        raise BodyRefused(f"the body is not JSON: {error}") from None


# -- without msgspec ---------------------------------------------------------------------------------------------------


def _checked(value: object, into: object) -> object:
    if into is object or into is Any:
        return value
    origin, inner = get_origin(into), get_args(into)
    if origin in (Union, types.UnionType):
        for each in inner:
            try:
                return _checked(value, each)
            except BodyRefused:
                continue
    elif into is None or into is type(None):
        if value is None:
            return None
    elif into is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif into in _PLAIN and type(value) is into:
        return value
    elif isinstance(into, type) and dataclasses.is_dataclass(into) and isinstance(value, dict):
        return _dataclass(value, into)
    elif origin in (list, tuple, set) and isinstance(value, list):
        item = inner[0] if inner else object
        return origin([_checked(each, item) for each in value])
    elif (origin in (dict, Mapping) or into is dict) and isinstance(value, dict):
        item = inner[1] if inner else object
        return {name: _checked(each, item) for name, each in value.items()}
    elif into is list and isinstance(value, list):
        return value
    raise BodyRefused(f"the body is no {getattr(into, '__name__', into)}: it is {type(value).__name__}")


def _dataclass(value: dict[str, object], into: type) -> object:
    hints = get_type_hints(into)
    given = {}
    for field in dataclasses.fields(into):
        if field.name in value:
            given[field.name] = _checked(value[field.name], hints[field.name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise BodyRefused(f"the body is no {into.__name__}: it has no {field.name}")
    return into(**given)
