"""Charts as SVG files from numbers alone: panels, lines and marks with a legend, the same bytes each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]
COLOURS = ("#1f6fb2", "#d1492e", "#2e8b57", "#8a56ac", "#c98a00", "#5b6770", "#00a0b0", "#d66ba0")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 270, 52, 12, 34, 40
HEAD, LEGEND_ROW = 30, 18
TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """``style``: ``line``, ``thin`` (one seed beside a mean), ``dashed``, ``marks``. Unnamed ones have no legend."""

    points: Points
    colour: int = 0
    name: str = ""
    style: str = "line"


@dataclass(frozen=True, slots=True)
class Panel:
    """``low`` and ``high`` of the y axis where the points should not choose them; ``levels`` are horizontal lines."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    low: float | None = None
    high: float | None = None
    levels: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """From numbers to places on the paper."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        held = min(max(value, self.low), self.high)
        return self.start + (self.end - self.start) * (held - self.low) / (self.high - self.low)


def chart(title: str, panels: Sequence[Panel], columns: int = 2) -> str:
    """Panels row by row; the legend of all of them together below."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    names = {series.name: series for panel in panels for series in panel.series if series.name}
    legend, legend_rows = legend_of(list(names.values()), columns * WIDTH, HEAD + rows * HEIGHT)
    height = HEAD + rows * HEIGHT + legend_rows * LEGEND_ROW + 8
    body = [f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>']
    for number, panel in enumerate(panels):
        body += drawn(panel, (number % columns) * WIDTH, HEAD + (number // columns) * HEIGHT)
    size = f'viewBox="0 0 {columns * WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="#333">'
    paper = f'<rect width="{columns * WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, paper, *body, *legend, "</svg>"]) + "\n"


def drawn(panel: Panel, left: float, top: float) -> list[str]:
    points = [point for series in panel.series for point in series.points]
    ys = [y for _, y in points] + list(panel.levels)
    low = min(ys) if panel.low is None else panel.low
    high = max(ys) if panel.high is None else panel.high
    x = Axis(*widened(min(p[0] for p in points), max(p[0] for p in points)), left + LEFT, left + WIDTH - RIGHT)
    y = Axis(*widened(low, high), top + HEIGHT - BOTTOM, top + TOP)
    lines = [
        f'<text x="{left + LEFT}" y="{top + 20}" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="{x.end:g}" y="{top + HEIGHT - 8}" text-anchor="end">{escape(panel.x)}</text>',
        f'<text x="{x.end:g}" y="{top + 20}" text-anchor="end" fill="#777">{escape(panel.y)}</text>',
    ]
    for value in ticks(y.low, y.high):
        lines.append(f'<path d="M{x.start:.1f} {y.at(value):.1f}H{x.end:.1f}" stroke="#e4e4e4"/>')
        lines.append(f'<text x="{x.start - 5:.1f}" y="{y.at(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(x.low, x.high):
        lines.append(f'<text x="{x.at(value):.1f}" y="{y.start + 15:.1f}" text-anchor="middle">{value:g}</text>')
    for level in panel.levels:
        lines.append(f'<path d="M{x.start:.1f} {y.at(level):.1f}H{x.end:.1f}" stroke="#999" stroke-dasharray="2 3"/>')
    frame = f'width="{x.end - x.start:g}" height="{y.start - y.end:g}" fill="none" stroke="#bbb"'
    lines.append(f'<rect x="{x.start:g}" y="{y.end:g}" {frame}/>')
    return lines + [stroke(series, x, y) for series in panel.series if series.points]


def stroke(series: Series, x: Axis, y: Axis) -> str:
    colour = COLOURS[series.colour % len(COLOURS)]
    places = [f"{x.at(px):.1f},{y.at(py):.1f}" for px, py in series.points]
    if series.style == "marks":
        circles = (f'<circle cx="{a}" cy="{b}" r="3.2"/>' for a, b in (place.split(",") for place in places))
        return f'<g fill="{colour}">{"".join(circles)}</g>'
    look = {
        "line": 'stroke-width="2"',
        "thin": 'stroke-width="0.8" stroke-opacity="0.55"',
        "dashed": 'stroke-width="1.6" stroke-dasharray="6 4"',
    }[series.style]
    return f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" {look}/>'


def legend_of(series: Sequence[Series], width: float, top: float) -> tuple[list[str], int]:
    lines: list[str] = []
    x, row = 12.0, 0
    for one in series:
        needed = 34 + 6.4 * len(one.name)
        if x + needed > width and x > 12:
            x, row = 12.0, row + 1
        y = top + row * LEGEND_ROW + 12
        colour = COLOURS[one.colour % len(COLOURS)]
        if one.style == "marks":
            lines.append(f'<circle cx="{x + 10:.0f}" cy="{y - 4:.0f}" r="3.2" fill="{colour}"/>')
        else:
            dash = ' stroke-dasharray="6 4"' if one.style == "dashed" else ""
            path = f'd="M{x:.0f} {y - 4:.0f}h20" stroke="{colour}" stroke-width="2"{dash}'
            lines.append(f"<path {path}/>")
        lines.append(f'<text x="{x + 25:.0f}" y="{y:.0f}">{escape(one.name)}</text>')
        x += needed
    return lines, row + 1 if series else 0


def widened(low: float, high: float) -> tuple[float, float]:
    """Never empty; a range that nearly begins at 0 does."""
    if low == high:
        return low - 0.5, high + 0.5
    return (0.0 if 0 < low < 0.2 * high else low), high


def ticks(low: float, high: float) -> list[float]:
    """Round numbers within the range, about ``TICKS`` of them.

    >>> ticks(0.0, 9.0)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= 0.999 * rough)
    first = math.ceil(low / step - 1e-9)
    return [round(step * n, 10) + 0.0 for n in range(first, math.floor(high / step + 1e-9) + 1)]
