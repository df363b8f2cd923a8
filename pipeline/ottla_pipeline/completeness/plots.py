"""The report's plots, as SVG: how complete each window is in each tier, and how long it took.

Called by `pages`. Draws without a display or global state; a line for each tier, over all topics.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from ottla_pipeline.completeness.verdicts import Row

POINTS_MAX: Final = 1_000


def draw(rows: Sequence[Row], window_ms: int, tiers: Sequence[str]) -> list[str]:
    """Completeness, then lag; none when there is no window yet."""
    if not rows:
        return []
    complete, lags = Figure(figsize=(9, 2.6), layout="tight"), Figure(figsize=(9, 2.6), layout="tight")
    top, bottom = complete.add_subplot(), lags.add_subplot()
    starts = sorted({row.start_ms for row in rows})[-POINTS_MAX:]
    times: Any = [datetime.fromtimestamp(start_ms / 1000, UTC) for start_ms in starts]
    for tier in tiers:
        of_tier = [row for row in rows if row.tier == tier]
        shares, delays = [], []
        for start_ms in starts:
            there = [row for row in of_tier if row.start_ms == start_ms]
            acknowledged = sum(row.acknowledged for row in there)
            held = acknowledged - sum(row.missing for row in there)
            shares.append(100 * held / acknowledged if acknowledged else float("nan"))
            done = [row.completed_ms for row in there if row.completed_ms is not None]
            slowest = max(done) if done and len(done) == len(there) else None
            delays.append(
                max(0, slowest - start_ms - window_ms) / 1000 if slowest is not None else float("nan")
            )
        top.plot(times, shares, marker=".", label=tier)
        bottom.plot(times, delays, marker=".", label=tier)
    for axes, title in ((top, "complete, %"), (bottom, "seconds from a window's end until complete")):
        axes.set_title(title, loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return [svg(complete), svg(lags)]


def svg(figure: Figure) -> str:
    """The figure as an SVG element, without the XML prologue that HTML does not take."""
    text = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # text as text: smaller, and drawn several times faster
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
