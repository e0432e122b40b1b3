"""The figures as a table on a terminal, as JSON for a program, and as Markdown for the documentation."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trunkline import CODECS_COMPILED
from trunkline.bench.cases import RATE, ROWS, Figure
from trunkline.version import VERSION


def to_json(figures: Sequence[Figure]) -> str:
    """A list of objects with case, unit, ours, peer and ratio; the last two are null without a peer."""
    rows = [
        {
            "case": figure.case,
            "unit": figure.unit,
            "ours": _rounded(figure.ours, figure.unit),
            "peer": None if figure.peer is None else _rounded(figure.peer, figure.unit),
            "ratio": None if figure.ratio is None else round(figure.ratio, 3),
        }
        for figure in figures
    ]
    return json.dumps(rows, indent=2)


def to_markdown(figures: Sequence[Figure], peer_name: str, peer_version: str) -> str:
    lines = [
        f"trunkline {VERSION}, {peer_name} {peer_version}; {machine()}",
        "",
        f"| case | unit | trunkline | {peer_name} | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for figure in figures:
        peer = "" if figure.peer is None else amount(figure.peer, figure.unit)
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        lines.append(f"| {figure.case} | {figure.unit} | {amount(figure.ours, figure.unit)} | {peer} | {ratio} |")
    return "\n".join(lines)


def print_table(figures: Sequence[Figure], peer_name: str, console: Console) -> None:
    table = Table(
        box=SIMPLE_HEAD, header_style="bold cyan", pad_edge=False, caption="ratio above 1: trunkline is better"
    )
    table.add_column("case", no_wrap=True)
    table.add_column("unit")
    for column in ("trunkline", peer_name, "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for figure in figures:
        table.add_row(
            figure.case,
            figure.unit,
            amount(figure.ours, figure.unit),
            Text("-", style="dim") if figure.peer is None else amount(figure.peer, figure.unit),
            _ratio_cell(figure.ratio),
        )
    console.print(table)


def amount(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit in {RATE, ROWS} else f"{_rounded(value, unit):,.4g}"


def machine() -> str:
    """What the figures were measured on, in a few words."""
    processor = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    codecs = "compiled codecs" if CODECS_COMPILED else "plain codecs"
    return f"{codecs}, Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} x {processor}"


def _rounded(value: float, unit: str) -> float:
    return round(value) if unit in {RATE, ROWS} else round(value, 3)


def _ratio_cell(ratio: float | None) -> Text:
    if ratio is None:
        return Text("-", style="dim")
    return Text(f"{ratio:.2f}", style="bold green" if ratio >= 1 else "bold red")
