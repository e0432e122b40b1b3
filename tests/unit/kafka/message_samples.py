"""Random messages, made from the declarations: the source for round trips, oracles and fuzzing.

`Values.ALL` takes every value that a type has.  `Values.SHARED` keeps to what the oracles can hold: they read
error codes into an enumeration and times into `datetime`, which have fewer values than the wire.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from random import Random
from uuid import UUID

from trunkline.protocols.kafka.schema.declaration import Declaration, Field, Struct, load
from trunkline.protocols.kafka.wire import INLINE_RECORDS_BYTES, Message

DECLARATIONS = load()

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a", "events", "zażółć", "\N{ROCKET}\x00\n", "x" * 127, "x" * 128, "ü" * 300)
BYTES = (b"", b"\x00", b"key", bytes(range(256)), b"x" * 126, b"x" * 127)
RECORDS = (b"", b"batch", b"r" * INLINE_RECORDS_BYTES, b"R" * (INLINE_RECORDS_BYTES + 1), b"q" * 20_000)
FLOATS = (0.0, -1.5, 1e300, math.pi)


class Values(Enum):
    ALL = "all"
    SHARED = "shared"


@dataclass(frozen=True)
class Case:
    """One message in one version; `key` is None for a data message."""

    module: str
    message: str
    version: int
    key: int | None

    def __str__(self) -> str:
        return f"{self.message}-v{self.version}"

    @property
    def type(self) -> type[Message]:
        found: type[Message] = getattr(import_module(f"trunkline.protocols.kafka.messages.{self.module}"), self.message)
        return found

    def sample(self, random: Random, values: Values = Values.ALL) -> Message:
        struct = next(
            message
            for declaration in DECLARATIONS[self.module]
            for message in declaration.messages
            if message.name == self.message
        )
        sampled: Message = Sampler(self.module, self.version, random, values).struct(struct)  # type: ignore[assignment]
        return sampled

    def encoded(self, random: Random, values: Values = Values.ALL) -> bytes:
        return b"".join(self.sample(random, values).encode(self.version))


def cases() -> list[Case]:
    """Every message in every version that is declared."""

    def of(module: str, declaration: Declaration) -> list[Case]:
        versions = range(declaration.versions.low, declaration.versions.high + 1)
        names = [message.name for message in declaration.messages]
        return [Case(module, name, version, declaration.key) for name in names for version in versions]

    return [case for module, group in DECLARATIONS.items() for declaration in group for case in of(module, declaration)]


class Sampler:
    """Builds one random message with only the fields that its version has."""

    def __init__(self, module: str, version: int, random: Random, values: Values) -> None:
        self._classes = import_module(f"trunkline.protocols.kafka.messages.{module}")
        self._version = version
        self._random = random
        self._values = values

    def struct(self, struct: Struct) -> object:
        present = [item for item in struct.fields if self._version in item.versions]
        made: object = getattr(self._classes, struct.name)(**{item.name: self.field(item) for item in present})
        return made

    def field(self, item: Field) -> object:
        if self._version in item.nullable and self._random.randrange(4) == 0:
            return None
        if item.is_array:
            return [self.one(item) for _ in range(self._random.randrange(3))]
        return self.one(item)

    def one(self, item: Field) -> object:
        random = self._random
        if item.struct is not None:
            return self.struct(item.struct)
        if item.type == "uint16":
            return random.choice((0, 1, 9092, (1 << 16) - 1))
        if item.type in BITS:
            return self.integer(BITS[item.type], item.name)
        if item.type == "bool":
            return random.randrange(2) == 1
        if item.type == "uuid":
            return UUID(int=random.choice((0, 1, random.getrandbits(128))))
        choices = {"string": TEXTS, "bytes": BYTES, "records": RECORDS, "float64": FLOATS}[item.type]
        return random.choice(choices)

    def integer(self, bits: int, name: str) -> int:
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        if self._values is Values.SHARED:
            if name.endswith("error_code"):
                low, high = -1, 100
            elif "time" in name or name.endswith("_ms"):
                low, high = 0, min(high, 1 << 40)
        return self._random.choice((low, high, max(low, -1), 0, 1, self._random.randint(low, high)))
