"""Tuples and entries of a space as messages, and templates as filters over them.

A tuple is kept as {"t": [its values], "k": a letter for the type of each}. A template is a tuple, too, in which a value stands for
itself, a type for any value of it, and `...` for anything; it matches tuples of its own length:

    ("job", int, ...)      t[0] = 'job' and k like 'si_'

An entry is an object with named fields: a dataclass. It is kept as {"e": its fields, "c": its classes}. A template for entries
is a class, which matches all entries of it and of its subclasses, or an entry of which the fields that are None match anything.

    Task                   c like '%/Task/%'
    Task(state="new")      c like '%/Task/%' and e.state = 'new'

Texts, numbers, booleans and None can be compared; lists and dicts can only be matched by their type.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from typing import Any, Final

from trunkline.api import bodies
from trunkline.api.errors import BodyRefused

_LETTERS: Final[dict[type, str]] = {
    str: "s",
    int: "i",
    float: "f",
    bool: "b",
    type(None): "n",
    list: "l",
    tuple: "l",
    dict: "d",
}
_ANY: Final = "_"  # any one letter to `like`


def encoded(entry: object) -> bytes:
    """What is written of a tuple or an entry. BodyRefused for anything else."""
    if isinstance(entry, tuple):
        return _json({"t": list(entry), "k": "".join(_letter(value) for value in entry)})
    if dataclasses.is_dataclass(entry) and not isinstance(entry, type):
        fields = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
        return _json({"e": fields, "c": _classes(type(entry))})
    raise BodyRefused(f"a space holds tuples and dataclasses, not a {type(entry).__name__}")


def decoded(data: bytes, template: object) -> Any:
    """The tuple, or the entry as the class that the template is of."""
    document = json.loads(data)
    if "t" in document:
        return tuple(document["t"])
    into = template if isinstance(template, type) else type(template)
    return bodies.decode(json.dumps(document["e"]).encode(), bodies.JSON, into)


def filter_of(template: object) -> str:
    """The filter that matches what the template does."""
    if isinstance(template, tuple):
        letters = "".join(_wanted_letter(value) for value in template)
        conditions = [
            f"t[{place}] = {_literal(value)}" for place, value in enumerate(template) if _is_comparable(value)
        ]
        conditions.append(f"k like '{letters}'" if _ANY in letters else f"k = '{letters}'")
        return " and ".join(conditions)
    if isinstance(template, type) and dataclasses.is_dataclass(template):
        return f"c like '%/{template.__name__}/%'"
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        fields = {field.name: getattr(template, field.name) for field in dataclasses.fields(template)}
        conditions = [f"e.{name} = {_literal(value)}" for name, value in fields.items() if _is_comparable(value)]
        for name, value in fields.items():
            if value is not None and not _is_comparable(value):
                raise BodyRefused(f"the field {name} of a template can only be a text, a number or a boolean")
        return " and ".join([*conditions, f"c like '%/{type(template).__name__}/%'"])
    raise BodyRefused(f"a template is a tuple, a dataclass or an object of one, not a {type(template).__name__}")


def _classes(kind: type) -> str:
    return "/" + "".join(f"{name}/" for name in bodies.type_names(kind))


def _letter(value: object) -> str:
    letter = _LETTERS.get(type(value))
    if letter is None:
        raise BodyRefused(
            f"a {type(value).__name__} cannot be in a tuple: texts, numbers, booleans, None, lists, dicts can"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise BodyRefused(f"{value} is no JSON")
    return letter


def _wanted_letter(value: object) -> str:
    if value is ... or value is object:
        return _ANY
    if value is None:
        return "n"
    if isinstance(value, type):
        letter = _LETTERS.get(value)
        if letter is None:
            raise BodyRefused(f"no tuple has a {value.__name__} in it")
        return letter
    if isinstance(value, list | dict | tuple | types.GenericAlias):
        raise BodyRefused("lists and dicts can be matched by their type only: write `list` or `dict`")
    return _letter(value)


def _is_comparable(value: object) -> bool:
    return type(value) in (str, int, float, bool)


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def _json(document: dict[str, object]) -> bytes:
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyRefused(f"not everything in it is JSON: {error}") from None


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
