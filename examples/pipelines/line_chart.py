"""A line chart: one line per series, a dashed line for a threshold, and a legend beside them that covers neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

WIDTH_INCHES, HEIGHT_INCHES = 8.0, 4.0


def line_chart(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str,
    upward: str,
    threshold: tuple[str, float] | None = None,
) -> Figure:
    """`series` is name -> points; `across` and `upward` name the axes. A line's id in an SVG is the name of its series."""
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    axes = figure.add_subplot()
    for name, line in series.items():
        axes.plot([x for x, _ in line], [y for _, y in line], label=name, linewidth=2, gid=name)
    if threshold:
        axes.axhline(threshold[1], label=threshold[0], color="black", linewidth=1, linestyle="--")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(across)
    axes.set_ylabel(upward)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """As what the name ends with says: .svg, .png, .pdf. The text of an SVG stays text."""
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)
