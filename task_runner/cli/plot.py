"""A simulation as a picture: fires an hour above the line, what was skipped below it, outages shaded.

Loaded only for `simulate --plot`: matplotlib is an extra, and slow to import.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from task_runner.service.simulate import Outage, Row, Span
from turnkeeper.console.unseen import plain
from turnkeeper.errors import InvalidInput

FORMATS = (".png", ".svg", ".pdf")
SKIPPED = "skipped"
OTHERS = "others"
_MOST_NAMED = 8
_HOUR = timedelta(hours=1)
_dates: Any = dates  # it declares no types


def check_file(file: Path) -> Path:
    """Return the file if a picture can go there by that name. Raises InvalidInput."""
    if file.suffix.lower() not in FORMATS:
        raise InvalidInput(
            f"{file.name[:80]!r} is not a picture's name", where="--plot", hint="end it in .png, .svg or .pdf"
        )
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(file.parent)[:200]!r}", where="--plot", hint="make it first")
    return file


def per_hour(rows: Sequence[Row], start: datetime) -> Mapping[str, Mapping[int, float]]:
    """Return how many fires each task has in which hour after `start`, and under :data:`SKIPPED` how many skips.

    The tasks with the most fires have their names, the others are one. What a run skips is spread evenly over it.
    """
    fired = [row for row in rows if row.fired_at is not None]
    named = {task for task, _ in Counter(row.task for row in fired).most_common(_MOST_NAMED)}
    counts: dict[str, Counter[int]] = {}
    for row in fired:
        task = row.task if row.task in named else OTHERS
        counts.setdefault(task, Counter())[_hour(row.fired_at or start, start)] += 1
    skips: dict[int, float] = {}
    for row in rows:
        if row.outcome.value == SKIPPED:
            for hour, share in _spread(row, start):
                skips[hour] = skips.get(hour, 0.0) + share
    return {**counts, SKIPPED: skips}


def draw(rows: Sequence[Row], span: Span, file: Path) -> None:
    """Draw what was simulated, in local time. Raises InvalidInput where the file cannot be written."""
    counts = dict(per_hour(rows, span.start))
    skips = counts.pop(SKIPPED)
    with mpl.rc_context({"svg.hashsalt": "turnkeeper", "text.parse_math": False}):
        figure = Figure(figsize=(12, 4.5), layout="constrained")
        axes = figure.add_subplot()
        hours = range(-(-(span.end - span.start) // _HOUR))
        edges = [_dates.date2num(span.start + _HOUR * hour) for hour in (*hours, hours[-1] + 1)]
        floor = [0.0] * len(hours)
        for task, count in counts.items():
            top = [below + count.get(hour, 0) for hour, below in zip(hours, floor, strict=True)]
            axes.stairs(top, edges, baseline=floor, fill=True, label=plain(task))
            floor = top
        if skips:
            axes.stairs([-skips.get(hour, 0.0) for hour in hours], edges, fill=True, color="0.6", label=SKIPPED)
        _dress(axes, span)
        try:
            figure.savefig(file, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise InvalidInput(f"cannot be written: {error.strerror}", where=f"--plot {file}") from error


def _dress(axes: Axes, span: Span) -> None:
    zone = span.start.astimezone().tzinfo
    for number, outage in enumerate(span.outages):
        label = "runner down" if number == 0 else None
        axes.axvspan(*_days(outage), color="tab:red", alpha=0.12, lw=0, label=label)
    axes.axhline(0, color="0.3", lw=0.8)
    axes.set_xlim(*_days(span))
    axes.set_ylabel("fires an hour, skips below")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    locator = _dates.AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(_dates.ConciseDateFormatter(locator, tz=zone))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _days(span: Span | Outage) -> tuple[float, float]:
    return _dates.date2num(span.start), _dates.date2num(span.end)


def _hour(at: datetime, start: datetime) -> int:
    return (at - start) // _HOUR


def _spread(row: Row, start: datetime) -> Iterator[tuple[int, float]]:
    first, last = _hour(row.first_at, start), _hour(row.nominal_at, start)
    for hour in range(first, last + 1):
        yield hour, row.stands_for / (last - first + 1)
