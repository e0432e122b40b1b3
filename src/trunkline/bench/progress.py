"""The progress bar of a benchmark, on stderr: one step for each measurement, named as it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int], None]]:
    """Gives what a contest calls with the name of a measurement that begins, and how many there are."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task("start", total=None)
        begun = 0

        def show(description: str, steps: int) -> None:
            nonlocal begun
            progress.update(task, description=description, total=steps, completed=begun)
            begun += 1

        yield show
