"""What planning promises, case by case, and for any downtime."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from task_runner.model.task import CatchUp, Outcome, Overlap, Schedule, ScheduleKind, TaskState
from task_runner.planner.entries import timetable_of
from task_runner.planner.event_triggers import supersede
from task_runner.planner.ledger import TurnState
from task_runner.planner.planner import pass_over, plan, withdraw
from tests.unit.task_runner.simulated import Simulated, at, definition

SKIP, ONCE, ALL = CatchUp.SKIP, CatchUp.RUN_ONCE, CatchUp.RUN_ALL


@pytest.mark.parametrize(
    ("policy", "woken_at", "expected"),
    [
        # On time: one fire, nothing missed.
        (SKIP, 65, [("pending", "", 1)]),
        (ONCE, 65, [("pending", "", 1)]),
        (ALL, 65, [("pending", "", 1)]),
        # One nominal, past its grace.
        (SKIP, 75, [("skipped", "missed", 1)]),
        (ONCE, 75, [("pending", "", 1)]),
        (ALL, 75, [("pending", "", 1)]),
        # Five missed, none on time.
        (SKIP, 330, [("skipped", "missed", 5)]),
        (ONCE, 330, [("pending", "", 5)]),
        (ALL, 330, [("pending", "", 1)] * 5),
        # Five, of which the newest is on time.
        (SKIP, 303, [("skipped", "missed", 4), ("pending", "", 1)]),
        (ONCE, 303, [("pending", "", 5)]),
        (ALL, 303, [("pending", "", 1)] * 5),
    ],
)
def test_catch_up_after_the_runner_was_down(policy, woken_at, expected) -> None:
    task = Simulated.of(catch_up=policy)
    task.plan(at(woken_at))
    assert task.entries() == expected
    task.check_coverage()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SKIP, [("skipped", "missed", 4), ("pending", "", 1)]),
        (ONCE, [("pending", "", 5)]),
        (ALL, [("pending", "", 1)] * 5),
    ],
)
def test_catch_up_while_the_runtime_is_down(policy, expected) -> None:
    task = Simulated.of(catch_up=policy)
    for minute in range(1, 6):
        task.plan(at(60 * minute))
        task.check_coverage()
    assert task.entries() == expected
    assert task.task.missed == {SKIP: 4, ONCE: 4, ALL: 0}[policy]


def test_one_fire_is_named_by_the_latest_and_says_what_it_stands_for() -> None:
    task = Simulated.of()
    task.plan(at(330))
    (fire,) = task.rows.values()
    assert fire.fire_id == "task-00000001@20260302T090500Z"
    assert (fire.first_at, fire.last_at, fire.count, fire.caught_up) == (at(60), at(300), 5, True)
    assert task.task.missed == 4


def test_folded_fires_name_what_they_went_into_and_cover_nothing() -> None:
    task = Simulated.of()
    task.plan(at(60))
    task.plan(at(120))
    first, second = task.rows.values()
    assert (first.outcome, first.reason, first.count) == (Outcome.COALESCED, second.fire_id, 0)
    assert second.count == 2


def test_run_all_keeps_the_newest_and_records_the_cut() -> None:
    task = Simulated.of(catch_up=ALL, max_catch_up=3)
    task.plan(at(630))
    assert task.entries() == [("skipped", "max_catch_up", 7), *[("pending", "", 1)] * 3]
    assert task.task.missed == 7
    task.check_coverage()


def test_ten_missed_years_are_one_row() -> None:
    task = Simulated.of(catch_up=SKIP)
    years = 10 * 365 * 86_400
    task.plan(at(years + 30))
    assert task.entries() == [("skipped", "missed", years // 60)]


def test_what_is_older_than_the_window_is_skipped_whatever_the_policy() -> None:
    for policy, rest in ((ONCE, [("pending", "", 3)]), (ALL, [("pending", "", 1)] * 3)):
        task = Simulated.of(catch_up=policy, catch_up_window=timedelta(minutes=3))
        task.plan(at(630))
        assert task.entries() == [("skipped", "catch_up_window", 7), *rest]
        task.check_coverage()


def test_a_late_fire_leaves_the_window_while_it_waits_for_the_runtime() -> None:
    task = Simulated.of(every="1h", catch_up_window=timedelta(minutes=3))
    task.plan(at(3600))
    assert task.task.wake_at is not None
    task.plan(task.task.wake_at)
    assert task.entries() == [("skipped", "catch_up_window", 1)]


def test_a_skip_wakes_at_the_end_of_the_grace() -> None:
    task = Simulated.of(catch_up=SKIP)
    task.plan(at(60))
    assert at(70) < task.task.wake_at < at(70.001)
    task.plan(task.task.wake_at)
    assert task.entries() == [("skipped", "missed", 1)]
    assert task.task.wake_at == at(120)


def test_coalesce_folds_into_one_waiting_entry_until_the_open_fire_settles() -> None:
    task = Simulated.of()
    task.plan(at(60))
    task.send_ready(at(60))
    task.accept(at(60))
    for minute in (2, 3, 4):
        task.plan(at(60 * minute))
    assert task.entries() == [("accepted", "", 1), ("waiting", "", 3)]
    assert task.snapshot.open[-1].fire_id == ""
    task.turn(TurnState.SUCCEEDED, at(250))
    task.plan(at(250))
    fresh = task.snapshot.open[-1]
    assert (fresh.fire_id, fresh.count, fresh.ready_at) == ("task-00000001@20260302T090400Z", 3, at(250))
    assert fresh.send_by == at(260), "having waited is no miss"
    assert task.task.missed == 0
    task.check_coverage()


def test_what_is_missed_behind_a_waiting_fire_folds_into_it_under_every_policy() -> None:
    for policy in (SKIP, ONCE):
        task = Simulated.of(catch_up=policy)
        task.plan(at(60))
        task.send_ready(at(60))
        task.plan(at(120))
        task.plan(at(475))
        assert task.entries() == [("sent", "", 1), ("waiting", "", 6)]
        task.check_coverage()


def test_queue_sends_one_at_a_time_in_order_and_cuts_the_oldest() -> None:
    task = Simulated.of(overlap=Overlap.QUEUE, max_catch_up=2)
    task.plan(at(60))
    task.send_ready(at(60))
    task.accept(at(60))
    for minute in (2, 3, 4):
        task.plan(at(60 * minute))
        assert task.send_ready(at(60 * minute)) == []
    assert task.entries() == [("accepted", "", 1), ("skipped", "queue_full", 1), ("pending", "", 1), ("pending", "", 1)]
    task.turn(TurnState.SUCCEEDED, at(250))
    task.plan(at(250))
    assert [fire.nominal_at for fire in task.send_ready(at(250))] == [at(180)]
    task.check_coverage()


@pytest.mark.parametrize("state", [TurnState.INTERRUPTED, TurnState.HELD])
def test_while_the_author_is_asked_nothing_is_committed(state) -> None:
    task = Simulated.of()
    task.plan(at(60))
    task.send_ready(at(60))
    task.accept(at(60))
    task.turn(state, at(61))
    task.plan(at(200))
    assert (task.task.cursor_at, task.task.wake_at, len(task.rows)) == (at(60), None, 1)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(SKIP, [("skipped", "missed", 3)]), (ONCE, [("pending", "", 3)]), (ALL, [("pending", "", 1)] * 3)],
)
def test_a_released_fire_is_planned_with_what_was_missed(policy, expected) -> None:
    task = Simulated.of(catch_up=policy)
    task.plan(at(60))
    task.send_ready(at(60))
    task.accept(at(60))
    task.turn(TurnState.HELD, at(61))
    task.turn(TurnState.RELEASED, at(200))
    task.plan(at(200))
    assert task.entries() == expected
    task.check_coverage()


def test_a_held_fire_goes_again_as_its_next_attempt_when_nothing_newer_was_missed() -> None:
    task = Simulated.of(every="1h")
    task.plan(at(3600))
    task.send_ready(at(3600))
    task.accept(at(3600))
    task.turn(TurnState.HELD, at(3601))
    task.turn(TurnState.RELEASED, at(3900))
    task.plan(at(3900))
    (fire,) = task.send_ready(at(3900))
    assert (fire.fire_id, fire.attempt) == ("task-00000001@20260302T100000Z", 2)


def test_the_limit_on_fires_reserves_and_ends_the_task() -> None:
    task = Simulated.of(max_fires=2, overlap=Overlap.QUEUE)
    for minute in range(1, 6):
        task.plan(at(60 * minute))
        task.send_ready(at(60 * minute))
        task.accept(at(60 * minute))
        task.turn(TurnState.SUCCEEDED, at(60 * minute))
        task.plan(at(60 * minute))
    assert len(task.fired()) == 2
    assert task.task.state is TaskState.DONE
    task.check_coverage()


def test_a_withdrawn_fire_gives_its_place_back() -> None:
    task = Simulated.of(max_fires=1, catch_up=SKIP)
    task.plan(at(60))
    task.plan(at(75))
    task.plan(at(120))
    assert task.entries() == [("skipped", "missed", 1), ("pending", "", 1)]


def test_a_one_shot_is_done_and_a_bounded_task_expires() -> None:
    once = Simulated.of(schedule=Schedule(kind=ScheduleKind.AT, text="2026-03-02T09:05:00Z"))
    once.plan(at(300))
    assert once.task.state is TaskState.ACTIVE
    once.send_ready(at(300))
    once.accept(at(300))
    once.turn(TurnState.SUCCEEDED, at(301))
    once.plan(at(301))
    assert once.task.state is TaskState.DONE
    bounded = Simulated.of(end_at=at(90), catch_up=SKIP)
    bounded.plan(at(600))
    assert bounded.task.state is TaskState.EXPIRED


def test_pausing_withdraws_and_resuming_passes_over_in_one_entry() -> None:
    task = Simulated.of()
    task.plan(at(60))
    task.write(withdraw(task.snapshot, task.timetable, "paused", at(70), manual=False))
    task.write(pass_over(task.snapshot, task.timetable, "paused", at(310)))
    assert task.entries() == [("skipped", "paused", 5)]
    assert task.task.cursor_at == at(310)


def test_an_edit_supersedes_what_it_no_longer_names() -> None:
    task = Simulated.of(overlap=Overlap.QUEUE, catch_up=ALL)
    task.plan(at(180))
    hourly = timetable_of(definition(every="2m"))
    task.write(supersede(task.snapshot, hourly, at(200)))
    assert task.entries() == [("skipped", "superseded", 1), ("pending", "", 1), ("skipped", "superseded", 1)]


def test_before_an_edit_what_waits_for_the_author_is_lined_up() -> None:
    task = Simulated.of()
    task.plan(at(60))
    task.send_ready(at(60))
    task.accept(at(60))
    task.turn(TurnState.INTERRUPTED, at(61))
    task.write(plan(task.snapshot, task.timetable, at(200), halted_waits=True))
    assert task.entries() == [("interrupted", "", 1), ("waiting", "", 2)]
    task.check_coverage()


@settings(max_examples=300, deadline=None)
@given(
    policy=st.sampled_from(CatchUp),
    overlap=st.sampled_from(Overlap),
    window=st.sampled_from([None, timedelta(minutes=4)]),
    limit=st.sampled_from([None, 3]),
    jitter=st.sampled_from([0, 0, 20, 500]),
    retries=st.sampled_from([0, 0, 2]),
    steps=st.lists(
        st.tuples(st.integers(1, 400), st.lists(st.sampled_from(["send", "accept", "plan", *TurnState]), max_size=4)),
        max_size=14,
    ),
)
@example(  # a retry of a fire behind which one time was missed and the next one waits
    policy=SKIP, overlap=Overlap.COALESCE, window=None, limit=None, jitter=0, retries=2,
    steps=[(602, ["send"]), (118, ["accept", TurnState.FAILED])],
)  # fmt: skip
def test_every_nominal_time_is_covered_exactly_once_whatever_happens(
    policy, overlap, window, limit, jitter, retries, steps
) -> None:
    overlap = Overlap.QUEUE if policy is CatchUp.RUN_ALL else overlap
    task = Simulated.of(
        catch_up=policy, overlap=overlap, catch_up_window=window, max_fires=limit, max_catch_up=4,
        jitter=timedelta(seconds=jitter), retries=retries,
    )  # fmt: skip
    now, sent = 0, []
    for seconds, acts in steps:
        now += seconds
        task.plan(at(now))
        task.check_coverage()
        for act in acts:
            if act == "send":
                sent += [(fire.fire_id, fire.attempt) for fire in task.send_ready(at(now))]
            elif act == "accept":
                task.accept(at(now))
            elif act != "plan":
                task.turn(act, at(now))
                task.plan(at(now))
            task.check_coverage()
            underway = [row for row in task.rows.values() if row.outcome.value in {"sent", "accepted", "running"}]
            assert len(underway) <= 1, "one fire of a task at a time"
    assert len(sent) == len(set(sent)), "no attempt is sent twice"
    nominals = [row.nominal_at for row in sorted(task.fired(), key=lambda row: row.fired_at)]
    assert all(row.fired_at >= row.due_at >= row.nominal_at for row in task.fired())
    assert all(row.due_at < row.nominal_at + timedelta(seconds=60) for row in task.fired()), "less than the gap"
    assert all(before < after for before, after in pairwise(nominals)), "in order"
    if limit is not None:
        assert task.task.accepted <= limit
    for _ in range(3):
        task.plan(at(now))  # settling one fire may make room for another
    before = task.task, dict(task.rows)
    task.plan(at(now))
    assert (task.task, dict(task.rows)) == before, "planning again at the same time changes nothing"


def test_a_pause_with_an_end_comes_back_by_itself() -> None:
    task = Simulated.of(catch_up=ALL)
    task.task = replace(task.task, state=TaskState.PAUSED, wake_at=at(150))
    task.plan(at(149))
    assert task.entries() == []
    task.plan(at(330))
    assert task.entries() == [("skipped", "paused", 2)]
    task.plan(at(330))
    assert task.entries() == [("skipped", "paused", 2)] + [("pending", "", 1)] * 3, "what came due since was missed"
    task.check_coverage()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SKIP, [("running", "", 1), ("skipped", "missed", 3)]),
        (ONCE, [("running", "", 1), ("waiting", "", 3)]),
        (ALL, [("running", "", 1)] + [("pending", "", 1)] * 3),
    ],
)
def test_what_comes_due_while_the_runtime_cannot_be_heard_is_missed_not_overlapping(policy, expected) -> None:
    task = Simulated.of(catch_up=policy)
    task.plan(at(60))
    task.send_ready(at(60))
    task.accept(at(60))
    task.turn(TurnState.STARTED, at(60))
    for minute in (2, 3, 4):
        task.write(plan(task.snapshot, task.timetable, at(60 * minute), reachable=False))
    assert task.entries() == [("running", "", 1)], "nobody knows yet whether it still runs"
    task.plan(at(4 * 60 + 30))
    assert task.entries() == expected
    task.check_coverage()
