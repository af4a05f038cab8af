"""Tables and drawings for notebooks, as HTML that needs nothing else.

Drawings are SVG in the colour of the text, so they can be read on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["draw", "figure_of", "panel", "table"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")  # safe for colour-blind readers
_WIDTH, _HEIGHT = 420, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 22, 34
_POINTS = 240  # of a line at the most; more cannot be seen

Points = Sequence[tuple[float, float]]


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
    places, values = [place for place, _ in [*seen, *bars]], [value for _, value in seen] or [0.0, 1.0]
    if not places:
        return ""
    left, right, low, high = min(places), max(places), min(values), max(values)
    low = 0.0 if 0 < low < 0.5 * high else low
    width, height, foot = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM

    def at(place: float, value: float) -> tuple[float, float]:
        return _LEFT + width * _share(place, left, right), foot - height * _share(value, low, high)

    thick = max(0.8, 0.8 * width / max(len(bars), 1))
    drawn = "".join(
        f'<rect x="{at(place, low)[0] - thick / 2:.1f}" y="{foot - height * share:.1f}" width="{thick:.1f}" '
        f'height="{height * share:.1f}"/>'
        for place, share in bars
        if share > 0
    )
    parts = [f'<g fill="{COLOURS[1]}" opacity="0.35">{drawn}</g>']
    parts.append(f'<path d="M{_LEFT},{_TOP}V{foot}H{_LEFT + width}" fill="none" stroke="currentColor" opacity="0.5"/>')
    parts += [_label(at(place, low)[0], foot + 13, figure_of(place)) for place in dict.fromkeys((left, right))]
    parts += [
        _label(_LEFT - 5, at(left, value)[1] + 4, figure_of(value), "end") for value in dict.fromkeys((low, high))
    ]
    parts.append(_label(_LEFT + width / 2, _HEIGHT - 6, x))
    parts.append(f'<g transform="translate(12,{_TOP + height / 2:.0f}) rotate(-90)">{_label(0, 0, y)}</g>')
    for number, (name, points) in enumerate(lines.items()):
        path, pen = "", "M"
        for point in points[:: max(1, math.ceil(len(points) / _POINTS))]:
            if _finite(point):
                path += f"{pen}{at(*point)[0]:.1f},{at(*point)[1]:.1f}"
            pen = "L" if _finite(point) else "M"
        colour = COLOURS[number % len(COLOURS)]
        if bands and name in bands:
            corners = [at(place, min(max(value, low), high)) for place, value in _outline(bands[name], points)]
            drawn = " ".join(f"{across:.1f},{down:.1f}" for across, down in corners)
            parts.append(f'<polygon points="{drawn}" fill="{colour}" opacity="0.2"/>')
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(lines) > 1:
            legend = _label(_LEFT + number * (_WIDTH - _LEFT) / len(lines), 11, name, "start")
            parts.append(f'<g fill="{colour}">{legend}</g>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(f"{y} against {x}")}" style="max-width:100%;height:auto;font:11px sans-serif" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def _share(value: float, low: float, high: float) -> float:
    return (value / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)  # the difference of two large numbers may overflow


def _finite(point: tuple[float, float]) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _outline(edges: Sequence[Points], line: Points) -> list[tuple[float, float]]:
    """Return the corners of the area between two edges; an infinite edge is where the line is."""
    lower, upper = (
        [edge if _finite(edge) else point for edge, point in zip(side, line, strict=True) if _finite(point)]
        for side in edges
    )
    return lower + upper[::-1]


def _label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
