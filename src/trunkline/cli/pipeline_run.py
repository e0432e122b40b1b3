"""What `pipeline run`, `pipeline replay` and `topic archive` share: a Spark session, signals, and progress as it comes.

On a terminal the progress is a table that is drawn over itself; in a pipe it is a line every few seconds, on stderr.
What Spark itself writes goes into the version's `spark.log`, and to the terminal with `--verbose`.
SIGTERM and Ctrl-C stop the queries and end the command with exit code 0: everything goes on from the checkpoint next time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec

import click

from trunkline.cli.errors import CommandError
from trunkline.cli.options import config_file_of, parse_pairs
from trunkline.cli.output import print_json, remark
from trunkline.clock import Clock, SystemClock
from trunkline.pipeline.causes import cause_of
from trunkline.pipeline.definition import DefinitionError, Pipeline
from trunkline.pipeline.home import Home, HomeError, VersionHome, default_home
from trunkline.pipeline.progress import FAILED, QueryProgress, Totals
from trunkline.pipeline.spark_log import SparkLog
from trunkline.version import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.table import Table

    from trunkline.pipeline.runner import Runner

LINE_INTERVAL_MS = 5_000
MASTER_TIMEOUT_S = 5.0
_STANDALONE = "spark://"
_NO_JVM = "JAVA_GATEWAY_EXITED"

P = ParamSpec("P")


@dataclass(frozen=True)
class SparkOptions:
    master: str
    memory: str
    conf: tuple[tuple[str, str], ...]
    verbose: bool
    as_json: bool
    bootstrap: str | None
    home: Home


def spark_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds what every command that runs Spark takes; the command gets it as `spark`."""

    @click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs.")
    @click.option("--memory", default="1g", show_default=True, metavar="SIZE", help="Heap of Spark's driver.")
    @click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="A setting of Spark; may be repeated."
    )
    @click.option("-b", "--bootstrap", metavar="HOST:PORT", help="Broker to talk to.  [default: as configured]")
    @click.option("--verbose", is_flag=True, help="Show Spark's own log here, not in its file.")
    @state_option
    @click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
    @functools.wraps(function)
    def command(
        *,
        master: str,
        memory: str,
        conf: list[tuple[str, str]],
        bootstrap: str | None,
        verbose: bool,
        home: Home,
        as_json: bool,
        **rest: object,
    ) -> None:
        options = SparkOptions(master, memory, tuple(conf), verbose, as_json, bootstrap, home)
        with explained():
            function(spark=options, **rest)

    return command


def state_option(function: Callable[P, None]) -> Callable[P, None]:
    """Adds `--state`; the command gets the home of the pipelines as `home`."""
    return click.option(
        "--state",
        "home",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        callback=lambda ctx, param, value: Home(value or default_home()),
        help="Where pipelines keep state and checkpoints.  [default: $TRUNKLINE_PIPELINES, ~/.local/state/trunkline/pipelines]",
    )(function)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Errors of pipelines as the command line shows them."""
    try:
        yield
    except (DefinitionError, HomeError) as error:
        raise CommandError(str(error)) from error
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in {"pyspark", "pyarrow"}:
            raise
        raise CommandError(f"pipelines need the package {error.name}", install_command("spark")) from error


def bootstrap_of(ctx: click.Context, given: str | None, pipeline: Pipeline | None = None) -> str:
    """The flag's broker, else the pipeline's, else the configured one."""
    from trunkline.config import load

    named = given or (pipeline.bootstrap if pipeline is not None else None)
    return load({"bootstrap": named}, config_file=config_file_of(ctx)).client_bootstrap()


@contextlib.contextmanager
def spark_session(options: SparkOptions, pipeline: Pipeline, home: VersionHome) -> Iterator[SparkSession]:
    """Spark for a version whose lock the caller holds. What Spark has to say goes into the version's log, unless it is
    to be seen (`--verbose`); an error that ends the command is one sentence, and says where the log is."""
    from trunkline.pipeline.session import JavaMissing, local_session

    log = SparkLog(home.log)
    conf = {**pipeline.spark, **dict(options.conf)}
    if not options.master.startswith("local"):
        # Executors on other machines must reach the driver.
        host = socket.gethostname()
        os.environ.setdefault("SPARK_LOCAL_IP", "0.0.0.0")
        conf = {"spark.driver.host": host, "spark.driver.bindAddress": "0.0.0.0", **conf}
    if not options.as_json:
        remark(f"starting Spark ({options.master}) …")
    try:
        _find_master(options.master)
        with contextlib.nullcontext() if options.verbose else log.launching():
            session = local_session(pipeline.name, master=options.master, heap=options.memory, conf=conf)
    except JavaMissing as error:
        raise _not_started(CommandError(str(error)), home) from error
    except CommandError as error:
        raise _not_started(error, home) from error
    except _spark_errors() as error:
        said = log.first_complaint() if _NO_JVM in str(error) and not options.verbose else None
        log.note(error)
        told = f"Spark does not start on {options.master}: {said or cause_of(error)}"
        raise _not_started(CommandError(told, _where(log)), home) from error
    session.sparkContext.setLogLevel("WARN" if options.verbose else "ERROR")
    try:
        yield session
    except _spark_errors() as error:
        log.note(error)
        raise CommandError(cause_of(error), _where(log, _GOES_ON)) from error
    except DefinitionError as error:
        if error.__cause__ is None:
            raise
        log.note(error)
        raise CommandError(str(error), _where(log)) from error
    finally:
        with contextlib.suppress(*_spark_errors()):
            session.stop()


_GOES_ON = "once the cause is gone, the same command goes on where it stopped; "


def _where(log: SparkLog, before: str = "") -> str:
    return f"{before}the whole trace is in {log.path}"


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from trunkline.pipeline.runner import PipelineFailed

    return (PySparkException, Py4JError, PipelineFailed)


def _not_started(error: CommandError, home: VersionHome) -> CommandError:
    """Noted in the version's state, which nobody else does before the queries start."""
    home.write_progress(
        {"pid": os.getpid(), "state": FAILED, "version": home.number, "error": error.message, "queries": []}
    )
    return error


def _find_master(master: str) -> None:
    """Spark asks for a minute, and says it in pages of Java: look first whether one of the cluster's masters is there."""
    if not master.startswith(_STANDALONE):
        return
    problems: list[str] = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), MASTER_TIMEOUT_S):
                return
        except (OSError, ValueError) as error:
            problems.append(f"{address} ({getattr(error, 'strerror', None) or error})")
    raise CommandError(
        f"no Spark master answers at {', '.join(problems)}",
        "start the cluster, or run Spark on this machine with `--master 'local[*]'`",
    )


def execute(
    session: SparkSession,
    pipeline: Pipeline,
    home: VersionHome,
    options: SparkOptions,
    *,
    bootstrap: str,
    once: bool,
    since_ms: int | None = None,
) -> bool:
    """Run a version until it is done or stopped; whether it was stopped. The caller holds the lock."""
    from trunkline.pipeline.runner import Runner

    shown, log = Display(pipeline.name, quiet=options.as_json), SparkLog(home.log)

    def observe(queries: Sequence[QueryProgress]) -> None:
        shown.show(queries)
        log.keep_small()

    runner = Runner(pipeline, session, home, bootstrap, once=once, since_ms=since_ms, observe=observe)
    with shown, _stopped_by_signals(runner) as stopped:
        reports = runner.run()
    if options.as_json:
        print_json([item.to_json() for item in reports])
    else:
        read = Totals.of(item.to_json() for item in reports).read or 0
        remark(
            f"{'stopped' if stopped else 'finished'} {pipeline.name}, version {home.number}: "
            f"{read:,} records read; written: {', '.join(_outcome(item) for item in reports)}"
        )
    return bool(stopped)


@contextlib.contextmanager
def _stopped_by_signals(runner: Runner) -> Iterator[list[int]]:
    """The signals that came."""
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        runner.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Display:
    """Progress while it runs."""

    def __init__(self, name: str, *, quiet: bool, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._quiet = quiet
        self._said_at_ms = self._clock.monotonic_ms()
        self._said = ""
        self._stack = contextlib.ExitStack()
        self._draw: Callable[[Table], None] | None = None

    def __enter__(self) -> Display:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            live = self._stack.enter_context(Live(console=Console(stderr=True), auto_refresh=False))
            self._draw = lambda table: live.update(table, refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, queries: Sequence[QueryProgress]) -> None:
        if self._quiet:
            return
        if self._draw is not None:
            self._draw(self._table(queries))
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._said_at_ms < LINE_INTERVAL_MS:
            return
        text = "; ".join(_line(item) for item in queries)
        self._said_at_ms = now_ms
        if text != self._said:
            self._said = text
            remark(text)

    def _table(self, queries: Sequence[QueryProgress]) -> Table:
        from rich.table import Table

        table = Table(title=self._name, title_justify="left")
        for name in ("query", "to", "state"):
            table.add_column(name)
        for name in ("batch", "read", "written", "records/s", "lag", "batch ms"):
            table.add_column(name, justify="right")
        for item in queries:
            colour = {"failed": "red", "retrying": "yellow", "running": "green"}.get(item.state, "")
            state = f"[{colour}]{item.state}[/]" if colour else item.state
            table.add_row(
                item.name,
                item.target,
                f"{state}: {item.error}" if item.error else state,
                _number(item.batch),
                f"{item.read:,}",
                f"{item.written:,}",
                f"{item.rows_per_second:,.0f}",
                _number(item.lag),
                _number(item.batch_ms),
            )
        return table


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _outcome(item: QueryProgress) -> str:
    what = f"{item.written:,} dead letters" if item.dead_letters else f"{item.written:,}"
    return f"{what} to {item.target}"


def _line(item: QueryProgress) -> str:
    text = f"{item.name}: {item.state}, {item.read:,} read, {item.written:,} written"
    text += f", {item.rows_per_second:,.0f}/s, lag {_number(item.lag)}, batch {_number(item.batch_ms)} ms"
    return text + (f" ({item.error})" if item.error else "")
