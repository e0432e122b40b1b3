"""Tables of any database with a JDBC driver: rows written by Spark's tasks, counted once by a transaction.

A batch is written, in parallel and by Spark's own JDBC writer, to a staging table of its own; then one transaction on the
driver inserts from there into the table and notes the batch's number in `trunkline_batches`. A task that is repeated or a
driver that is killed leaves rows in the staging table at worst, which the batch's next attempt replaces. The database must
have transactions over INSERT and DELETE. The driver's jar comes with Spark's settings: `spark.jars.packages`, `spark.jars`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from trunkline.pipeline.definition import DefinitionError, JdbcSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES: Final = "trunkline_batches"


class _Results(Protocol):
    def next(self) -> bool: ...
    def getLong(self, column: int) -> int: ...  # noqa: N802 (java.sql's names)


class _Statement(Protocol):
    def executeUpdate(self, sql: str) -> int: ...  # noqa: N802
    def executeQuery(self, sql: str) -> _Results: ...  # noqa: N802


class _Tables(Protocol):
    def getTables(self, catalog: None, schema: None, name: str, kinds: None) -> _Results: ...  # noqa: N802


class _Connection(Protocol):
    """What we use of java.sql.Connection, on the other side of Py4J."""

    def setAutoCommit(self, on: bool) -> None: ...  # noqa: N802
    def createStatement(self) -> _Statement: ...  # noqa: N802
    def getMetaData(self) -> _Tables: ...  # noqa: N802
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class JdbcWriter:
    """Gets the batch as a data frame, not as an Arrow table: its rows never come to the driver."""

    def __init__(self, sink: JdbcSink, table: str) -> None:
        self._sink = sink
        self._table = table

    def write(self, frame: DataFrame, application: str, batch: int) -> None:
        spark = frame.sparkSession
        connection = self._connect(spark)
        try:
            connection.setAutoCommit(False)
            statement = connection.createStatement()
            self._prepare(connection, statement)
            found = statement.executeQuery(f"SELECT batch FROM {BATCHES} WHERE application = '{application}'")
            done = found.getLong(1) if found.next() else -1
            connection.commit()
            if done >= batch:
                return
            staging = f"{self._table}_staging"
            self._spark_writes(frame, staging, "overwrite")
            self._spark_writes(frame.limit(0), self._table, "append")
            columns = ", ".join(self._quoted(spark, name) for name in frame.columns)
            statement.executeUpdate(f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {staging}")
            statement.executeUpdate(f"DELETE FROM {BATCHES} WHERE application = '{application}'")
            statement.executeUpdate(f"INSERT INTO {BATCHES} VALUES ('{application}', {batch})")
            connection.commit()
            statement.executeUpdate(f"DROP TABLE {staging}")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()

    def _connect(self, spark: SparkSession) -> _Connection:
        java = spark._jvm
        if java is None:
            raise DefinitionError(
                "sinks of kind jdbc need a Spark of their own: they do not work through Spark Connect"
            )
        properties = java.java.util.Properties()
        for name, value in self._sink.properties.items():
            properties.setProperty(name, value)
        jdbc = java.org.apache.spark.sql.execution.datasources.jdbc
        driver = self._sink.driver or java.java.sql.DriverManager.getDriver(self._sink.url).getClass().getName()
        jdbc.DriverRegistry.register(driver)
        return cast(_Connection, java.java.sql.DriverManager.getConnection(self._sink.url, properties))

    @staticmethod
    def _prepare(connection: _Connection, statement: _Statement) -> None:
        # Databases keep unquoted names in upper or lower case, and not all have IF NOT EXISTS.
        for name in (BATCHES, BATCHES.upper()):
            if connection.getMetaData().getTables(None, None, name, None).next():
                return
        statement.executeUpdate(
            f"CREATE TABLE {BATCHES} (application VARCHAR(200) NOT NULL PRIMARY KEY, batch BIGINT NOT NULL)"
        )
        connection.commit()

    def _spark_writes(self, frame: DataFrame, table: str, mode: str) -> None:
        properties = dict(self._sink.properties)
        if self._sink.driver:
            properties["driver"] = self._sink.driver
        frame.write.jdbc(self._sink.url, table, mode=mode, properties=properties)

    def _quoted(self, spark: SparkSession, column: str) -> str:
        assert spark._jvm is not None
        dialect = spark._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._sink.url)
        return str(dialect.quoteIdentifier(column))
