"""`trunkline pipeline`: run, list, status, stop, remove, replay.

There is no daemon: a pipeline is the process of `run`, and the others read and write its state directory.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.options import json_option, parse_since
from trunkline.cli.output import Cell, Json, print_json, print_table, remark
from trunkline.cli.pipeline_run import (
    SparkOptions,
    bootstrap_of,
    execute,
    explained,
    spark_options,
    spark_session,
    state_option,
)
from trunkline.clock import SystemClock
from trunkline.pipeline import application
from trunkline.pipeline.definition import VERSION, DefinitionError, ParquetSink, Pipeline
from trunkline.pipeline.home import Home, PipelineHome, VersionHome
from trunkline.pipeline.home import Json as Stored
from trunkline.pipeline.progress import DIED, RUNNING, Totals, after_its_process

POLL_S = 0.1


@click.group
def pipeline() -> None:
    """Run data pipelines on Spark: topics to topics and tables, exactly once."""


@pipeline.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--once", is_flag=True, help="Process what is there, and end.")
@spark_options
@click.pass_context
def run(ctx: click.Context, *, file: Path, once: bool, spark: SparkOptions) -> None:
    """Run a pipeline from a TOML or Python file, from where it stopped.

    \b
    trunkline pipeline run orders.toml
    trunkline pipeline run orders.toml --once
    trunkline pipeline run app.py --master spark://head:7077
    """
    definition = application.load(file)
    bootstrap = bootstrap_of(ctx, spark.bootstrap, definition)
    home = spark.home.pipeline(definition.name)
    version = home.version(home.current())
    with version.locked():
        home.keep(version=version.number, file=str(file.resolve()))
        with spark_session(spark, definition, version) as session:
            execute(session, definition, version, spark, bootstrap=bootstrap, once=once)


@pipeline.command
@click.argument("pipeline_name", metavar="NAME|FILE")
@click.option(
    "--since", required=True, metavar="SPAN|TIME|earliest", help="Where to begin: 10m, 2h, 1d ago, a time, or earliest."
)
@click.option("--append", is_flag=True, help="Write to the same sinks again, although they will have rows twice.")
@click.option("--follow", is_flag=True, help="Go on running as the new version.")
@spark_options
@click.pass_context
def replay(
    ctx: click.Context, *, pipeline_name: str, since: str, append: bool, follow: bool, spark: SparkOptions
) -> None:
    """Process the past again into a new version, and make that the current one.

    Sinks with {version} in their topic, path or table get a new one. The old version may run on meanwhile; it is stopped
    when the new one has caught up.

    \b
    trunkline pipeline replay orders --since 1d
    trunkline pipeline replay orders.toml --since earliest --follow
    """
    since_ms = 0 if since.strip().lower() == "earliest" else parse_since(since, SystemClock().wall_ms())
    home, file = _find(spark.home, pipeline_name)
    definition = application.load(file)
    _check_replay(definition, append)
    bootstrap = bootstrap_of(ctx, spark.bootstrap, definition)
    old, new = home.version(home.current()), home.version(home.next_version())
    with new.locked(), spark_session(spark, definition, new) as session:
        stopped = execute(session, definition, new, spark, bootstrap=bootstrap, once=True, since_ms=since_ms)
        if stopped:
            raise CommandError(
                f"the replay was stopped before it caught up: version {old.number} of {home.name} stays current"
            )
        home.keep(version=new.number, file=str(file.resolve()))
        if old.running():
            _stop(old, timeout_s=120.0)
        remark(f"version {new.number} of {home.name} is current")
        if follow:
            execute(session, definition, new, spark, bootstrap=bootstrap, once=False, since_ms=since_ms)


@pipeline.command("list")
@state_option
@json_option
def list_pipelines(home: Home, as_json: bool) -> None:
    """List pipelines that have run here, and how they are.

    \b
    trunkline pipeline list
    """
    with explained():
        found = [_summary(item) for item in home.pipelines()]
    if as_json:
        print_json(found)
        return
    columns = ("pipeline", "state", "version", "pid", "read", "written", "dead_letters", "lag", "file")
    rows = [tuple(_cell(item[name]) for name in columns) for item in found]
    print_table(
        [name.replace("_", " ") for name in columns],
        rows,
        empty="no pipeline has run yet; `trunkline pipeline run FILE` runs one",
    )


@pipeline.command
@click.argument("pipeline_name", metavar="NAME")
@state_option
@json_option
def status(pipeline_name: str, home: Home, as_json: bool) -> None:
    """Show the queries of a pipeline: batches, records per second, lag.

    \b
    trunkline pipeline status orders
    """
    with explained():
        found = _known(home, pipeline_name)
        queries = _queries(found)
        summary = _summary(found)
    if as_json:
        print_json({**summary, "queries": queries})
        return
    click.echo(f"{found.name}  {summary['state']}, version {summary['version']}, process {summary['pid'] or '-'}")
    if summary["error"]:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {summary['error']}")
    columns = ("query", "target", "state", "batch", "read", "written", "rows_per_second", "lag", "batch_ms", "restarts")
    rows = [tuple(_cell(item.get(name)) for name in columns) for item in queries]
    print_table([name.replace("_", " ") for name in columns], rows)


@pipeline.command
@click.argument("pipeline_name", metavar="NAME")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=120.0,
    metavar="SECONDS",
    help="How long to wait.  [default: 120]",
)
@click.option("--kill", is_flag=True, help="If it does not stop in time, kill it: nothing is lost.")
@state_option
@json_option
def stop(pipeline_name: str, timeout_s: float, kill: bool, home: Home, as_json: bool) -> None:
    """Stop a running pipeline; `run` goes on where it stopped.

    \b
    trunkline pipeline stop orders
    """
    with explained():
        found = _known(home, pipeline_name)
        running = [item for item in found.versions() if item.running()]
        for version in running:
            _stop(version, timeout_s, kill=kill)
    if as_json:
        print_json({"pipeline": pipeline_name, "stopped": bool(running)})
    else:
        remark(f"stopped {pipeline_name}" if running else f"{pipeline_name} is not running")


@pipeline.command
@click.argument("pipeline_name", metavar="NAME")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@state_option
@json_option
def remove(pipeline_name: str, yes: bool, home: Home, as_json: bool) -> None:
    """Forget a pipeline that does not run: its checkpoints, inferred schemas and progress.

    What it wrote stays, and so do checkpoints that its file keeps elsewhere. Run again, it begins from the start.

    \b
    trunkline pipeline remove orders
    trunkline pipeline remove orders --yes
    """
    with explained():
        found = _known(home, pipeline_name)
        if any(version.running() for version in found.versions()):
            raise CommandError(f"{pipeline_name} is running", f"`trunkline pipeline stop {pipeline_name}` stops it")
        if not yes:
            click.confirm(f"Remove {pipeline_name} and its checkpoints in {found.directory}?", abort=True, err=True)
        found.remove()
    if as_json:
        print_json({"pipeline": pipeline_name, "removed": True})
    else:
        remark(f"removed {pipeline_name}")


def _stop(version: VersionHome, timeout_s: float, *, kill: bool = False) -> None:
    name, pid = version.directory.parent.name, version.pid()
    if pid is None:
        raise CommandError(f"{name} is starting: its process is not known yet", "try again in a moment")
    for number in (signal.SIGTERM, signal.SIGKILL) if kill else (signal.SIGTERM,):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + timeout_s
        while version.running():
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        else:
            return
    raise CommandError(f"{name} (process {pid}) has not stopped within {timeout_s:g} s", "`--kill` does not ask")


def _known(home: Home, name: str) -> PipelineHome:
    found = home.pipeline(name)
    if not found.exists():
        raise CommandError(
            f"there is no pipeline {name} in {home.directory}", "`trunkline pipeline list` shows what there is"
        )
    return found


def _find(home: Home, name: str) -> tuple[PipelineHome, Path]:
    """A pipeline by its file, or by its name and the file that it last ran from."""
    if name.endswith((".toml", ".py")):
        return home.pipeline(application.load(Path(name)).name), Path(name)
    found = _known(home, name)
    file = found.file()
    if file is None:
        raise CommandError(f"{name} did not run from a file", "an archive is begun anew at another path")
    return found, Path(file)


def _check_replay(definition: Pipeline, append: bool) -> None:
    for sink in definition.sinks:
        if VERSION in sink.target:
            continue
        if isinstance(sink, ParquetSink) or not append:
            hint = "" if isinstance(sink, ParquetSink) else "; --append writes to the same one again"
            raise DefinitionError(
                f"sink {definition.query_of(sink)!r}: put {VERSION} into its name, so that a replay writes beside the "
                f"old result{hint}"
            )


def _queries(found: PipelineHome) -> list[dict[str, Stored]]:
    """What the queries of the current version last said, as it is now."""
    version = found.version(found.current())
    said = version.progress().get("queries")
    queries = [item for item in said if isinstance(item, dict)] if isinstance(said, list) else []
    return queries if version.running() else after_its_process(queries)


def _summary(found: PipelineHome) -> dict[str, Json]:
    version = found.version(found.current())
    progress = version.progress()
    running = version.running()
    state = progress.get("state", "never ran")
    if running and progress.get("pid") != version.pid():
        state = "starting"  # what is on disk is of the run before
    elif state == RUNNING and not running:
        state = DIED
    totals = Totals.of(_queries(found))
    return {
        "pipeline": found.name,
        "state": state,
        "version": version.number,
        "pid": version.pid() if running else None,
        "read": totals.read,
        "written": totals.written,
        "dead_letters": totals.dead_letters,
        "lag": totals.lag,
        "updated_ms": progress.get("updated_ms"),
        "error": progress.get("error"),
        "file": found.file(),
    }


def _cell(value: object) -> Cell:
    if value is None or isinstance(value, int | str):
        return value
    return str(value)
