"""Stacked bars as inline SVG, drawn on the server: no script, no inline style, sharp at any width (the axis' words are HTML beside it)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HEIGHT = 100.0
_GAP = 0.22  # of a bar's place
_LEAST = 1.2  # so that one job among thousands is seen


@dataclass(frozen=True)
class Part:
    """A part of a bar, from the bottom up. `kind` is its colour (backoffice.css)."""

    kind: str
    label: Any
    value: float


@dataclass(frozen=True)
class Bar:
    title: str
    parts: Sequence[Part]
    said: str  # its value in words
    url: str = ""


@dataclass(frozen=True)
class Rect:
    kind: str
    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True)
class DrawnBar:
    title: str
    said: str
    url: str
    x: str
    width: str
    rects: list[Rect]


@dataclass(frozen=True)
class Chart:
    title: Any
    bars: list[DrawnBar]
    width: int
    top: str  # what the upper line stands for
    legend: list[tuple[str, Any]]
    axis: list[str]  # some titles, evenly apart
    header: tuple[Any, Any]  # of the table of the same numbers


def draw(title: Any, bars: Sequence[Bar], *, top: Any, axis: list[str], header: tuple[Any, Any]) -> Chart:
    """`top` says the greatest value in words, given the number."""
    greatest = max((sum(part.value for part in bar.parts) for bar in bars), default=0)
    legend = {part.kind: part.label for bar in bars for part in bar.parts}
    return Chart(
        title=title,
        bars=[_draw_bar(index, bar, greatest) for index, bar in enumerate(bars)],
        width=len(bars),
        top=top(greatest),
        legend=list(legend.items()) if len(legend) > 1 else [],
        axis=axis,
        header=header,
    )


def _draw_bar(index: int, bar: Bar, greatest: float) -> DrawnBar:
    x, width, bottom = index + _GAP / 2, 1 - _GAP, _HEIGHT
    rects = []
    for part in bar.parts:
        if part.value > 0:
            height = max(part.value / greatest * _HEIGHT, _LEAST)
            bottom = max(bottom - height, 0)
            rects.append(Rect(part.kind, f"{x:.2f}", f"{bottom:.2f}", f"{width:.2f}", f"{height:.2f}"))
    return DrawnBar(bar.title, bar.said, bar.url, str(index), "1", rects)
