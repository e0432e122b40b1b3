"""`trunkline work`: run the functions that an application has decorated, until it is told to stop."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import click

from trunkline.api.connection import Connection as AsyncConnection
from trunkline.api.faces import Connection
from trunkline.cli.errors import CommandError

_TICK_S = 1.0
_QUIET_TICK_S = 60.0


class Counting(Protocol):
    @property
    def handled(self) -> int: ...

    @property
    def failed(self) -> int: ...


@click.command()
@click.argument("application", metavar="MODULE:NAME")
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False, exists=True), default=".",
              help="Where the module is looked for.  [default: .]")  # fmt: skip
@click.option("--grace", type=float, default=30.0, show_default=True, metavar="SECONDS",
              help="How long functions that run may go on when it is told to stop.")  # fmt: skip
def work(application: str, directory: Path, grace: float) -> None:
    """Run the functions that are decorated with `@t.worker` and `@t.subscriber`.

    NAME is a connection in MODULE: what `trunkline.connect(...)` or `trunkline.aio.connect(...)` returned. Ctrl-C or SIGTERM stops
    taking messages and waits for what runs; what was not begun goes back to its queue.

    \b
    trunkline work app:t
    """
    connection = _named(application, directory)
    workers = connection.core.workers if isinstance(connection, Connection) else connection.workers
    if not len(workers):
        raise CommandError(f"{application} has no functions", "decorate some with @t.worker(...) or @t.subscriber(...)")
    for name in workers.names:
        click.echo(name, err=True)
    if isinstance(connection, Connection):
        _run(connection, grace)
    else:
        asyncio.run(_run_async(connection, grace))


def _named(application: str, directory: Path) -> Connection | AsyncConnection:
    module, colon, name = application.partition(":")
    if not colon:
        raise CommandError(f"{application!r} is not MODULE:NAME", "for example: trunkline work app:t")
    sys.path.insert(0, str(directory.resolve()))
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise CommandError(f"there is no module {error.name!r}", "is it in this directory? See --directory") from None
    except AttributeError:
        raise CommandError(f"module {module!r} has no {name!r}", "name the connection in it") from None
    if not isinstance(found, Connection | AsyncConnection):
        raise CommandError(f"{application} is a {type(found).__name__}", "name what trunkline.connect(...) returned")
    return found


def _run(connection: Connection, grace: float) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with connection:
        handles = connection.start()
        progress = _Progress(handles)
        while not stop.wait(_TICK_S):
            progress.show()
        for handle in handles:
            handle.stop(grace)
        progress.end()


async def _run_async(connection: AsyncConnection, grace: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connection:
        handles = await connection.start()
        progress = _Progress(handles)
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), _TICK_S)
            except TimeoutError:
                progress.show()
        for handle in handles:
            await handle.stop(grace)
        progress.end()


class _Progress:
    """One line that is written over on a terminal, and one a minute elsewhere."""

    def __init__(self, handles: Sequence[Counting]) -> None:
        self._handles = handles
        self._terminal = sys.stderr.isatty()
        self._shown_at = time.monotonic()
        self._before = 0
        click.echo("ready", err=True)

    def show(self) -> None:
        now = time.monotonic()
        if not self._terminal and now - self._shown_at < _QUIET_TICK_S:
            return
        handled = sum(each.handled for each in self._handles)
        rate = (handled - self._before) / max(now - self._shown_at, 0.001)
        self._before, self._shown_at = handled, now
        click.echo(
            f"{self._counts()}, {rate:.0f}/s" + ("\r" if self._terminal else ""), nl=not self._terminal, err=True
        )

    def end(self) -> None:
        click.echo(f"stopped: {self._counts()}", err=True)

    def _counts(self) -> str:
        handled, failed = sum(each.handled for each in self._handles), sum(each.failed for each in self._handles)
        return f"{handled} handled, {failed} failed"
