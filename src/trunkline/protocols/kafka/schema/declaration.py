"""Reads the declarations (`*.api`) that describe Kafka messages.

A file declares one message pair, or with `data` a message that is not an RPC:

    api Produce 0 versions 0-13 flexible 9      # name, API key, versions, first flexible version (or none)

    request
      acks int16                                # a field: name, type
      topic_data [TopicProduceData]             # an array; the struct's fields are indented below it
        name string 0-12                        # only in these versions; `3+` and `3` are ranges too
        ...
    response
      error_message string? 8+ = null           # nullable; `string?4+` is nullable from version 4 on
      node_endpoints [NodeEndpoint] 10+ tag 0   # a tagged field

    struct NodeEndpoint                         # a struct that several fields use
      ...

    data ConsumerProtocolSubscription versions 0-3 flexible none

Field names are Kafka's in snake case, struct names are Kafka's.  A field without `= value` defaults to zero,
false, the empty string, the empty list, or a struct of defaults; nullable records default to null.

This module runs when messages are generated and in tests, never in a broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NO_VERSION = 32767
"""The first flexible version of a message that has none; also the end of an open range."""

FIXED_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
VARIABLE_TYPES = frozenset({"string", "bytes", "records"})


class DeclarationError(ValueError):
    """A declaration file breaks the notation."""


@dataclass(frozen=True, slots=True)
class Versions:
    low: int
    high: int

    def __and__(self, other: Versions) -> Versions:
        return Versions(max(self.low, other.low), min(self.high, other.high))

    def __or__(self, other: Versions) -> Versions:
        """The hull of both; an empty range adds nothing."""
        if not self:
            return other
        if not other:
            return self
        return Versions(min(self.low, other.low), max(self.high, other.high))

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def covers(self, other: Versions) -> bool:
        return self.low <= other.low and self.high >= other.high


NEVER = Versions(1, 0)


@dataclass(slots=True)
class Field:
    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    default: str | None
    tag: int | None
    struct: Struct | None = None

    @property
    def is_fixed(self) -> bool:
        return not self.is_array and self.type in FIXED_CODES


@dataclass(slots=True)
class Struct:
    name: str
    fields: list[Field] = field(default_factory=list)
    used: Versions = NEVER


@dataclass(slots=True)
class Declaration:
    """One file: an API with its request and response, or a data message (key None, one message)."""

    name: str
    key: int | None
    versions: Versions
    flexible_from: int
    messages: list[Struct]
    structs: list[Struct]
    """Every struct, nested before the one that uses it, messages included."""

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


_HEAD = re.compile(
    r"(?:api (?P<api>\w+) (?P<key>\d+)|data (?P<data>\w+)) "
    r"versions (?P<low>\d+)-(?P<high>\d+) flexible (?P<flexible>\d+|none)"
)
_FIELD = re.compile(
    r"(?P<name>[a-z]\w*) (?P<open>\[)?(?P<type>\w+)(?P<close>\])?(?P<nullable>\?(?:\d+\+)?)?"
    r"(?: (?P<low>\d+)(?:(?P<plus>\+)|-(?P<high>\d+))?)?(?: = (?P<default>\S+))?(?: tag (?P<tag>\d+))?"
)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        if line:
            body = line.lstrip()
            yield number, len(line) - len(body), re.sub(r"\s+", " ", body)


def _parse_field(text: str) -> Field:
    match = _FIELD.fullmatch(text)
    if match is None or bool(match["open"]) != bool(match["close"]):
        raise DeclarationError(f"not a field: {text!r}")
    if match["low"] is None:
        versions = Versions(0, NO_VERSION)
    elif match["plus"]:
        versions = Versions(int(match["low"]), NO_VERSION)
    else:
        versions = Versions(int(match["low"]), int(match["high"] or match["low"]))
    nullable = NEVER
    if match["nullable"]:
        nullable = Versions(int(match["nullable"][1:-1] or 0), NO_VERSION) & versions
    tag = None if match["tag"] is None else int(match["tag"])
    return Field(match["name"], match["type"], bool(match["open"]), versions, nullable, match["default"], tag)


def _is_struct(name: str) -> bool:
    return name not in FIXED_CODES and name not in VARIABLE_TYPES


def parse(text: str) -> list[Declaration]:
    """Every declaration of one file."""
    declarations: list[Declaration] = []
    shared: dict[str, Struct] = {}
    stack: list[tuple[int, Struct]] = []
    for number, indent, line in _lines(text):
        try:
            if head := _HEAD.fullmatch(line):
                flexible = NO_VERSION if head["flexible"] == "none" else int(head["flexible"])
                versions = Versions(int(head["low"]), int(head["high"]))
                key = None if head["key"] is None else int(head["key"])
                name = head["api"] or head["data"]
                declarations.append(Declaration(name, key, versions, flexible, [], []))
                stack = []
                if key is None:
                    declarations[-1].messages.append(Struct(name))
                    stack = [(0, declarations[-1].messages[0])]
            elif line in {"request", "response"}:
                message = Struct(declarations[-1].name + line.capitalize())
                declarations[-1].messages.append(message)
                stack = [(indent, message)]
            elif line.startswith("struct "):
                name = line.removeprefix("struct ")
                stack = [(indent, shared.setdefault(name, Struct(name)))]
            else:
                while stack[-1][0] >= indent:
                    stack.pop()
                item = _parse_field(line)
                if any(other.name == item.name for other in stack[-1][1].fields):
                    raise DeclarationError(f"{stack[-1][1].name}.{item.name} is declared twice")
                stack[-1][1].fields.append(item)
                if _is_struct(item.type):
                    item.struct = shared.setdefault(item.type, Struct(item.type))
                    stack.append((indent, item.struct))
        except (DeclarationError, IndexError) as error:
            raise DeclarationError(f"line {number}: {error}") from error
    for declaration in declarations:
        _resolve(declaration)
    return declarations


def _resolve(declaration: Declaration) -> None:
    """Order the structs and note the versions in which each is used."""

    def visit(struct: Struct, used: Versions) -> None:
        if not struct.fields:
            raise DeclarationError(f"{declaration.name}: {struct.name} has no fields")
        for version in range(used.low, min(used.high + 1, declaration.flexible_from)):
            # A reader bounds an array by the bytes that remain, so no element may take none.
            if not any(version in item.versions for item in struct.fields) and struct not in declaration.messages:
                raise DeclarationError(f"{declaration.name}: {struct.name} is empty in version {version}")
        struct.used = struct.used | used
        for item in struct.fields:
            if item.struct is not None and (present := item.versions & used):
                visit(item.struct, present)
        if struct not in declaration.structs:
            declaration.structs.append(struct)

    for message in declaration.messages:
        if message.fields:
            visit(message, declaration.versions)
        else:
            message.used = declaration.versions
            declaration.structs.append(message)


def load(directory: Path | None = None) -> dict[str, list[Declaration]]:
    """Every declaration by the name of the module it becomes."""
    directory = directory or Path(__file__).parent
    return {path.stem: parse(path.read_text("utf-8")) for path in sorted(directory.glob("*.api"))}
