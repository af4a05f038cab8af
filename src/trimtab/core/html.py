"""Tables and drawings for notebooks, as HTML that needs nothing else.

Drawings are SVG in the colour of the text, so they can be read on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

__all__ = ["draw", "figure_of", "panel", "table"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")  # safe for colour-blind readers
_WIDTH, _HEIGHT = 420, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 22, 34
_POINTS = 240  # of a line at the most; more cannot be seen

Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]


def figure_of(value: float) -> str:
    """Write a number with at most four significant digits.

    Example:
        >>> figure_of(12.0), figure_of(0.00012345), figure_of(float("inf"))
        ('12', '0.0001234', '∞')
    """
    if math.isnan(value):
        return "n/a"
    return f"{value:.4g}".replace("inf", "∞")


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return a table; floats are written by `figure_of`, everything else as text.

    Example:
        >>> table([("steps", 100)])
        '<table><tbody><tr><td>steps</td><td>100</td></tr></tbody></table>'
    """
    above = "<thead><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr></thead>" if head else ""
    texts = [[escape(figure_of(cell) if isinstance(cell, float) else str(cell)) for cell in row] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{text}</td>" for text in row) + "</tr>" for row in texts)
    return f"<table>{above}<tbody>{body}</tbody></table>"


def panel(title: str, *parts: str) -> str:
    """Return a title with tables and drawings side by side, or below each other if the page is narrow."""
    inside = "".join(f"<div>{part}</div>" for part in parts if part)
    row = f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{inside}</div>'
    return f"<div><p><strong>{escape(title)}</strong></p>{row}</div>"


def draw(
    lines: Mapping[str, Points], x: str, y: str, bars: Points = (), bands: Mapping[str, Sequence[Points]] | None = None
) -> str:
    """Draw lines, with bars on a scale from 0 to 1 behind them, as SVG. A line is broken at points that are not finite.

    Args:
        lines: By name; at most six can be distinguished.
        x: The name of the horizontal axis.
        y: The name of the vertical axis.
        bars: (place, share) pairs with shares in [0, 1].
        bands: By the name of a line, the lower and the upper edge of an interval around it.

    Returns:
        An `<svg>` element, or "" if there is nothing to draw.
    """
    lines = {name: points for name, points in lines.items() if any(map(_finite, points))}
    seen = [point for points in lines.values() for point in points if _finite(point)]
    places = [place for place, _ in [*seen, *bars]]
    if not places:
        return ""
    low, high = min((v for _, v in seen), default=0.0), max((v for _, v in seen), default=1.0)
    low = 0.0 if 0 < low < 0.5 * high else low
    across = _scale(min(places), max(places), _LEFT, _WIDTH - _RIGHT)
    up = _scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    parts = [_bars(bars, across), _axes(across, up, (min(places), max(places)), (low, high), x, y)]
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += [_band(edges, points, across, up, colour) for edges in [(bands or {}).get(name)] if edges]
        parts.append(f'<path d="{_path(points, across, up)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(lines) > 1:
            parts.append(_label(_LEFT + number * (_WIDTH - _LEFT) / len(lines), 11, name, colour, "start"))
    words = escape(f"{y} against {x}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{words}" '
        f'style="max-width:100%;height:auto;font:11px sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


def _scale(low: float, high: float, first: float, last: float) -> Scale:
    """Return the map from numbers between `low` and `high` to pixels between `first` and `last`."""
    span = (high / 2 - low / 2) or 1.0  # halves: the difference of two large numbers may overflow
    return lambda value: first + (last - first) * ((value / 2 - low / 2) / span)


def _finite(point: tuple[float, float]) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _path(points: Points, across: Scale, up: Scale) -> str:
    parts, pen = [], "M"
    for point in points[:: max(1, math.ceil(len(points) / _POINTS))]:
        if _finite(point):
            parts.append(f"{pen}{across(point[0]):.1f},{up(point[1]):.1f}")
        pen = "L" if _finite(point) else "M"
    return "".join(parts)


def _band(edges: Sequence[Points], line: Points, across: Scale, up: Scale, colour: str) -> str:
    """Return the area between two edges, within the plot; an infinite edge is where the line is."""
    sides = [
        [edge if _finite(edge) else point for edge, point in zip(side, line, strict=True) if _finite(point)]
        for side in edges
    ]
    places = [f"{across(x):.1f},{min(max(up(y), _TOP), _HEIGHT - _BOTTOM):.1f}" for x, y in sides[0] + sides[1][::-1]]
    return f'<polygon points="{" ".join(places)}" fill="{colour}" opacity="0.2"/>'


def _bars(bars: Points, across: Scale) -> str:
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
