"""Delta Lake and Apache Iceberg tables, written beside Spark by `deltalake` and `pyiceberg`, each batch exactly once.

A batch's rows come to the driver as one Arrow table and are committed together with the number of the batch: in Delta as an
application transaction, in Iceberg as a table property set by the same commit. A batch that comes back after a crash finds
its number there and is not written again. Files that a killed writer left are not part of any commit: readers never see
them, and the formats' own clean-up (vacuum, orphan removal) deletes them.

The application is named for the checkpoint, not the pipeline: batches are numbered per checkpoint, and a new checkpoint
must not be taken for the old one's repetition.

New columns are added to the table when the first batch has them. Limit: a batch must fit into the driver's memory, which
is why the source of such a sink reads at most `limits.MAX_DRIVER_ROWS` rows and `MAX_DRIVER_BYTES` at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from trunkline.pipeline.definition import COMPLETE, UPSERT, DefinitionError, DeltaSink, IcebergSink
from trunkline.version import install_command

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

PROPERTY = "trunkline.batch."


class TableWriter(Protocol):
    """Writes a batch of a query to a table; the same batch again is not written twice."""

    def write(self, rows: pa.Table, application: str, batch: int) -> None: ...


def last_of_each(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Only the last row of each key: what an upsert of the rows in order would leave."""
    place = "__place"
    numbered = rows.append_column(place, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.select([*keys, place]).group_by(list(keys)).aggregate([(place, "max")])
    return rows.take(last[f"{place}_max"].sort())


class DeltaWriter:
    def __init__(self, sink: DeltaSink, path: str) -> None:
        try:
            import deltalake
        except ImportError:
            raise missing_package("deltalake", "delta") from None
        self._package = deltalake
        self._sink = sink
        self._path = path
        self._storage = dict(sink.storage) or None

    def write(self, rows: pa.Table, application: str, batch: int) -> None:
        delta, sink = self._package, self._sink
        table = self._existing()
        if table is not None:
            done = table.transaction_version(application)
            if done is not None and done >= batch:
                return
        mark = delta.CommitProperties(app_transactions=[delta.Transaction(application, batch)])
        if sink.mode == UPSERT and table is not None:
            match = " AND ".join(f'target."{key}" = source."{key}"' for key in sink.keys)
            fresh = last_of_each(rows, sink.keys)
            merge = table.merge(
                fresh, match, source_alias="source", target_alias="target", merge_schema=True, commit_properties=mark
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
            return
        if sink.mode == UPSERT:
            rows = last_of_each(rows, sink.keys)
        if not self._path_is_url():
            Path(self._path).mkdir(parents=True, exist_ok=True)
        delta.write_deltalake(
            self._path if table is None else table,
            rows,
            mode="overwrite" if sink.mode == COMPLETE else "append",
            schema_mode="overwrite" if sink.mode == COMPLETE else "merge",
            partition_by=list(sink.partition_by) or None,
            storage_options=self._storage if table is None else None,
            commit_properties=mark,
        )

    def _existing(self) -> deltalake_table | None:
        if not self._package.DeltaTable.is_deltatable(self._path, self._storage):
            return None
        return self._package.DeltaTable(self._path, storage_options=self._storage)

    def _path_is_url(self) -> bool:
        return "://" in self._path


if TYPE_CHECKING:
    from deltalake import DeltaTable as deltalake_table  # noqa: N813


class IcebergWriter:
    def __init__(self, sink: IcebergSink, table: str, warehouse: str | None) -> None:
        self._sink = sink
        self._name = table
        self._catalog = open_catalog(sink.catalog, warehouse)

    def write(self, rows: pa.Table, application: str, batch: int) -> None:
        table = self._existing(rows.schema)
        mark = PROPERTY + application
        if int(table.properties.get(mark, -1)) >= batch:
            return
        sink = self._sink
        with table.transaction() as change:
            known = set(table.schema().column_names)
            if not set(rows.column_names) <= known:
                with change.update_schema() as schema:
                    schema.union_by_name(rows.schema)
            if sink.mode == COMPLETE:
                change.overwrite(rows)
            elif sink.mode == UPSERT:
                change.upsert(last_of_each(rows, sink.keys), join_cols=list(sink.keys))
            else:
                change.append(rows)
            change.set_properties({mark: str(batch)})

    def _existing(self, schema: pa.Schema) -> Table:
        if self._catalog.table_exists(self._name):
            return self._catalog.load_table(self._name)
        self._catalog.create_namespace_if_not_exists(self._name.split(".", maxsplit=1)[0])
        with self._catalog.create_table_transaction(self._name, schema=schema) as change:
            if self._sink.partition_by:
                with change.update_spec() as spec:
                    for column in self._sink.partition_by:
                        spec.add_identity(column)
        return self._catalog.load_table(self._name)


def open_catalog(properties: dict[str, str] | object, warehouse: str | None) -> Catalog:
    """The catalog that the properties describe, or the one that a warehouse directory has of its own."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise missing_package("pyiceberg", "iceberg") from None
    if warehouse is None:
        assert isinstance(properties, dict)
        return load_catalog("trunkline", **properties)
    directory = Path(warehouse)
    directory.mkdir(parents=True, exist_ok=True)
    return load_catalog(
        "trunkline", type="sql", uri=f"sqlite:///{directory}/catalog.db", warehouse=directory.resolve().as_uri()
    )


def missing_package(package: str, kind: str, extra: str = "lake") -> DefinitionError:
    return DefinitionError(f"sinks of kind {kind} need the package {package}: {install_command(extra)}")
