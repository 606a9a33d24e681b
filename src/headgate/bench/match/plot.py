"""The curve of `bench match` as SVG: µs per event over the number of subscriptions, both axes by
powers of ten."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10

from headgate.bench.match.main import SIZES
from headgate.bench.match.workloads import WORKLOADS

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 90, 40, 50
COLOURS = {"equality": "#1b6ca8", "range": "#c0392b", "prefix": "#27864b", "mixed": "#7d3c98"}
US_MIN, US_MAX = 1.0, 100.0


def svg(figures: Mapping[str, float]) -> str:
    """Workloads and sizes that weren't measured are left out."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        "<style>text { font-family: sans-serif }</style>",
        _text(WIDTH / 2, 22, "µs per event on one core, by number of subscriptions", "middle"),
    ]
    for us in (1, 2, 5, 10, 20, 50, 100):
        parts.append(_line(LEFT, _y(us), WIDTH - RIGHT, _y(us), "#dddddd"))
        parts.append(_text(LEFT - 8, _y(us) + 4, f"{us} µs", "end"))
    for name, size in SIZES.items():
        parts.append(_line(_x(size), TOP, _x(size), HEIGHT - BOTTOM, "#dddddd"))
        parts.append(_text(_x(size), HEIGHT - BOTTOM + 20, name.upper(), "middle"))
    for workload in WORKLOADS:
        points = [
            (_x(size), _y(figures[key]))
            for name, size in SIZES.items()
            if (key := f"{workload}_{name}_us_per_event") in figures
        ]
        if points:
            parts += _curve(workload, points)
    return "\n".join([*parts, "</svg>", ""])


def _curve(workload: str, points: list[tuple[float, float]]) -> list[str]:
    colour = COLOURS[workload]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    x, y = points[-1]
    label = _text(x + 10, y + 4, workload, "start", colour)
    return [f'<polyline points="{path}" fill="none" stroke="{colour}"/>', *dots, label]


def _x(size: float) -> float:
    low, high = log10(min(SIZES.values())), log10(max(SIZES.values()))
    return LEFT + (log10(size) - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def _y(us: float) -> float:
    share = (log10(min(max(us, US_MIN), US_MAX)) - log10(US_MIN)) / (log10(US_MAX) - log10(US_MIN))
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
