"""What a pipeline is: sources, transformations, sinks. Written as TOML, or in Python with the same classes.

    name = "large-orders"

    [[source]]                      # a topic (or several) becomes a view
    name = "orders"
    topics = ["orders"]
    format = "json"
    schema = "id BIGINT NOT NULL, customer STRING, amount DOUBLE"

    [[transformation]]              # SQL over views, or a Python function of data frames
    name = "large"
    sql = "SELECT id, customer, amount FROM orders WHERE amount > 100"

    [[sink]]                        # each sink is one streaming query with a checkpoint of its own
    kind = "topic"
    topic = "large-orders"
    key = "customer"

The fields of the classes are the keys of the tables: what is documented here is documented there. An unknown key, a wrong
type, a view that nothing defines: `DefinitionError`, before Spark is started, naming the table and the key.

`{version}` in a sink's topic, path or table is replaced by the version that runs; `replay` writes the next one, so that
the old result is served until the new one is complete.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from trunkline.log.errors import InvalidTopicName
from trunkline.log.names import check_topic_name
from trunkline.pipeline.causes import meant_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_FILE_BYTES: Final = 1 << 20
MAX_VIEWS: Final = 200
MAX_SINKS: Final = 50
DEFAULT_TRIGGER_MS: Final = 500
DEFAULT_RESTARTS: Final = 10
VERSION: Final = "{version}"

RAW, JSON, CSV, AVRO = "raw", "json", "csv", "avro"
FAIL, DROP, DEAD_LETTER = "fail", "drop", "dead-letter"
APPEND, UPDATE, COMPLETE, UPSERT = "append", "update", "complete", "upsert"

_VIEW_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Function: TypeAlias = "Callable[..., DataFrame]"


class DefinitionError(ValueError):
    """The definition does not mean anything; the message says where and why."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Topics as a view. Parsed formats give the schema's columns, and the record's own as `_key`, `_topic`, `_partition`,
    `_offset` and `_timestamp`; `raw` gives `key`, `value`, `topic`, `partition`, `offset` and `timestamp`."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """Instead of topics: a regular expression that their names match."""
    starting: str = "earliest"
    """earliest or latest: where a pipeline without a checkpoint begins."""
    format: str = RAW
    schema: str | None = None
    """Columns as in SQL (json, csv) or an Avro schema. JSON without one is inferred from the topic's first records."""
    schema_file: str | None = None
    on_error: str = DEAD_LETTER
    """What becomes of a record that does not fit the schema: dead-letter, drop, or fail (the pipeline stops)."""
    dead_letter_topic: str | None = None
    """By default the source's name and `.dead-letters`."""
    event_time: str | None = None
    """The column whose watermark bounds windows and joins."""
    lateness: str = "0 seconds"
    headers: bool = False
    """Whether the view has the record's headers too (`headers`, or `_headers`)."""
    parse: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's JSON or CSV parser, such as `sep`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the `trunkline` source, such as `maxOffsetsPerTrigger`."""

    def __post_init__(self) -> None:
        where = f"source {self.name!r}"
        _view_name(self.name, where)
        if bool(self.topics) == (self.pattern is not None):
            raise DefinitionError(f"{where}: set either topics or pattern")
        _one_of(self.starting, ("earliest", "latest"), f"{where}: starting")
        _one_of(self.format, (RAW, JSON, CSV, AVRO), f"{where}: format")
        _one_of(self.on_error, (DEAD_LETTER, DROP, FAIL), f"{where}: on_error")
        if self.format == RAW and (self.schema or self.schema_file):
            raise DefinitionError(f"{where}: a schema needs format json, csv or avro")
        if self.schema and self.schema_file:
            raise DefinitionError(f"{where}: set either schema or schema_file")
        if self.format in {CSV, AVRO} and not (self.schema or self.schema_file):
            raise DefinitionError(f"{where}: format {self.format} needs a schema")
        for topic in (*self.topics, self.dead_letters):
            _topic(topic, where)

    @property
    def dead_letters(self) -> str:
        return self.dead_letter_topic or f"{self.name}.dead-letters"


@dataclass(frozen=True, kw_only=True)
class Transformation:
    """A view made of other views: by SQL over their names, or by a function that gets them as data frames."""

    name: str
    sql: str | None = None
    function: str | Function | None = None
    """`module:function`, found beside the file; or, in Python, the function."""
    inputs: tuple[str, ...] = ()
    """The views that the function gets, in order."""

    def __post_init__(self) -> None:
        where = f"transformation {self.name!r}"
        _view_name(self.name, where)
        if (self.sql is None) == (self.function is None):
            raise DefinitionError(f"{where}: set either sql or function")
        if self.function is not None and not self.inputs:
            raise DefinitionError(f"{where}: inputs must name the views that the function gets")
        if isinstance(self.function, str) and not re.fullmatch(r"[\w.]+:\w+", self.function):
            raise DefinitionError(f"{where}: function must be like module:function, not {self.function!r}")


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where a view goes. What each kind needs is checked by its own class."""

    name: str = ""
    view: str = ""
    """By default the last transformation, or the only source."""
    mode: str = APPEND
    """append, update or complete, as in Spark; upsert (by `keys`) where the kind can."""
    trigger_ms: int | None = None
    """At least so long from one batch to the next; by default the pipeline's."""

    @property
    def target(self) -> str:
        """What is written, for people: a topic, path or table."""
        raise AssertionError("each kind of sink has its own")

    def _check(self, modes: tuple[str, ...]) -> None:
        _one_of(self.mode, modes, f"sink {self.name or self.target!r}: mode")
        if self.trigger_ms is not None and self.trigger_ms < 0:
            raise DefinitionError(f"sink {self.name or self.target!r}: trigger_ms must not be negative")


@dataclass(frozen=True, kw_only=True)
class TopicSink(Sink):
    """Records of a topic. A view with a column `value` is written as it is; any other as JSON of all its columns."""

    topic: str
    key: str | None = None
    """The column that becomes the record's key, as text; without it, the column `key` where there is a `value`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the `trunkline` sink, such as `compression` and `delivery`."""

    def __post_init__(self) -> None:
        self._check((APPEND, UPDATE))
        _topic(self.topic.replace(VERSION, "1"), "topic sink")

    @property
    def target(self) -> str:
        return self.topic


@dataclass(frozen=True, kw_only=True)
class ParquetSink(Sink):
    """Parquet files under a path, written by Spark's own file sink."""

    path: str
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check((APPEND,))

    @property
    def target(self) -> str:
        return self.path


@dataclass(frozen=True, kw_only=True)
class DeltaSink(Sink):
    """A Delta Lake table, through the package `deltalake`."""

    path: str
    partition_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict)
    """Storage options of `deltalake`, for paths of object stores."""

    def __post_init__(self) -> None:
        self._check((APPEND, COMPLETE, UPSERT))
        _keys(self.mode, self.keys, self.path)

    @property
    def target(self) -> str:
        return self.path


@dataclass(frozen=True, kw_only=True)
class IcebergSink(Sink):
    """An Apache Iceberg table, through the package `pyiceberg`."""

    table: str
    """namespace.table"""
    path: str | None = None
    """A warehouse directory with a catalog of its own (SQLite); or set `catalog`."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Properties of a catalog, as `pyiceberg` takes them."""
    partition_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check((APPEND, COMPLETE, UPSERT))
        _keys(self.mode, self.keys, self.table)
        if (self.path is None) == (not self.catalog):
            raise DefinitionError(f"sink {self.table!r}: set either path or catalog")
        if self.table.count(".") != 1 or not all(self.table.split(".")):
            raise DefinitionError(f"sink {self.table!r}: table must be like namespace.table")

    @property
    def target(self) -> str:
        return self.table


@dataclass(frozen=True, kw_only=True)
class PostgresqlSink(Sink):
    """A PostgreSQL table, through the package `psycopg`; created where it is missing."""

    url: str
    """postgresql://user@host/database, or the same with jdbc: before it."""
    table: str
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check((APPEND, COMPLETE, UPSERT))
        _keys(self.mode, self.keys, self.table)
        if not self.url.removeprefix("jdbc:").startswith(("postgresql://", "postgres://")):
            raise DefinitionError(f"sink {self.table!r}: url must begin with postgresql://; for others, kind = 'jdbc'")

    @property
    def target(self) -> str:
        return self.table


@dataclass(frozen=True, kw_only=True)
class JdbcSink(Sink):
    """A table of any database with a JDBC driver on Spark's class path; created where it is missing."""

    url: str
    table: str
    driver: str | None = None
    """The driver's class, where the URL does not tell it."""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check((APPEND,))
        if not self.url.startswith("jdbc:"):
            raise DefinitionError(f"sink {self.table!r}: url must begin with jdbc:")
        if not re.fullmatch(r"[\w.{}]+", self.table):
            raise DefinitionError(f"sink {self.table!r}: table must be a plain name")

    @property
    def target(self) -> str:
        return self.table


KINDS: Final[Mapping[str, type[Sink]]] = {
    "topic": TopicSink,
    "parquet": ParquetSink,
    "delta": DeltaSink,
    "iceberg": IcebergSink,
    "postgresql": PostgresqlSink,
    "jdbc": JdbcSink,
}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    name: str
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]
    transformations: tuple[Transformation, ...] = ()
    bootstrap: str | None = None
    """By default the broker that the command line is configured for."""
    trigger_ms: int = DEFAULT_TRIGGER_MS
    restarts: int = DEFAULT_RESTARTS
    """Failures in a row, without a batch between them, after which the pipeline gives up."""
    checkpoints: str | None = None
    """A directory, or a URL that Spark can write to. By default it is kept in the state directory."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Spark's settings, such as `spark.jars.packages`."""
    directory: Path = field(default_factory=Path.cwd)
    """What relative paths and modules are relative to."""

    def __post_init__(self) -> None:
        if not _PIPELINE_NAME.fullmatch(self.name):
            raise DefinitionError(f"{self.name!r} is no name for a pipeline: letters, digits, '.', '_' and '-'")
        if not self.sources:
            raise DefinitionError("a pipeline needs a [[source]]")
        if not self.sinks:
            raise DefinitionError("a pipeline needs a [[sink]]")
        if self.trigger_ms < 0 or self.restarts < 0:
            raise DefinitionError("trigger_ms and restarts must not be negative")
        if len(self.sources) + len(self.transformations) > MAX_VIEWS or len(self.sinks) > MAX_SINKS:
            raise DefinitionError(f"a pipeline has at most {MAX_VIEWS} views and {MAX_SINKS} sinks")
        known: list[str] = []
        views: list[Source | Transformation] = [*self.sources, *self.transformations]
        for view in views:
            for wanted in view.inputs if isinstance(view, Transformation) else ():
                if wanted not in known:
                    nearest = meant_by(wanted, known)
                    raise DefinitionError(f"transformation {view.name!r}: no view {wanted!r} comes before it{nearest}")
            if view.name.lower() in {name.lower() for name in known}:
                raise DefinitionError(f"two views are called {view.name!r}")
            known.append(view.name)
        names: set[str] = set()
        for sink in self.sinks:
            if self.view_of(sink) not in known:
                nearest = meant_by(str(sink.view), known)
                raise DefinitionError(f"sink {sink.name or sink.target!r}: there is no view {sink.view!r}{nearest}")
            if self.query_of(sink) in names:
                raise DefinitionError(f"two sinks are called {self.query_of(sink)!r}: give them names")
            names.add(self.query_of(sink))

    def view_of(self, sink: Sink) -> str:
        if sink.view:
            return sink.view
        if self.transformations:
            return self.transformations[-1].name
        if len(self.sources) > 1:
            raise DefinitionError(f"sink {sink.name or sink.target!r}: view must say which of the sources it writes")
        return self.sources[0].name

    def query_of(self, sink: Sink) -> str:
        """The name of the sink's query and checkpoint: stable, and fit for a directory."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", sink.name or sink.target).strip("-.") or "sink"


def load(path: Path) -> Pipeline:
    """A pipeline from a TOML file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DefinitionError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DefinitionError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise DefinitionError(f"{path}: not valid TOML: {error}") from None
    try:
        return from_table(table, default_name=path.stem, directory=path.resolve().parent)
    except DefinitionError as error:
        raise DefinitionError(f"{path}: {error}") from None


def from_table(table: Mapping[str, object], *, default_name: str, directory: Path) -> Pipeline:
    rest = dict(table)
    sources = tuple(_build(Source, item, "source") for item in _tables(rest, "source"))
    transformations = tuple(_build(Transformation, item, "transformation") for item in _tables(rest, "transformation"))
    sinks = tuple(_sink(item) for item in _tables(rest, "sink"))
    rest.setdefault("name", default_name)
    given: dict[str, object] = {
        "sources": sources, "transformations": transformations, "sinks": sinks, "directory": directory,
    }  # fmt: skip
    return _build(Pipeline, rest, "pipeline", given)


def _tables(table: dict[str, object], name: str) -> list[Mapping[str, object]]:
    found = table.pop(name, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise DefinitionError(f"{name} must be written as [[{name}]]")
    return found


def _sink(table: Mapping[str, object]) -> Sink:
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise DefinitionError(f"sink: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    rest = {name: value for name, value in table.items() if name != "kind"}
    return _build(KINDS[kind], rest, f"{kind} sink")


Built = TypeVar("Built")


def _build(
    kind: type[Built], table: Mapping[str, object], where: str, given: Mapping[str, object] | None = None
) -> Built:
    """An instance from a TOML table, each value checked against its field's annotation."""
    values = dict(given or {})
    known = {item.name: item for item in fields(kind) if item.name not in values}  # type: ignore[arg-type]
    if "name" in known and isinstance(table.get("name"), str):
        where = f"{where} {table['name']!r}"
    for name, value in table.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]}?" if near else f": it has {', '.join(known)}"
            raise DefinitionError(f"{where} has no key {name!r}{meant}")
        values[name] = _value(known[name], value, f"{where}: {name}")
    missing = [item.name for item in known.values() if _required(item) and item.name not in values]
    if missing:
        raise DefinitionError(f"{where} needs the key {missing[0]!r}")
    return kind(**values)


def _required(item: Field[object]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _value(item: Field[object], value: object, where: str) -> object:
    annotation = str(item.type)
    if annotation.startswith("tuple"):
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise DefinitionError(f"{where} must be a list of names")
        return tuple(names)
    if annotation.startswith("Mapping"):
        if not isinstance(value, dict):
            raise DefinitionError(f"{where} must be a table")
        return {name: _text(inner, f"{where}.{name}") for name, inner in _flat(value).items()}
    wanted: type = int if annotation.startswith("int") else str
    if not isinstance(value, bool if annotation == "bool" else wanted) or (wanted is int and isinstance(value, bool)):
        kind = "true or false" if annotation == "bool" else "a whole number" if wanted is int else "text"
        raise DefinitionError(f"{where} must be {kind}, not {value!r}")
    return value


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """TOML reads an unquoted `spark.ui.enabled = true` as nested tables; both spellings mean the same here."""
    found: dict[str, object] = {}
    for name, value in table.items():
        found.update(_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value})
    return found


def _text(value: object, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise DefinitionError(f"{where} must be text or a number")


def _one_of(value: str, among: tuple[str, ...], where: str) -> None:
    if value not in among:
        raise DefinitionError(f"{where} must be one of {', '.join(among)}, not {value!r}")


def _topic(name: str, where: str) -> None:
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        raise DefinitionError(f"{where}: {error}") from None


def _view_name(name: str, where: str) -> None:
    if not _VIEW_NAME.fullmatch(name):
        raise DefinitionError(f"{where}: a view's name has letters, digits and '_', so that SQL can say it")


def _keys(mode: str, keys: tuple[str, ...], target: str) -> None:
    if (mode == UPSERT) != bool(keys):
        raise DefinitionError(f"sink {target!r}: mode = 'upsert' and keys go together")
