"""A line chart as SVG, with nothing but the standard library: one line per series, a dashed line for a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 120, 44, 46
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed")
TICKS = 8
"""At most about so many per axis."""


def line_chart(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str,
    upward: str,
    threshold: tuple[str, float] | None = None,
) -> str:
    """`series` is name -> points; `across` and `upward` name the axes."""
    points = [point for line in series.values() for point in line] or [(0.0, 0.0)]
    heights = [y for _, y in points] + ([threshold[1]] if threshold else [])
    x_scale = _scale(min(x for x, _ in points), max(x for x, _ in points), LEFT, WIDTH - RIGHT)
    y_scale = _scale(min(heights), max(heights), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    for value in _ticks(y_scale):
        y = _place(y_scale, value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#4b5563">{value:g}</text>')
    for value in _ticks(x_scale):
        x = _place(x_scale, value)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#4b5563">{value:g}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>'
        f'<text x="14" y="{TOP - 8}">{escape(upward)}</text>'
    )
    if threshold:
        y = _place(y_scale, threshold[1])
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#111827" stroke-dasharray="6 4"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4:.1f}">{escape(threshold[0])}</text>'
        )
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{_place(x_scale, x):.1f},{_place(y_scale, y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if line:
            y = _place(y_scale, line[-1][1])
            parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


class _Scale(NamedTuple):
    """From values between `low` and `high`, both multiples of `step`, to places between `start` and `end`."""

    low: float
    high: float
    step: float
    start: float
    end: float


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    span = (high - low) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= span / TICKS)
    first, last = math.floor(low / step) * step, math.ceil(high / step) * step
    return _Scale(first, last if last > first else first + step, step, start, end)


def _place(scale: _Scale, value: float) -> float:
    return scale.start + (value - scale.low) / (scale.high - scale.low) * (scale.end - scale.start)


def _ticks(scale: _Scale) -> list[float]:
    return [scale.low + scale.step * number for number in range(round((scale.high - scale.low) / scale.step) + 1)]
