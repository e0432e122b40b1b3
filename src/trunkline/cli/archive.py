"""`trunkline topic archive`: a topic kept as a table of a data lake."""

from __future__ import annotations

from pathlib import Path

import click

from trunkline.cli.pipeline_run import SparkOptions, bootstrap_of, execute, spark_options, spark_session
from trunkline.client import Client
from trunkline.pipeline.archive import DEFAULT_TRIGGER_MS, FORMATS, SCHEMAS, Archive
from trunkline.pipeline.definition import RAW


@click.command
@click.argument("name")
@click.option("--to", "path", required=True, metavar="PATH", help="The table's directory, or its URL.")
@click.option("--format", "table_format", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option(
    "--schema", type=click.Choice(SCHEMAS), default=RAW, show_default=True, help="Keep bytes, or columns of the values."
)
@click.option(
    "--fields", metavar="COLUMNS", help="For json: columns such as 'id BIGINT, name STRING'.  [default: inferred]"
)
@click.option(
    "--avro-schema",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="For avro: its schema.",
)
@click.option("--once/--follow", "once", default=False, help="End when all is archived, or go on.  [default: follow]")
@click.option(
    "--every", "every_s", type=click.FloatRange(min=0.1), default=DEFAULT_TRIGGER_MS / 1000, show_default=True,
    metavar="SECONDS", help="How often to add to the table.",
)  # fmt: skip
@spark_options
@click.pass_context
def archive(
    ctx: click.Context,
    *,
    name: str,
    path: str,
    table_format: str,
    schema: str,
    fields: str | None,
    avro_schema: Path | None,
    once: bool,
    every_s: float,
    spark: SparkOptions,
) -> None:
    """Keep a topic as a table: every record once, from the oldest on, partitioned by date.

    \b
    trunkline topic archive orders --to lake/orders
    trunkline topic archive orders --to lake/orders --format delta --schema json --once
    """
    if avro_schema is not None:
        fields = avro_schema.read_text("utf-8")
    wanted = Archive(
        topic=name, path=path, format=table_format, schema=schema, fields=fields, trigger_ms=int(every_s * 1000)
    )
    bootstrap = bootstrap_of(ctx, spark.bootstrap)
    with Client(bootstrap) as client:
        client.topic(name)
        definition = wanted.pipeline(wanted.find_fields(client))
    home = spark.home.pipeline(wanted.name)
    version = home.version(1)
    with version.locked():
        home.keep(version=1, file=None)
        with spark_session(spark, definition, version) as session:
            execute(session, definition, version, spark, bootstrap=bootstrap, once=once)
