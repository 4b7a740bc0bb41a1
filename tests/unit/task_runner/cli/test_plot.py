"""A simulation drawn."""

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

from task_runner.model.task import CatchUp
from task_runner.service.simulate import Outage, Span, simulated
from tests.unit.task_runner.simulated import T0, definition
from turnkeeper.errors import InvalidInput

HOUR = timedelta(hours=1)
SPAN = Span(start=T0, end=T0 + 6 * HOUR, outages=[Outage(T0 + HOUR, T0 + 3 * HOUR)])
ROWS = list(simulated("task-00000001", definition(every="15m", catch_up=CatchUp.SKIP), SPAN))


@pytest.fixture(scope="module")
def plot() -> Any:
    """The module, with matplotlib: whoever only collects tests need not wait for it."""
    return import_module("task_runner.cli.plot")


def test_fires_are_counted_by_the_hour_and_skips_spread_over_the_time_they_fell_into(plot: Any) -> None:
    counts = plot.per_hour(ROWS, SPAN.start)
    assert counts["digest"] == {0: 4, 3: 4, 4: 4, 5: 4}
    assert counts[plot.SKIPPED] == {1: 4, 2: 4}


def test_the_least_busy_of_many_tasks_are_one(plot: Any) -> None:
    rows = [row._replace(task=f"task{number}") for number in range(12) for row in ROWS[: 3 + number]]
    counts = plot.per_hour(rows, SPAN.start)
    assert len(counts) == 10
    assert set(counts) >= {plot.OTHERS, plot.SKIPPED, "task11"}


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_is_there(plot: Any, tmp_path, suffix: str) -> None:
    file = tmp_path / f"week.{suffix}"
    plot.draw(ROWS, SPAN, file)
    assert file.read_bytes()[:5] in {b"<?xml", b"\x89PNG\r"}


@pytest.mark.parametrize("name", ["week.txt", "week", "nowhere/week.svg"])
def test_a_file_that_cannot_be_a_picture_is_refused_at_once(plot: Any, tmp_path, name: str) -> None:
    with pytest.raises(InvalidInput):
        plot.check_file(tmp_path / name)
