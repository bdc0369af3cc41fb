"""Curves as an SVG file, with nothing but text: one panel a metric, its range at the side, steps along the bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 760, 110, 90, 16, 34, 26
MOST_POINTS = 400
"""More would not be seen, and make the file large."""


def svg_of(title: str, panels: Mapping[str, Points]) -> str:
    """``panels``: title with unit → (step, value) in order."""
    height = TOP + len(panels) * (PANEL + GAP) + 16
    last = max(points[-1][0] for points in panels.values())
    body = [f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>']
    for row, (name, points) in enumerate(panels.items()):
        body.append(panel(name, points, TOP + row * (PANEL + GAP), last))
    body.append(f'<text x="{WIDTH - RIGHT}" y="{height - 8}" text-anchor="end">step {last:g}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
    paper = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return f'{head} font-size="11" fill="#333">\n{paper}\n' + "\n".join(body) + "\n</svg>\n"


def panel(name: str, points: Points, top: float, last: float) -> str:
    values = [value for _, value in points]
    low, high = min(values), max(values)
    span = high - low or 1.0
    wide = WIDTH - LEFT - RIGHT

    def place(step: float, value: float) -> str:
        return f"{LEFT + wide * step / (last or 1):.1f},{top + 16 + (PANEL - 16) * (1 - (value - low) / span):.1f}"

    line = " ".join(place(step, value) for step, value in thinned(points))
    return "\n".join(
        [
            f'<text x="{LEFT}" y="{top + 10:.0f}">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top + 16}" width="{wide}" height="{PANEL - 16}" fill="none" stroke="#ccc"/>',
            f'<text x="{LEFT - 6}" y="{top + 26}" text-anchor="end">{high:.4g}</text>',
            f'<text x="{LEFT - 6}" y="{top + PANEL}" text-anchor="end">{low:.4g}</text>',
            f'<polyline points="{line}" fill="none" stroke="#1f6fb2" stroke-width="1.2"/>',
        ]
    )


def thinned(points: Points) -> list[tuple[float, float]]:
    """Means over neighbours, at most ``MOST_POINTS``.

    >>> thinned([(0, 1.0), (1, 3.0)])
    [(0, 1.0), (1, 3.0)]
    """
    width = -(-len(points) // MOST_POINTS)
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
