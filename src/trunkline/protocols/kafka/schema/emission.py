"""Turns a declared struct into the text of its read and write functions.

A struct has up to two dialects: plain and flexible (`Dialect`), each with the versions that use it.  Within one
a version is tested only where those versions differ, and neighbouring fields of fixed width that are present
together become one precompiled `struct`.  `Module` collects the text and those structs.

This module runs when messages are generated, never in a broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from struct import calcsize

from trunkline.protocols.kafka.schema.declaration import (
    FIXED_CODES,
    NO_VERSION,
    Declaration,
    Field,
    Struct,
    Versions,
    snake_case,
)

PYTHON_TYPES = {
    "bool": "bool",
    "float64": "float",
    "uuid": "UUID",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
}
LAYOUT_NAMES = {
    "?": "BOOL",
    "b": "I8",
    "h": "I16",
    "H": "U16",
    "i": "I32",
    "I": "U32",
    "q": "I64",
    "d": "F64",
    "16s": "UUID",
}
RESERVED = frozenset(
    {"buffer", "at", "version", "budget", "out", "item", "cuts", "tags", "tag", "end", "count", "element"}
)


def python_type(item: Field) -> str:
    base = item.type if item.struct is not None else PYTHON_TYPES.get(item.type, "int")
    if item.is_array:
        base = f"list[{base}]"
    return f"{base} | None" if item.nullable else base


def default_value(item: Field) -> str:
    """The default as an expression, for use where no value was read."""
    if item.default == "null" or (item.type == "records" and item.nullable):
        return "None"
    if item.is_array:
        return "[]"
    if item.struct is not None:
        return f"{item.type}()"
    if item.default is not None:
        return item.default.capitalize() if item.type == "bool" else item.default
    return {
        "bool": "False",
        "float64": "0.0",
        "uuid": "ZERO_UUID",
        "string": '""',
        "bytes": 'b""',
        "records": 'b""',
    }.get(item.type, "0")


def default_clause(item: Field) -> str:
    value = default_value(item)
    if value == "[]":
        return "field(default_factory=list)"
    if value.endswith("()"):
        return f"field(default_factory={item.type})"
    return value


def condition(present: Versions, within: Versions) -> str | None:
    """The test for `present` among the versions `within`; None when it always holds."""
    if present.covers(within):
        return None
    if present.low <= within.low:
        return f"version <= {present.high}"
    if present.high >= within.high:
        return f"version >= {present.low}"
    if present.low == present.high:
        return f"version == {present.low}"
    return f"{present.low} <= version <= {present.high}"


def differs_from_default(item: Field, value: str) -> str:
    """A test whether a tagged field must be written."""
    default = default_value(item)
    if default == "None":
        return f"{value} is not None"
    if default in {"[]", '""', "False", 'b""'}:
        # A null in a field whose default is empty must be written too.
        return f"{value} is None or {value}" if item.nullable else value
    if item.struct is not None and all(part.is_fixed for part in item.struct.fields):
        return " or ".join(f"{value}.{part.name} != {default_value(part)}" for part in item.struct.fields)
    return f"{value} != {default}"


@dataclass(slots=True)
class Module:
    """The text of one module under construction."""

    source: str
    declarations: list[Declaration]
    lines: list[str] = field(default_factory=list)
    layouts: dict[str, str] = field(default_factory=dict)

    def emit(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line if line else "" for line in lines]

    def layout(self, codes: list[str]) -> str:
        """The name of the precompiled struct for these codes."""
        name = "_" + "_".join(LAYOUT_NAMES[code] for code in codes)
        self.layouts[name] = ">" + "".join(codes)
        return name


def has_records(struct: Struct) -> bool:
    return any(
        item.type == "records" or (item.struct is not None and has_records(item.struct)) for item in struct.fields
    )


@dataclass(frozen=True, slots=True)
class Dialect:
    """Plain or flexible encoding, and the versions of the struct that use it."""

    within: Versions
    flexible: bool

    @property
    def suffix(self) -> str:
        return "_flexible" if self.flexible else ""

    @property
    def compact(self) -> str:
        return "compact_" if self.flexible else ""


def dialects(struct: Struct, flexible_from: int) -> list[Dialect]:
    """The encodings of a struct that some version uses."""
    plain = struct.used & Versions(0, flexible_from - 1)
    flexible = struct.used & Versions(flexible_from, NO_VERSION)
    return [Dialect(within, is_flexible) for within, is_flexible in ((plain, False), (flexible, True)) if within]


def local(item: Field) -> str:
    return f"{item.name}_" if item.name in RESERVED else item.name


def runs(struct: Struct, dialect: Dialect) -> list[tuple[str | None, list[Field]]]:
    """Untagged fields grouped by presence: each group shares one version test."""
    present = [item for item in struct.fields if item.tag is None and item.versions & dialect.within]

    def test(item: Field) -> str | None:
        return condition(item.versions & dialect.within, dialect.within)

    return [(key, list(group)) for key, group in groupby(present, test)]


def tagged(struct: Struct, dialect: Dialect) -> list[Field]:
    found = [item for item in struct.fields if item.tag is not None and item.versions & dialect.within]
    return sorted(found, key=lambda item: item.tag or 0)


class Reader:
    """Emits the read function of one struct in one dialect."""

    def __init__(self, module: Module, struct: Struct, dialect: Dialect) -> None:
        self.module = module
        self.struct = struct
        self.dialect = dialect

    def emit(self) -> None:
        struct, dialect, emit = self.struct, self.dialect, self.module.emit
        emit(
            0,
            f"def _read_{snake_case(struct.name)}{dialect.suffix}(",
            "    buffer: memoryview, at: int, version: int, budget: list[int]",
            f") -> tuple[{struct.name}, int]:",
        )
        present = [item for item in struct.fields if item.versions & dialect.within]
        for item in present:
            if item.tag is not None or condition(item.versions & dialect.within, dialect.within):
                emit(1, f"{local(item)}: {self.local_type(item)} = {default_value(item)}")
        for test, group in runs(struct, dialect):
            depth = 1
            if test is not None:
                emit(1, f"if {test}:")
                depth = 2
            self.group(depth, group, declared=test is not None)
        if dialect.flexible:
            self.tags()
        arguments = ", ".join(f"{item.name}={local(item)}" for item in present)
        emit(1, f"return {struct.name}({arguments}), at", "", "")

    @staticmethod
    def local_type(item: Field) -> str:
        return python_type(item).replace("Buffer", "memoryview")

    def group(self, depth: int, group: list[Field], *, declared: bool) -> None:
        for fixed, members in groupby(group, lambda item: item.is_fixed):
            fields = list(members)
            if fixed:
                self.fixed_run(depth, fields)
            else:
                for item in fields:
                    self.variable(depth, item, declared=declared)

    def fixed_run(self, depth: int, fields: list[Field]) -> None:
        emit = self.module.emit
        codes = [FIXED_CODES[item.type] for item in fields]
        targets = [local(item) + ("_data" if item.type == "uuid" else "") for item in fields]
        left = f"({targets[0]},)" if len(targets) == 1 else ", ".join(targets)
        width = calcsize(">" + "".join(codes))
        emit(depth, f"{left} = {self.module.layout(codes)}.unpack_from(buffer, at)", f"at += {width}")
        for item in fields:
            if item.type == "uuid":
                emit(depth, f"{local(item)} = uuid_of({local(item)}_data)")

    def variable(self, depth: int, item: Field, *, declared: bool) -> None:
        """A string, bytes, records, array or struct."""
        emit, compact = self.module.emit, self.dialect.compact
        name = local(item)
        nullable = item.nullable & self.dialect.within
        if item.is_array:
            self.array(depth, item, declared=declared)
        elif item.struct is not None:
            call = f"_read_{snake_case(item.type)}{self.dialect.suffix}(buffer, at, version, budget)"
            if nullable:
                emit(depth, "(marker,) = INT8.unpack_from(buffer, at)", "at += 1")
                if not declared:
                    emit(depth, f"{name}: {self.local_type(item)} = None")
                emit(depth, "if marker >= 0:", f"    {name}, at = {call}", "else:", f"    {name} = None")
            else:
                emit(depth, f"{name}, at = {call}")
        elif item.type == "records":
            emit(depth, f"{name}, at = read_{compact}nullable_records(buffer, at)")
        else:
            null = "nullable_" if nullable else ""
            emit(depth, f"{name}, at = read_{compact}{null}{item.type}(buffer, at)")
        self.forbid_null(depth, item)

    def forbid_null(self, depth: int, item: Field) -> None:
        """Reject a null in those versions of a nullable field that do not allow it."""
        present = item.versions & self.dialect.within
        nullable = item.nullable & self.dialect.within
        if nullable and not nullable.covers(present):
            test = f"version < {nullable.low} and {local(item)} is None"
        elif item.type == "records" and not nullable:
            test = f"{local(item)} is None"
        else:
            return
        self.module.emit(depth, f"if {test}:", f'    raise unexpected_null("{self.struct.name}.{item.name}")')

    def array(self, depth: int, item: Field, *, declared: bool) -> None:
        emit, compact = self.module.emit, self.dialect.compact
        name = local(item)
        annotation = "" if declared else f": {python_type(item)}"
        nullable = bool(item.nullable & self.dialect.within)
        names = {other.name for other in self.struct.fields} | RESERVED
        count = f"read_{compact}nullable_count" if nullable else f"read_{compact}count"
        emit(depth, f"count, at = {count}(buffer, at, budget)")
        if nullable:
            emit(depth, f"{name}{annotation} = None", "if count >= 0:")
            annotation = ""
            depth += 1
        if item.struct is None and item.type in FIXED_CODES and item.type != "uuid":
            code = FIXED_CODES[item.type]
            if annotation:
                emit(depth, f"{name}{annotation}")
            emit(depth, f'{name}, at = read_fixed(buffer, at, count, "{code}")')
            return
        emit(depth, f"{name}{annotation} = []", "for _ in range(count):")
        # The struct's own name reads best, unless the field has it already.
        element = "element" if snake_case(item.type) in names else snake_case(item.type)
        if item.struct is not None:
            call = f"_read_{snake_case(item.type)}{self.dialect.suffix}(buffer, at, version, budget)"
            emit(depth + 1, f"{element}, at = {call}", f"{name}.append({element})")
        elif item.type == "uuid":
            emit(depth + 1, f"(data,) = {self.module.layout(['16s'])}.unpack_from(buffer, at)", "at += 16")
            emit(depth + 1, f"{name}.append(uuid_of(data))")
        else:
            emit(depth + 1, f"text, at = read_{compact}{item.type}(buffer, at)", f"{name}.append(text)")

    def tags(self) -> None:
        emit = self.module.emit
        known = tagged(self.struct, self.dialect)
        emit(1, "if buffer[at] == 0:", "    at += 1", "else:")
        if not known:
            emit(2, "at = skip_tags(buffer, at)")
            return
        emit(2, "tags, at = read_tag_count(buffer, at)", "for _ in range(tags):")
        emit(3, "tag, at, end = read_tag(buffer, at)")
        keyword = "if"
        for item in known:
            test = condition(item.versions & self.dialect.within, self.dialect.within)
            emit(3, f"{keyword} tag == {item.tag}{f' and {test}' if test else ''}:")
            self.group(4, [item], declared=True)
            emit(4, "check_tag_end(at, end)")
            keyword = "elif"
        emit(3, "at = end")


class Writer:
    """Emits the write function of one struct in one dialect."""

    def __init__(self, module: Module, struct: Struct, dialect: Dialect) -> None:
        self.module = module
        self.struct = struct
        self.dialect = dialect

    def emit(self) -> None:
        struct, dialect, emit = self.struct, self.dialect, self.module.emit
        cuts = ", cuts: Cuts" if has_records(struct) else ""
        emit(
            0,
            f"def _write_{snake_case(struct.name)}{dialect.suffix}(",
            f"    out: bytearray, item: {struct.name}, version: int{cuts}",
            ") -> None:",
        )
        start = len(self.module.lines)
        for test, group in runs(struct, dialect):
            depth = 1
            if test is not None:
                emit(1, f"if {test}:")
                depth = 2
            self.group(depth, "out", group)
        if dialect.flexible:
            self.tags()
        if len(self.module.lines) == start:
            emit(1, "pass")
        emit(0, "", "")

    def group(self, depth: int, out: str, group: list[Field]) -> None:
        for fixed, members in groupby(group, lambda item: item.is_fixed):
            fields = list(members)
            if fixed:
                codes = [FIXED_CODES[item.type] for item in fields]
                values = ", ".join(f"item.{item.name}" + (".bytes" if item.type == "uuid" else "") for item in fields)
                self.module.emit(depth, f"{out} += {self.module.layout(codes)}.pack({values})")
            else:
                for item in fields:
                    self.variable(depth, out, item)

    def variable(self, depth: int, out: str, item: Field) -> None:
        emit, compact, suffix = self.module.emit, self.dialect.compact, self.dialect.suffix
        value = f"item.{item.name}"
        present = item.versions & self.dialect.within
        nullable = item.nullable & self.dialect.within
        if item.nullable and not nullable.covers(present):
            test = f"version < {nullable.low} and {value} is None" if nullable else f"{value} is None"
            message = f"{self.struct.name}.{item.name} may not be null in this version"
            emit(depth, f"if {test}:", f'    raise ValueError("{message}")')
        if item.is_array:
            self.array(depth, out, item, nullable=bool(nullable))
        elif item.struct is not None:
            cuts = ", cuts" if has_records(item.struct) else ""
            call = f"_write_{snake_case(item.type)}{suffix}({out}, {value}, version{cuts})"
            if nullable:
                emit(depth, f"if {value} is None:", f'    {out} += b"\\xff"', "else:")
                emit(depth + 1, f'{out} += b"\\x01"', call)
            else:
                emit(depth, call)
        elif item.type == "records":
            emit(depth, f"write_{compact}nullable_records({out}, {value}, cuts)")
        else:
            null = "nullable_" if nullable else ""
            emit(depth, f"write_{compact}{null}{item.type}({out}, {value})")

    def array(self, depth: int, out: str, item: Field, *, nullable: bool) -> None:
        emit, suffix = self.module.emit, self.dialect.suffix
        value = f"item.{item.name}"
        if nullable:
            null = "00" if self.dialect.flexible else "ff\\xff\\xff\\xff"
            emit(depth, f"if {value} is None:", f'    {out} += b"\\x{null}"', "else:")
            depth += 1
        if self.dialect.flexible:
            emit(depth, f"write_uvarint({out}, len({value}) + 1)")
        else:
            emit(depth, f"{out} += INT32.pack(len({value}))")
        if item.struct is None and item.type in FIXED_CODES and item.type != "uuid":
            emit(depth, f'write_fixed({out}, {value}, "{FIXED_CODES[item.type]}")')
            return
        if item.struct is not None:
            element = snake_case(item.type)
            cuts = ", cuts" if has_records(item.struct) else ""
            emit(depth, f"for {element} in {value}:")
            emit(depth + 1, f"_write_{element}{suffix}({out}, {element}, version{cuts})")
        elif item.type == "uuid":
            emit(depth, f"for identity in {value}:", f"    {out} += identity.bytes")
        else:
            emit(depth, f"for element in {value}:")
            emit(depth + 1, f"write_{self.dialect.compact}{item.type}({out}, element)")

    def tags(self) -> None:
        emit = self.module.emit
        known = tagged(self.struct, self.dialect)
        if not known:
            emit(1, "out.append(0)")
            return
        emit(1, "tags: list[tuple[int, bytearray]] = []")
        for item in known:
            test = differs_from_default(item, f"item.{item.name}")
            if versions := condition(item.versions & self.dialect.within, self.dialect.within):
                test = f"{versions} and ({test})" if " or " in test else f"{versions} and {test}"
            emit(1, f"if {test}:", "    data = bytearray()")
            self.group(2, "data", [item])
            emit(2, f"tags.append(({item.tag}, data))")
        emit(1, "write_tags(out, tags)")
