"""Charts as SVG, made on the server: sparklines, lines over time, bars. Pure.

Colours come from classes of the style sheet, so that they follow light and dark mode; there is no inline
style. Each chart has a text alternative with its newest value and its maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from ottla_console.views import formats

Values = Sequence[float | None]
_PAD: Final = 2.0


def sparkline(
    values: Values,
    label: str,
    *,
    text: Callable[[float | None], str] = formats.compact,
    width: int = 120,
    height: int = 28,
) -> Markup:
    """A small line with the area below it, from 0 to the maximum."""
    return _chart(values, label, text, width, height, "spark")


def line(
    values: Values,
    label: str,
    *,
    text: Callable[[float | None], str] = formats.compact,
    width: int = 640,
    height: int = 160,
) -> Markup:
    """A line over time with a scale: 0, half and the maximum at three lines."""
    return _chart(values, label, text, width, height, "line", scale=True)


def _chart(
    values: Values,
    label: str,
    text: Callable[[float | None], str],
    width: int,
    height: int,
    kind: str,
    *,
    scale: bool = False,
) -> Markup:
    known = [value for value in values if value is not None]
    top = nice(max(known, default=0.0), binary=text is formats.byte_rate)
    newest = next((value for value in reversed(values) if value is not None), None)
    description = (
        f"{label}: now {text(newest)}, at most {text(max(known))}" if known else f"{label}: not known yet"
    )
    parts = [Markup("<title>{}</title>").format(description)]
    labels = []  # above the line
    if scale and not known:
        parts.append(Markup('<text class="scale" x="0" y="13">known after two readings</text>'))
    elif scale:
        for share in (0.0, 0.5, 1.0) if any(known) else (0.0,):
            y = _y(top * share, top, height)
            parts.append(
                Markup('<line class="grid" x1="0" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(width, y, y)
            )
            if share:
                labels.append(
                    Markup('<text class="scale" x="0" y="{:.1f}">{}</text>').format(y + 12, text(top * share))
                )
    for run in _runs(values, width, height, top):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
        first, last = run[0][0], run[-1][0]
        area = f"{first:.1f},{height - _PAD:.1f} {points} {last:.1f},{height - _PAD:.1f}"
        parts.append(
            Markup('<polygon class="area" points="{}"/><polyline class="stroke" points="{}"/>').format(
                area, points
            )
        )
    return _svg(f"chart {kind}", width, height, description, Markup("").join(parts + labels))


def _svg(kind: str, width: int, height: int, description: str, content: Markup) -> Markup:
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(kind, width, height, width, height, description, content)


def _runs(values: Values, width: int, height: int, top: float) -> list[list[tuple[float, float]]]:
    """Pieces of the line without gaps; the newest value is at the right edge."""
    step = (width - 2 * _PAD) / max(len(values) - 1, 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((_PAD + index * step, _y(value, top, height)))
    return [run if len(run) > 1 else [(run[0][0] - _PAD, run[0][1]), run[0]] for run in runs if run]


def _y(value: float, top: float, height: int) -> float:
    return height - _PAD - (height - 2 * _PAD) * (value / top if top else 0.0)


def nice(value: float, *, binary: bool = False) -> float:
    """The end of a scale: 1, 2 or 5 times a power of ten, at least `value`; `binary`: of KiB, MiB, …"""
    if value <= 0:
        return 1.0
    if binary and value > 1000:
        return 1024 * nice(value / 1024, binary=True)
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next((factor * power for factor in (1, 2, 5, 10) if factor * power >= value), 10 * power)


def bar(
    share: float | None,
    label: str,
    *,
    warn: float = 0.8,
    alarm: float = 0.9,
    width: int = 120,
    height: int = 8,
) -> Markup:
    """A filled part of a whole, 0 to 1, coloured by thresholds; an empty one for what is not known."""
    kept = 0.0 if share is None else min(max(share, 0.0), 1.0)
    level = "alarm" if kept >= alarm else "warn" if kept >= warn else "ok"
    content = Markup(
        '<rect class="track" width="{}" height="{}" rx="2"/>'
        '<rect class="fill" width="{:.1f}" height="{}" rx="2"/>'
    ).format(width, height, kept * width, height)
    return _svg(f"bar {level}", width, height, label, content)
