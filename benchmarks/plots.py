"""Bars with their spread, as SVG written by hand: a few rectangles need no library."""

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#3465a4", "#c17d11", "#75507b")
_LEFT, _TOP, _BAR, _GAP, _WIDTH, _RIGHT = 150, 46, 18, 14, 420, 90


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return groups of bars, on a logarithmic scale: medians, with a line from the least to the greatest."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    every = [value for group in groups.values() for values in group.values() for value in values]
    low, high = (math.floor(math.log10(min(every))), math.ceil(math.log10(max(every))))
    high = max(high, low + 1)

    def x(value: float) -> float:
        return _LEFT + _WIDTH * (math.log10(value) - low) / (high - low)

    parts, y = [_text(10, 20, title, bold=True)], float(_TOP)
    for place, name in enumerate(names):
        parts += [_box(_LEFT + place * 150, 28, 10, 10, place), _text(_LEFT + 15 + place * 150, 37, name)]
    for label, group in groups.items():
        parts.append(_text(10, y + _BAR, label))
        for name, values in group.items():
            middle = statistics.median(values)
            parts.append(_box(_LEFT, y, x(middle) - _LEFT, _BAR - 3, names.index(name)))
            parts.append(_line(x(min(values)), y + _BAR / 2 - 1.5, x(max(values)), y + _BAR / 2 - 1.5))
            parts.append(_text(x(max(values)) + 5, y + _BAR - 6, f"{middle:,.0f}"))
            y += _BAR
        y += _GAP
    for power in range(low, high + 1):
        parts += [
            _line(x(10**power), _TOP - 4, x(10**power), y, faint=True),
            _text(x(10**power) - 8, y + 14, _power(power)),
        ]
    parts.append(_text(_LEFT + _WIDTH + 20, y + 14, unit))
    width, height = _LEFT + _WIDTH + _RIGHT, y + 24
    style = 'font-family="sans-serif" font-size="11"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" {style}>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _power(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _box(x: float, y: float, width: float, height: float, colour: int) -> str:
    fill = COLOURS[colour % len(COLOURS)]
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width):.1f}" height="{height:.1f}" fill="{fill}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, *, faint: bool = False) -> str:
    stroke = "#cccccc" if faint else "#000000"
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"/>'


def _text(x: float, y: float, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight}>{escape(text)}</text>'
