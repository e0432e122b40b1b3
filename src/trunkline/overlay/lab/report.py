"""What a person and a program are told: published beside ours, the deviation, and whether the interval holds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from trunkline.overlay.lab.experiment import Experiment, Judgement, Result

COLUMNS = ("case", "published", "ours", "deviation", "interval", "within")
Row: TypeAlias = tuple[str, str | None, str, str | None, str, str | None]


def as_json(judgement: Judgement) -> dict[str, str | int | float | bool | None]:
    figure = judgement.figure
    return {
        "experiment": judgement.experiment,
        "case": figure.case,
        "published": figure.published,
        "tolerance": figure.tolerance,
        "ours": judgement.ours,
        "deviation": judgement.deviation,
        "low": judgement.low,
        "high": judgement.high,
        "interval": figure.kind.value,
        "within": judgement.within,
        "seeds": judgement.seeds,
        "assumption": figure.assumption or None,
    }


def row(judgement: Judgement) -> Row:
    figure, within, deviation = judgement.figure, judgement.within, judgement.deviation
    mark = "*" if figure.assumption else ""
    return (
        figure.case + mark,
        None if figure.published is None else number(figure.published),
        number(judgement.ours),
        None if deviation is None else f"{deviation:+.1%}",
        f"{number(judgement.low)} to {number(judgement.high)}",
        None if within is None else "yes" if within else "NO",
    )


def markdown(judgements: Sequence[Judgement]) -> str:
    """The table for a document."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|--:|--:|--:|:-:|:-:|"]
    lines += ["| " + " | ".join(cell or "–" for cell in row(judgement)) + " |" for judgement in judgements]
    return "\n".join(lines)


def assumptions(judgements: Sequence[Judgement]) -> list[str]:
    """Each once, in the order of the cases."""
    return list(dict.fromkeys(judgement.figure.assumption for judgement in judgements if judgement.figure.assumption))


def number(value: float) -> str:
    """Four digits that count, and whole numbers whole."""
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"


def draw(experiment: Experiment, results: Sequence[Result], path: Path) -> None:
    """The picture of an experiment; the ending of the path says its format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(experiment.title, fontsize=11)
    axes.grid(visible=True, alpha=0.3)
    experiment.draw(axes, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date in the file: the same seeds give the same bytes.
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=100, metadata=metadata)
