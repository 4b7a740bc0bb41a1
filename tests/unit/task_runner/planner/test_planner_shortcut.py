"""The short way to the commonest plan: whatever it plans, the long way plans too."""

from datetime import timedelta

import pytest

from task_runner.model.task import CatchUp, Overlap, Schedule, ScheduleKind
from task_runner.planner import planner
from task_runner.planner.planner import plan_alone
from tests.unit.task_runner.simulated import Simulated, at

ONCE = Schedule(kind=ScheduleKind.AT, text="2026-03-02T09:01:00Z")


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_what_the_short_way_plans_the_long_way_plans_too(catch_up: CatchUp, overlap: Overlap) -> None:
    planned = 0
    for grace in (0, 10, 90):
        for more in ({}, {"schedule": ONCE}, {"end_at": at(150)}, {"retries": 2}):
            task = Simulated.of(catch_up=catch_up, overlap=overlap, **(more | {"grace": timedelta(seconds=grace)}))
            for seconds in (59.999999, 60, 60.000001, 69, 70, 70.000001, 119.999999, 120, 121, 150, 151, 180):
                now, snapshot = at(seconds), task.snapshot
                short = plan_alone(snapshot, task.timetable, now)
                flags = {"skips": overlap is Overlap.SKIP, "asks": overlap is Overlap.CANCEL_RUNNING}
                long = planner._plan_active(snapshot, task.timetable, now, busy=False, ended_at=None, **flags)
                assert short is None or short == long, (grace, more, seconds)
                planned += short is not None
    assert planned > 30


def test_the_short_way_leaves_to_the_long_one_what_more_is_to_be_said_of() -> None:
    for more in ({"jitter": timedelta(seconds=5)}, {"max_fires": 3}, {"catch_up_window": timedelta(minutes=5)}):
        task = Simulated.of(**more)
        assert plan_alone(task.snapshot, task.timetable, at(60)) is None
    task = Simulated.of()
    assert plan_alone(task.snapshot, task.timetable, at(60)) is not None
    task.plan(at(60))
    assert plan_alone(task.snapshot, task.timetable, at(120)) is None, "one is open"
