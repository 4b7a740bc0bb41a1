"""Which of several outages is the cause of a missed time."""

from dataclasses import replace
from datetime import timedelta

from task_runner.model.task import Fire, Outcome, TaskId
from task_runner.planner.catch_up import MISSED
from task_runner.planner.overlap import OVERLAP
from task_runner.service.causes import cause_of
from task_runner.store.rows import Cause, Outage
from tests.unit.task_runner.simulated import at

GRACE = timedelta(seconds=10)


def outage(cause: Cause, first: int, last: int) -> Outage:
    """Return an outage between two seconds."""
    return Outage(at(first), at(last), lasts=False, cause=cause)


def missed(*seconds: int) -> Fire:
    """Return the row of history of the times that were missed."""
    return Fire(
        task_id=TaskId("task-00000001"), outcome=Outcome.SKIPPED, reason=MISSED, count=len(seconds),
        nominal_at=at(seconds[0]), due_at=at(seconds[0]), first_at=at(seconds[0]), last_at=at(seconds[-1]),
    )  # fmt: skip


def test_of_two_outages_that_end_at_once_the_cause_is_the_longer_one() -> None:
    held, silent = outage(Cause.HELD, 60, 360), outage(Cause.SILENT, 240, 360)
    assert cause_of(missed(240), GRACE, [silent, held]) == cause_of(missed(240), GRACE, [held, silent]) == str(held)


def test_a_time_that_was_skipped_by_overlap_names_the_outage_that_hid_the_end_of_the_fire_before() -> None:
    down = outage(Cause.RUNNER, 60, 180)
    overlapped = replace(missed(120), reason=OVERLAP)
    assert cause_of(overlapped, GRACE, [down]) == str(down)
    assert cause_of(replace(overlapped, first_at=at(240), last_at=at(240)), GRACE, [down]) == ""


def test_what_began_after_a_fire_was_sent_did_not_make_it_late() -> None:
    down, own_question = outage(Cause.RUNTIME, 0, 60), outage(Cause.AUTHOR, 65, 300)
    sent = replace(missed(30), outcome=Outcome.SUCCEEDED, reason="", fired_at=at(64))
    assert cause_of(sent, GRACE, [down, own_question]) == str(down)


def test_the_lost_commits_of_one_fire_explain_no_other_missed_time_of_its_task() -> None:
    lost = replace(outage(Cause.LOST, 0, 600), task_id="task-00000001")
    down = outage(Cause.RUNTIME, 100, 200)
    assert cause_of(missed(150), GRACE, [lost, down]) == str(down)
    assert cause_of(missed(300), GRACE, [lost, down]) == ""
