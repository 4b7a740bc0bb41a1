"""What parts hand in, and how it is written: tables of medians with least and greatest, and ratios of pairs."""

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Row = tuple[str, ...]
FOLDER = Path(__file__).parent
RESULTS = FOLDER / "RESULTS.md"


@dataclass(frozen=True, kw_only=True)
class Section:
    """What one part found.

    Attributes:
        title: its heading.
        about: what was done, in a few sentences.
        header: of its table.
        rows: of its table.
        plots: SVG documents by the name of their file, drawn below the table.
        gates: ratios of neighbouring runs, by the gate that they are for.
        recorded: CPU in units of the calibration, by what it was spent on.
    """

    title: str
    about: str
    header: Row
    rows: Sequence[Row]
    plots: dict[str, str] = field(default_factory=dict)
    gates: dict[str, list[float]] = field(default_factory=dict)
    recorded: dict[str, float] = field(default_factory=dict)

    def text(self, *, is_result: bool = True) -> str:
        """Return it as Markdown, and write its plots beside the results.

        What is no result is marked, figure by figure, and draws no plot.
        """
        if not is_result:
            return "\n\n".join([f"## {self.title}", self.about.strip(), table(self.header, map(unusable, self.rows))])
        parts = [f"## {self.title}", self.about.strip(), table(self.header, self.rows)]
        for name, drawing in self.plots.items():
            (FOLDER / name).write_text(drawing)
            parts.append(f"![{self.title}]({name})")
        return "\n\n".join(parts)


def table(header: Row, rows: Iterable[Row]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def unusable(row: Row) -> Row:
    """Return a row whose figures say that they are no result; what stands first names them."""
    return (row[0], *(f"{cell} (no result)" if re.match(r"\d", cell) else cell for cell in row[1:]))


def spread(values: Sequence[float], digits: int = 0) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})"


def ratio(over: Sequence[float], under: Sequence[float], digits: int = 1) -> str:
    """Return the ratios of values taken in pairs."""
    return spread([a / b for a, b in zip(over, under, strict=True)], digits)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def put_in(results: str, header: str, sections: Sequence[str], order: Sequence[str]) -> str:
    """Return the results with some sections replaced or added, in the order of titles, and others as they were."""
    found = {_title(part): part.strip() for part in re.split(r"(?m)^(?=## )", results) if part.startswith("## ")}
    found |= {_title(part): part.strip() for part in sections}
    known = [found[title] for title in order if title in found]
    return "\n\n".join([header.strip(), *known]) + "\n"


def _title(section: str) -> str:
    return section.splitlines()[0].removeprefix("## ").strip()
