"""The chart of the demo: every series is drawn, and no label lies over another or over the lines."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from line_chart import line_chart, save
from matplotlib.backends.backend_agg import FigureCanvasAgg

# Lines that end close to each other and to the threshold: labels at their ends would cover each other.
SERIES = {
    "oven": [(0.0, 60.0), (10.0, 95.0), (20.0, 80.2)],
    "press": [(0.0, 40.0), (10.0, 80.0), (20.0, 80.0)],
    "pump": [(0.0, 50.0), (10.0, 55.0), (20.0, 79.8)],
}


def test_labels_lie_beside_the_lines_and_beside_each_other() -> None:
    figure = line_chart("Averages", SERIES, across="seconds", upward="°C", threshold=("alert", 80.0))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (legend,) = figure.legends
    labels = {text.get_text(): text.get_window_extent() for text in legend.get_texts()}
    assert set(labels) == {*SERIES, "alert"}
    assert not any(one.overlaps(other) for one, other in combinations(labels.values(), 2))
    (axes,) = figure.axes
    assert not axes.get_window_extent().overlaps(legend.get_window_extent())


@pytest.mark.parametrize(("name", "begins"), [("chart.svg", b"<?xml"), ("chart.png", b"\x89PNG")])
def test_a_chart_is_saved_as_its_name_says(tmp_path: Path, name: str, begins: bytes) -> None:
    save(line_chart("Averages", SERIES, across="seconds", upward="°C"), tmp_path / name)
    saved = (tmp_path / name).read_bytes()
    assert saved.startswith(begins)
    if name.endswith(".svg"):
        assert all(f'<g id="{each}">'.encode() in saved for each in SERIES)
        assert b">oven</text>" in saved


def test_nothing_to_draw_is_an_empty_chart(tmp_path: Path) -> None:
    save(line_chart("Averages", {}, across="seconds", upward="°C"), tmp_path / "empty.svg")
