"""Figures of several rounds, and the table made of them."""

import os
import statistics
import sys
from dataclasses import dataclass, field


@dataclass
class Figure:
    """One quantity of one system, over the rounds of a run."""

    measure: str
    subject: str
    unit: str
    values: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    ratio: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def add(self, value: float) -> None:
        self.values.append(value)
        self.loads.append(os.getloadavg()[0])
        print(f"  {self.measure}: {self.subject}: {_number(value)} {self.unit} (load {self.loads[-1]:.1f})", file=sys.stderr, flush=True)


class Report:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self._figures: dict[tuple[str, str, str], Figure] = {}

    def figure(self, measure: str, subject: str, unit: str) -> Figure:
        """The figure of that name, made when it is new. The order of the table is the order in which they were made."""
        return self._figures.setdefault((measure, subject, unit), Figure(measure, subject, unit))

    def find(self, measure: str, subject: str, unit: str) -> Figure | None:
        found = self._figures.get((measure, subject, unit))
        return found if found and found.values else None

    def subjects(self, measure: str) -> list[str]:
        """What of a measure has figures, in the order of the table."""
        return [subject for name, subject, _unit in self._figures if name == measure]

    def compare(self, measure: str, ours: str, unit: str, peer: str, *, peer_measure: str | None = None) -> None:
        """Write into our row how it stands to the peer's: our median through theirs."""
        mine, other = self.find(measure, ours, unit), self.find(peer_measure or measure, peer, unit)
        if mine and other and other.median:
            mine.ratio += f"{', ' if mine.ratio else ''}{mine.median / other.median:.2f} × {peer}"

    def skip(self, measure: str, subject: str, reason: str) -> None:
        """A row that says loudly what is missing, instead of a table that hides it."""
        self.notes.append(f"SKIPPED {measure}: {subject}: {reason}")
        print(f"  SKIPPED {measure}: {subject}: {reason}", file=sys.stderr, flush=True)

    def table(self) -> str:
        rows = [("measure", "system", "median", "range", "unit", "load", "ratio")]
        for made in self._figures.values():
            if made.values:
                span = f"{_number(min(made.values))} … {_number(max(made.values))}" if len(made.values) > 1 else "one round"
                load = f"{min(made.loads):.1f}–{max(made.loads):.1f}"
                rows.append((made.measure, made.subject, _number(made.median), span, made.unit, load, made.ratio))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.rjust(width) if column in (2, 3) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*(line.rstrip() for line in lines), "", *self.notes])


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
