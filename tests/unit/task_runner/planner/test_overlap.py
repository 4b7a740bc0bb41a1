"""What becomes of a nominal time that comes while the task's last fire is under way: skipped, or cancelling it."""

from datetime import timedelta

import pytest

from task_runner.model.task import CatchUp, Outcome, Overlap
from task_runner.planner.ledger import TurnState
from task_runner.planner.planner import Lately, pass_over, plan, withdraw
from task_runner.service.simulate import Outage, Span, simulated
from tests.unit.task_runner.simulated import T0, Simulated, at, definition

SKIP, ONCE = CatchUp.SKIP, CatchUp.RUN_ONCE


def running(overlap: Overlap, **fields) -> Simulated:
    """A task whose first fire, of 09:01, is running."""
    task = Simulated.of(overlap=overlap, **fields)
    task.plan(at(60))
    task.send_ready(at(60))
    task.accept(at(60))
    task.turn(TurnState.STARTED, at(60))
    return task


def ends(task: Simulated, seconds: float, *, heard_at: float, state: TurnState = TurnState.SUCCEEDED) -> None:
    """Its turn ends, and that is heard, maybe later."""
    task.turn(state, at(seconds))
    task.write(plan(task.snapshot, task.timetable, at(heard_at), lately=Lately(ended_at=at(seconds))))


def test_skip_records_what_comes_due_meanwhile_as_one_run_and_the_next_fires() -> None:
    task = running(Overlap.SKIP)
    for minute in (2, 3, 4):
        task.plan(at(60 * minute))
    assert task.entries() == [("running", "", 1), ("skipped", "overlap", 3)]
    assert task.task.wake_at == at(300)
    ends(task, 250, heard_at=250)
    task.plan(at(300))
    assert task.entries() == [("succeeded", "", 1), ("skipped", "overlap", 3), ("pending", "", 1)]
    assert task.task.missed == 0
    task.check_coverage()


@pytest.mark.parametrize(("policy", "rest"), [(ONCE, [("pending", "", 7)]), (SKIP, [("skipped", "missed", 7)])])
def test_what_came_due_after_the_turn_ended_was_missed_even_if_the_end_is_heard_late(policy, rest) -> None:
    task = running(Overlap.SKIP, catch_up=policy)
    task.plan(at(630))  # the runner was away for nine minutes: is that fire still under way?
    assert task.entries() == [("running", "", 1)], "nobody knows yet"
    ends(task, 200, heard_at=631)
    assert task.entries() == [("succeeded", "", 1), ("skipped", "overlap", 2), *rest]
    task.check_coverage()


def test_what_is_on_time_is_not_skipped_before_all_news_was_heard() -> None:
    task = running(Overlap.SKIP)
    task.write(plan(task.snapshot, task.timetable, at(120), lately=Lately(complete=False)))
    assert task.entries() == [("running", "", 1)]
    ends(task, 100, heard_at=121)
    assert task.entries() == [("succeeded", "", 1), ("pending", "", 1)]


def test_while_nothing_is_due_a_task_that_skips_keeps_its_wake() -> None:
    task = running(Overlap.SKIP)
    task.write(plan(task.snapshot, task.timetable, at(90), lately=Lately(complete=False)))
    assert task.task.wake_at == at(120)


@pytest.mark.parametrize("state", [TurnState.INTERRUPTED, TurnState.HELD])
def test_under_skip_too_what_comes_due_while_the_author_is_asked_is_missed(state) -> None:
    task = running(Overlap.SKIP)
    task.turn(state, at(61))
    task.plan(at(200))
    assert [outcome for outcome, _, _ in task.entries()] == [state.value]
    task.write(plan(task.snapshot, task.timetable, at(200), halted_waits=True))
    assert [outcome for outcome, _, _ in task.entries()] == [state.value, "waiting"], "before an edit it stays owed"
    task.check_coverage()


@pytest.mark.parametrize(("policy", "missed"), [(ONCE, ("waiting", "", 3)), (SKIP, ("skipped", "missed", 3))])
def test_under_skip_what_came_due_while_the_author_was_asked_is_missed_when_the_turn_continues(policy, missed) -> None:
    task = running(Overlap.SKIP, catch_up=policy)
    task.turn(TurnState.INTERRUPTED, at(61))
    task.plan(at(200))
    task.turn(TurnState.RESUMED, at(255))
    task.write(plan(task.snapshot, task.timetable, at(255), lately=Lately(resumed=True)))
    assert task.entries() == [("running", "", 1), missed]
    ends(task, 270, heard_at=270)
    assert task.entries() == [("succeeded", "", 1), ("pending", "", 3) if policy is ONCE else missed]
    task.check_coverage()


@pytest.mark.parametrize(("policy", "missed"), [(ONCE, ("pending", "", 3)), (SKIP, ("skipped", "missed", 3))])
def test_under_skip_what_came_due_while_the_author_was_asked_is_missed_if_only_the_end_is_heard(policy, missed) -> None:
    task = running(Overlap.SKIP, catch_up=policy)
    task.turn(TurnState.INTERRUPTED, at(61))
    task.turn(TurnState.SUCCEEDED, at(255))
    task.write(plan(task.snapshot, task.timetable, at(255), lately=Lately(ended_at=at(255), resumed=True)))
    assert task.entries() == [("succeeded", "", 1), missed]
    task.check_coverage()


def test_a_fire_that_is_tried_again_is_taken_in_by_the_next_under_skip_too() -> None:
    task = running(Overlap.SKIP, retries=2)
    ends(task, 70, heard_at=70, state=TurnState.FAILED)
    task.plan(at(120))
    assert task.entries() == [("pending", "", 2)]


def test_cancel_running_lines_up_one_fire_that_asks_for_the_end_of_the_one_before_it() -> None:
    task = running(Overlap.CANCEL_RUNNING)
    for minute in (2, 3):
        task.plan(at(60 * minute))
    assert task.entries() == [("running", "", 1), ("waiting", "cancel-running", 2)]
    ends(task, 185, heard_at=185, state=TurnState.CANCELLED)
    assert task.entries() == [("cancelled", "", 1), ("pending", "", 2)]
    assert task.snapshot.open[-1].ready_at == at(185)
    task.check_coverage()


def test_a_turn_that_waits_for_its_author_is_never_asked_to_end() -> None:
    task = running(Overlap.CANCEL_RUNNING)
    task.plan(at(120))
    task.turn(TurnState.INTERRUPTED, at(121))
    task.plan(at(121))
    assert task.entries() == [("interrupted", "", 1), ("waiting", "", 1)], "what lined up before does not either"
    task.turn(TurnState.RESUMED, at(400))
    task.write(plan(task.snapshot, task.timetable, at(400), lately=Lately(resumed=True)))
    assert task.entries() == [("running", "", 1), ("waiting", "", 5)], "nor what came due meanwhile, once it goes on"
    task.plan(at(420))
    assert task.entries() == [("running", "", 1), ("waiting", "cancel-running", 6)], "what comes due after that does"
    task.check_coverage()


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        # Turns take 150 s and one is due each minute.
        (
            Overlap.SKIP,
            [
                ("09:00", "09:00", "succeeded", 1), ("09:02", "-", "skipped", 2), ("09:03", "09:03", "succeeded", 1),
                ("09:05", "-", "skipped", 2), ("09:06", "09:06", "succeeded", 1),
            ],
        ),
        (
            Overlap.CANCEL_RUNNING,
            [
                ("09:00", "09:00", "cancelled", 1), ("09:01", "09:01", "cancelled", 1),
                ("09:02", "09:02", "cancelled", 1), ("09:03", "09:03", "cancelled", 1),
                ("09:04", "09:04", "cancelled", 1),
            ],
        ),
    ],
)  # fmt: skip
def test_simulated_turns_that_take_longer_than_the_gap(overlap: Overlap, expected) -> None:
    span = Span(start=T0, end=T0 + timedelta(minutes=10), turn=timedelta(seconds=150))
    rows = sorted(simulated("task-00000001", definition(overlap=overlap), span))
    shown = [
        (f"{row.nominal_at:%H:%M}", f"{row.fired_at:%H:%M}" if row.fired_at else "-", row.outcome.value, row.stands_for)
        for row in rows
    ]
    assert shown[:5] == expected


def test_simulated_skip_tells_what_overlapped_from_what_an_outage_missed() -> None:
    down = [Outage(at(90), at(600))]
    span = Span(start=T0, end=at(620), outages=down, turn=timedelta(seconds=150))
    rows = sorted(simulated("task-00000001", definition(overlap=Overlap.SKIP), span))
    assert [(row.reason, row.stands_for) for row in rows[1:]] == [("overlap", 2), ("", 8)]


def test_what_waits_and_is_withdrawn_joins_the_skips_before_it_and_waits_no_more() -> None:
    task = running(Overlap.COALESCE)
    for stop, back in ((at(130), at(200)), (at(250), at(290))):
        task.plan(stop)
        task.write(withdraw(task.snapshot, task.timetable, "paused", stop, manual=False))
        task.write(pass_over(task.snapshot, task.timetable, "paused", back))
    assert task.entries() == [("running", "", 1), ("skipped", "paused", 3)]
    assert [row.outcome for row in task.snapshot.open] == [Outcome.RUNNING]
    task.check_coverage()


@pytest.mark.parametrize(
    ("overlap", "policy"),
    [
        (Overlap.COALESCE, ONCE), (Overlap.CANCEL_RUNNING, ONCE), (Overlap.QUEUE, ONCE), (Overlap.QUEUE, CatchUp.RUN_ALL),
    ],
)  # fmt: skip
def test_what_was_missed_and_waited_beyond_its_window_does_not_go(overlap: Overlap, policy: CatchUp) -> None:
    task = running(overlap, catch_up=policy, catch_up_window=timedelta(minutes=10))
    task.plan(at(335))  # four were missed, and stand behind the turn that runs
    assert sum(count for outcome, _, count in task.entries() if outcome in {"waiting", "pending"}) == 4
    ends(task, 930, heard_at=930)
    *_, (outcome, reason, count) = [row for row in task.entries() if row[1] == "catch_up_window"]
    assert (outcome, reason, count) == ("skipped", "catch_up_window", 4)
    assert task.task.missed >= 4
    task.check_coverage()


def test_what_came_on_time_and_waited_beyond_the_window_goes() -> None:
    task = running(Overlap.COALESCE, catch_up_window=timedelta(minutes=10), end_at=at(150))
    task.plan(at(120))
    ends(task, 930, heard_at=930)
    assert task.entries()[-1] == ("pending", "", 1), "having waited is no miss"


@pytest.mark.parametrize(("policy", "count"), [(ONCE, 1), (CatchUp.RUN_ALL, 1)])
def test_a_held_fire_is_not_sent_beyond_its_window(policy: CatchUp, count: int) -> None:
    task = running(Overlap.QUEUE, every="60s", catch_up=policy, catch_up_window=timedelta(minutes=10), end_at=at(70))
    task.turn(TurnState.HELD, at(61))
    task.turn(TurnState.RELEASED, at(900))
    task.plan(at(900))
    assert task.entries() == [("skipped", "catch_up_window", count)]


def test_a_retry_behind_which_others_were_skipped_is_not_folded_across_them() -> None:
    task = running(Overlap.SKIP, retries=2)
    for minute in (2, 3):
        task.plan(at(60 * minute))
    ends(task, 185, heard_at=185, state=TurnState.FAILED)
    task.plan(at(240))
    assert task.entries() == [("skipped", "missed", 1), ("skipped", "overlap", 2), ("pending", "", 1)]
    task.check_coverage()


def test_a_held_fire_behind_which_others_gave_way_is_not_folded_across_them() -> None:
    task = running(Overlap.QUEUE, max_catch_up=1)
    for minute in (2, 3):
        task.plan(at(60 * minute))
    task.turn(TurnState.HELD, at(185))
    task.turn(TurnState.RELEASED, at(190))
    task.plan(at(240))
    full = ("skipped", "queue_full", 1)
    assert task.entries() == [("skipped", "missed", 1), full, full, ("pending", "", 1)]
    task.check_coverage()


def test_a_retry_that_is_missed_is_skipped_also_where_the_limit_on_fires_is_reached() -> None:
    task = running(Overlap.QUEUE, catch_up=SKIP, retries=2, max_fires=1)
    ends(task, 70, heard_at=70, state=TurnState.FAILED)
    assert task.snapshot.open[0].send_by is not None
    task.plan(at(130))
    assert task.task.wake_at == task.snapshot.open[0].send_by + timedelta(microseconds=1)


@pytest.mark.parametrize("coming_back", [(TurnState.FAILED,), (TurnState.HELD, TurnState.RELEASED)])
@pytest.mark.parametrize(("overlap", "waits_as"), [(Overlap.COALESCE, ""), (Overlap.CANCEL_RUNNING, "cancel-running")])
def test_a_fire_that_comes_back_is_not_folded_across_what_was_missed_after_it(overlap, waits_as, coming_back) -> None:
    task = running(overlap, catch_up=SKIP, retries=2)
    task.plan(at(182))
    assert task.entries() == [("running", "", 1), ("skipped", "missed", 1), ("waiting", waits_as, 1)]
    for state in coming_back:
        task.turn(state, at(182))
    task.plan(at(182))
    assert task.entries() == [("skipped", "missed", 1), ("skipped", "missed", 1), ("pending", "", 1)]
    assert [fire.nominal_at for fire in task.send_ready(at(182))] == [at(180)]
    task.check_coverage()


def test_a_retry_is_not_folded_across_what_was_too_old_to_catch_up() -> None:
    task = running(Overlap.COALESCE, catch_up=ONCE, catch_up_window=timedelta(minutes=4), retries=2)
    task.plan(at(602))
    assert task.entries() == [("running", "", 1), ("skipped", "catch_up_window", 5), ("waiting", "", 4)]
    ends(task, 602, heard_at=602, state=TurnState.FAILED)
    assert task.entries() == [("skipped", "missed", 1), ("skipped", "catch_up_window", 5), ("pending", "", 4)]
    task.check_coverage()


def test_a_retry_is_not_folded_across_one_that_waited_too_long_in_line() -> None:
    task = running(Overlap.COALESCE, catch_up=ONCE, catch_up_window=timedelta(minutes=4), retries=2)
    task.plan(at(182))
    assert task.entries() == [("running", "", 1), ("waiting", "", 2)]
    task.turn(TurnState.INTERRUPTED, at(183))
    task.plan(at(610))
    ends(task, 610, heard_at=610, state=TurnState.FAILED)
    assert task.entries() == [("skipped", "missed", 1), ("skipped", "catch_up_window", 5), ("pending", "", 4)]
    task.check_coverage()


@pytest.mark.parametrize("policy", [SKIP, ONCE])
def test_a_retry_is_not_folded_across_a_pause(policy: CatchUp) -> None:
    task = running(Overlap.COALESCE, catch_up=policy, retries=2)
    task.write(pass_over(task.snapshot, task.timetable, "paused", at(310)))
    ends(task, 320, heard_at=320, state=TurnState.FAILED)
    retried = ("pending", "attempt 1 failed: ", 1)
    assert task.entries() == [retried, ("skipped", "paused", 4)], "nothing newer is due: it is tried again"
    task.plan(at(362))
    assert task.entries() == [("skipped", "missed", 1), ("skipped", "paused", 4), ("pending", "", 1)]
    task.check_coverage()


def test_the_newest_skipped_entry_stays_the_newest_when_an_older_fire_is_skipped_later() -> None:
    task = running(Overlap.COALESCE, catch_up=SKIP, retries=2)
    task.write(pass_over(task.snapshot, task.timetable, "paused", at(310)))
    ends(task, 320, heard_at=320, state=TurnState.FAILED)
    task.plan(at(362))
    assert task.tail is not None
    assert (task.tail.reason, task.tail.last_at) == ("paused", at(300))
