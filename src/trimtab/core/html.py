"""How values show themselves in a notebook: a small table and a small drawing, as HTML that needs nothing else.

Drawings are SVG in the text's own colour, so that they are read on light and on dark pages; no plotting library is
needed, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

__all__ = ["draw", "figure_of", "panel", "table"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")  # told apart by every kind of sight
_WIDTH, _HEIGHT = 420, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 22, 34
_POINTS = 240  # of a line at the most; more cannot be seen

Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]


def figure_of(value: float) -> str:
    """A number as a person writes it, with at most four digits that count.

    Example:
        >>> figure_of(12.0), figure_of(0.00012345), figure_of(float("inf"))
        ('12', '0.0001234', '∞')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.4g}"


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A table; numbers are written by `figure_of`, everything else as text.

    Example:
        >>> table([("steps", 100)])
        '<table><tbody><tr><td>steps</td><td>100</td></tr></tbody></table>'
    """
    above = "<thead><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr></thead>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{above}<tbody>{body}</tbody></table>"


def panel(title: str, *parts: str) -> str:
    """A title with tables and drawings side by side, below each other where there is no room."""
    inside = "".join(f"<div>{part}</div>" for part in parts if part)
    row = f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{inside}</div>'
    return f"<div><p><strong>{escape(title)}</strong></p>{row}</div>"


def draw(lines: Mapping[str, Points], x: str, y: str, bars: Points = ()) -> str:
    """Lines over one another, and bars behind them on a scale from 0 to 1, as SVG.

    Points that are not finite are left out, and a line is broken there.

    Args:
        lines: By name; at most six can be told apart.
        x: What the horizontal axis means.
        y: What the vertical axis means.
        bars: (place, share) pairs with shares in [0, 1], as high as the drawing at 1.

    Returns:
        An `<svg>` element, or "" where there is nothing to draw.
    """
    lines = {name: points for name, points in lines.items() if any(map(_finite, points))}
    seen = [point for points in lines.values() for point in points if _finite(point)]
    places = [place for place, _ in seen] + [place for place, _ in bars]
    if not places:
        return ""
    across = _scale(min(places), max(places), _LEFT, _WIDTH - _RIGHT)
    low, high = min((v for _, v in seen), default=0.0), max((v for _, v in seen), default=1.0)
    low = min(low, 0.0) if low > 0 and low < 0.5 * high else low
    up = _scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    parts = [_bars(bars, across), _axes(across, up, (min(places), max(places)), (low, high), x, y)]
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<path d="{_path(points, across, up)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(lines) > 1:
            parts.append(_label(_LEFT + number * (_WIDTH - _LEFT) / len(lines), 11, name, colour, "start"))
    words = escape(f"{y} against {x}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{words}" '
        f'style="max-width:100%;height:auto;font:11px sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


def _scale(low: float, high: float, first: float, last: float) -> Scale:
    """Where a number between `low` and `high` is between the pixels `first` and `last`."""
    span = (high / 2 - low / 2) or 1.0  # halves: the difference of two large numbers may be too large for one
    return lambda value: first + (last - first) * ((value / 2 - low / 2) / span)


def _finite(point: tuple[float, float]) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _path(points: Points, across: Scale, up: Scale) -> str:
    """Moves and lines; a new move after each point that is not finite."""
    every = max(1, math.ceil(len(points) / _POINTS))
    parts, pen = [], "M"
    for point in points[::every]:
        if _finite(point):
            parts.append(f"{pen}{across(point[0]):.1f},{up(point[1]):.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)


def _bars(bars: Points, across: Scale) -> str:
    """Bars in a pale colour, as wide as there is room for."""
    if not bars:
        return ""
    width = max(0.8, (_WIDTH - _LEFT - _RIGHT) / max(len(bars), 1) * 0.8)
    room = _HEIGHT - _TOP - _BOTTOM
    drawn = [
        f'<rect x="{across(place) - width / 2:.1f}" y="{_HEIGHT - _BOTTOM - room * share:.1f}" width="{width:.1f}" '
        f'height="{room * share:.1f}"/>'
        for place, share in bars
        if share > 0
    ]
    return f'<g fill="{COLOURS[1]}" opacity="0.35">{"".join(drawn)}</g>'


def _axes(across: Scale, up: Scale, xs: tuple[float, float], ys: tuple[float, float], x: str, y: str) -> str:
    foot = _HEIGHT - _BOTTOM
    frame = f'<path d="M{_LEFT},{_TOP}V{foot}H{_WIDTH - _RIGHT}" fill="none" stroke="currentColor" opacity="0.5"/>'
    marks = [_label(across(value), foot + 13, figure_of(value)) for value in dict.fromkeys(xs)]
    marks += [_label(_LEFT - 5, up(value) + 4, figure_of(value), anchor="end") for value in dict.fromkeys(ys)]
    turned = f'<text transform="translate(12,{(foot + _TOP) / 2:.0f}) rotate(-90)" text-anchor="middle">'
    named = _label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x) + f"{turned}{escape(y)}</text>"
    return frame + "".join(marks) + named


def _label(x: float, y: float, text: str, colour: str = "", anchor: str = "middle") -> str:
    fill = f' fill="{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{fill}>{escape(text)}</text>'


def _text(cell: object) -> str:
    return escape(figure_of(cell) if isinstance(cell, float) else str(cell))
