"""Jitter puts a fire off by an amount that its task and nominal time decide."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from task_runner.model.task import CatchUp, Outcome, Overlap
from task_runner.planner.entries import due_of
from task_runner.planner.ledger import TurnState
from task_runner.timetable import parse_every
from tests.unit.task_runner.simulated import T0, Simulated, at

HOUR = timedelta(hours=1)


@given(gap=st.integers(1, 600), jitter=st.integers(1, 1200), number=st.integers(0, 10_000))
def test_it_is_the_same_each_time_and_less_than_the_gap(gap: int, jitter: int, number: int) -> None:
    table = parse_every(f"{gap}s", anchor=T0)
    nominal = at(gap * number)
    due = due_of("task-00000001", table, timedelta(seconds=jitter))(nominal)
    assert nominal <= due <= nominal + timedelta(seconds=jitter)
    assert due < nominal + timedelta(seconds=gap)
    assert due == due_of("task-00000001", table, timedelta(seconds=jitter))(nominal)


def test_tasks_that_share_a_nominal_time_are_spread() -> None:
    table = parse_every("1h", anchor=T0)
    dues = {due_of(f"task-{number:08}", table, timedelta(seconds=30))(T0) for number in range(100)}
    assert len(dues) > 95
    assert max(dues) - min(dues) > timedelta(seconds=20)


def test_nothing_is_sent_before_it_is_due_and_the_grace_counts_from_then() -> None:
    task = Simulated.of(every="1h", jitter=timedelta(minutes=30), catch_up=CatchUp.SKIP)
    task.plan(T0 + HOUR)
    (fire,) = task.rows.values()
    assert (fire.nominal_at, fire.outcome) == (T0 + HOUR, Outcome.PENDING)
    assert timedelta(seconds=10) < fire.due_at - fire.nominal_at < timedelta(minutes=30), "a seed worth testing"
    assert fire.ready_at == fire.due_at
    assert fire.send_by == fire.due_at + timedelta(seconds=10)
    assert task.send_ready(fire.due_at - timedelta(milliseconds=1)) == []
    task.plan(fire.due_at)
    assert task.entries() == [("pending", "", 1)], "late for its nominal time, and on time"
    assert len(task.send_ready(fire.due_at)) == 1


def test_a_runner_that_comes_back_before_a_fire_is_due_is_on_time() -> None:
    for woken, expected in ((-1, "pending"), (11, "skipped")):
        task = Simulated.of(every="1h", jitter=timedelta(minutes=30), catch_up=CatchUp.SKIP)
        due = due_of(task.task.id, task.timetable, timedelta(minutes=30))(T0 + HOUR)
        task.plan(due + timedelta(seconds=woken))
        assert [row.outcome.value for row in task.rows.values()] == [expected]


def test_what_waited_for_overlap_is_not_sent_before_it_is_due_either() -> None:
    for overlap in set(Overlap) - {Overlap.SKIP}:
        task = Simulated.of(every="1h", jitter=timedelta(minutes=30), overlap=overlap)
        task.plan(T0 + HOUR)
        task.send_ready(T0 + 1.9 * HOUR)
        task.plan(T0 + 2 * HOUR)
        assert len(task.snapshot.open) == 2
        task.accept(T0 + 2 * HOUR)
        task.turn(TurnState.SUCCEEDED, T0 + 2 * HOUR)
        task.plan(T0 + 2 * HOUR)
        (fire,) = task.snapshot.open
        assert fire.ready_at == fire.due_at > T0 + 2 * HOUR
        assert fire.send_by >= fire.due_at
