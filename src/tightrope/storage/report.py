"""A run as a piece of HTML for a notebook: its numbers, curves and last samples. No script, no request, all escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tightrope.records import StepRecord
from tightrope.storage.samples import StoredSample, printable

SHOWN = ("reward", "kl_seq", "beta", "entropy_tok", "response_tokens", "loss_nll", "loss_preference", "accuracy")
WIDTH, HEIGHT, SAMPLES, TEXT = 160, 40, 4, 400


def run_html(title: str, records: Sequence[StepRecord], samples: Sequence[StoredSample]) -> str:
    training = [record for record in records if "/" not in record.stage]
    tiles = [tile(name, [r.metrics.get(name, r.controls.get(name)) for r in training]) for name in SHOWN]
    steps = f"{training[-1].stage}, step {training[-1].step}" if training else "no step yet"
    rows = "".join(sample_row(sample) for sample in samples[:SAMPLES])
    table = f"<table><tr><th>prompt</th><th>response</th><th>reward</th></tr>{rows}</table>" if rows else ""
    return (
        f'<div style="font-family:sans-serif"><b>{safe(title)}</b> {safe(steps)}'
        f'<div style="display:flex;flex-wrap:wrap;gap:12px">{"".join(tiles)}</div>{table}</div>'
    )


def tile(name: str, values: Sequence[float | None]) -> str:
    known = [(step, value) for step, value in enumerate(values) if value is not None and math.isfinite(value)]
    if not known:
        return ""
    return f"<div><small>{safe(name)}</small><br><b>{known[-1][1]:.4g}</b><br>{curve(known)}</div>"


def curve(points: Sequence[tuple[int, float]]) -> str:
    low, high = min(y for _, y in points), max(y for _, y in points)
    first, last = points[0][0], points[-1][0]
    across, up = max(1, last - first), (high - low) or 1.0
    line = " ".join(
        f"{(x - first) / across * WIDTH:.1f},{HEIGHT - (y - low) / up * (HEIGHT - 2) - 1:.1f}" for x, y in points
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="#2b6cb0" stroke-width="1.5"/></svg>'
    )


def sample_row(sample: StoredSample) -> str:
    reward = "" if sample.reward is None else f"{sample.reward:.3g}"
    cells = (sample.prompt[-TEXT:], sample.response[:TEXT], reward)
    return "<tr>" + "".join(f'<td style="text-align:left">{safe(cell)}</td>' for cell in cells) + "</tr>"


def safe(text: str) -> str:
    """Model text is hostile: it becomes text and nothing else.

    >>> safe("<img src=x onerror=alert(1)>")
    '&lt;img src=x onerror=alert(1)&gt;'
    """
    return escape(printable(text), quote=True)
