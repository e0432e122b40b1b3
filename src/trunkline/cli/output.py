"""How results are printed: rich tables on a terminal, plain columns in a pipe, JSON when it is asked for."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import click

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
Cell: TypeAlias = str | int | None

_ABSENT = "-"


def print_json(value: Json) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, empty: str = "") -> None:
    """Numbers are set to the right. With no rows, `empty` is said on stderr."""
    if not rows and empty:
        remark(empty)
        return
    if sys.stdout.isatty():
        _print_rich(columns, rows)
    else:
        _print_plain(columns, rows)


def remark(text: str) -> None:
    """Something for the person, not for the pipe."""
    click.echo(text, err=True)


def reader_gone() -> bool:
    """Whether nobody reads our output any more, as behind `| head`: who waits for more to print would not notice."""
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in watch.poll(0))
    except (AttributeError, OSError, ValueError):
        return False  # no such call here, or no file behind the output


def _text(cell: Cell) -> str:
    return _ABSENT if cell is None else str(cell)


def _is_number(rows: Sequence[Sequence[Cell]], column: int) -> bool:
    cells = [row[column] for row in rows if row[column] is not None]
    return bool(cells) and all(isinstance(cell, int) for cell in cells)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    heads = [name.upper().replace(" ", "_") for name in columns]
    lines = [heads, *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    right = [_is_number(rows, at) for at in range(len(columns))]
    for line in lines:
        cells = [cell.rjust(widths[at]) if right[at] else cell.ljust(widths[at]) for at, cell in enumerate(line)]
        click.echo("  ".join(cells).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold cyan", pad_edge=False)
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if _is_number(rows, at) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(cell), style="dim" if cell is None else "") for cell in row))
    Console().print(table)
