"""Self-paced tasks: what arms the next wake, what ends them, and what holds them back."""

from datetime import UTC, datetime, timedelta

import pytest

from task_runner.model.task import MISASKED, Fire, FireKind, Outcome, Snapshot, Task, TaskId, TaskState, replace
from task_runner.planner import self_paced
from task_runner.planner.budgets import Ended
from task_runner.planner.entries import timetable_of
from task_runner.planner.planner import plan, withdraw
from task_runner.service.task_spec import Defaults, parse_spec, write_spec
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
ID = TaskId("loop-0123abcd")
DEFAULTS = Defaults(timezone="UTC")


def spec(**fields) -> wire.TaskSpec:
    return wire.TaskSpec(
        **({"name": "pace", "category": "loop", "channel": "c", "prompt": "p", "dynamic": True} | fields)
    )


def task(**fields) -> Task:
    definition = parse_spec(spec(**fields), DEFAULTS, NOW)
    pacing = self_paced.begun(definition, NOW)
    return Task(id=ID, definition=definition, created_at=NOW, cursor_at=NOW, wake_at=pacing.armed_at, pacing=pacing)


def woken(one: Task, at: datetime | None = None) -> tuple[Task, Fire]:
    """Let a task wake at the time for which it is armed, or at another; return it and the wake."""
    at = at or one.pacing.armed_at
    planned = plan(Snapshot(task=one), timetable_of(one.definition), at)
    (wake,) = planned.new
    return planned.task, replace(wake, outcome=Outcome.RUNNING, turn_id=f"turn-{planned.task.pacing.iteration}")


def ended(
    fire: Fire, outcome: Outcome = Outcome.SUCCEEDED, *, at: datetime, asks: int | None = None, reason: str = ""
) -> Ended:
    fire = replace(fire, outcome=outcome, reason=reason, ended_at=at)
    return Ended(fire=fire, at=at, spent=timedelta(0), tokens=0, wake_after_s=asks)


def after(one: Task, *args, seconds: float = 2.0, **kwargs) -> tuple[Task, str]:
    """Let a task wake, and its turn end some seconds later."""
    one, wake = woken(one)
    return self_paced.turns_ended(one, [ended(wake, *args, at=wake.nominal_at + timedelta(seconds=seconds), **kwargs)])


def in_s(one: Task) -> float | None:
    """When the task wakes next, in seconds after its creation."""
    at = one.pacing.armed_at
    return None if at is None else (at - NOW).total_seconds()


def test_the_first_wake_comes_25_minutes_after_the_creation_or_as_is_said() -> None:
    assert in_s(task()) == 1500
    assert in_s(task(first="0s")) == 0
    assert in_s(task(first="5m")) == 300
    assert in_s(task(first="5m", start_at="2026-03-02T10:00:00Z")) == 3600


def test_a_wake_is_a_fire_of_its_own_kind_with_its_iteration_in_its_name() -> None:
    one, wake = woken(task(first="0s"))
    assert wake.fire_id == "loop-0123abcd@20260302T090000Z~w1"
    assert (wake.kind, wake.nominal_at, wake.ready_at) == (FireKind.WAKE, NOW, NOW)
    assert (one.pacing.iteration, one.pacing.armed_at, one.wake_at) == (1, None, None)


def test_nothing_wakes_while_a_wake_is_open_whatever_is_armed() -> None:
    one, wake = woken(task(first="0s"))
    one = self_paced.rescheduled(one, NOW, timedelta(0))
    for outcome in (Outcome.PENDING, Outcome.SENT, Outcome.RUNNING, Outcome.INTERRUPTED, Outcome.HELD):
        snapshot = Snapshot(task=one, open=(replace(wake, outcome=outcome),))
        planned = plan(snapshot, timetable_of(one.definition), NOW + timedelta(hours=1))
        assert (planned.new, planned.task.wake_at) == ((), None)


def test_the_next_wake_is_the_end_of_the_turn_and_the_delay_in_whole_seconds_up() -> None:
    one, _ = after(task(first="0s"), asks=30, seconds=2.25)
    assert in_s(one) == 33
    assert "turn-1 asked to be woken 30s after its end" in one.pacing.why
    at_once, _ = after(task(first="0s"), asks=0)
    assert in_s(at_once) == 2


def test_a_missed_wake_runs_once_however_late() -> None:
    one = task(first="0s")
    late, wake = woken(one, NOW + timedelta(days=3))
    assert (wake.nominal_at, wake.ready_at, wake.send_by) == (NOW, NOW + timedelta(days=3), None)
    assert late.pacing.armed_at is None


@pytest.mark.parametrize(
    ("if_silent", "then"), [("end", (TaskState.DONE, None)), ("wait", (TaskState.ACTIVE, None)), ("10m", (TaskState.ACTIVE, 602))]
)  # fmt: skip
def test_a_turn_that_asks_for_nothing(if_silent: str, then: tuple[TaskState, float | None]) -> None:
    one, why = after(task(first="0s", if_silent=if_silent))
    assert ((one.state, in_s(one)), why) == (then, "")
    assert "asked for no" in one.pacing.why


def test_a_silent_turn_that_asks_is_not_silence() -> None:
    one, _ = after(task(first="0s", if_silent="end"), reason="silent", asks=60)
    assert (one.state, in_s(one)) == (TaskState.ACTIVE, 62)


def test_silence_leaves_what_was_rescheduled_while_the_turn_ran() -> None:
    one, wake = woken(task(first="0s", if_silent="end"))
    one = self_paced.rescheduled(one, NOW, timedelta(minutes=5))
    silent, _ = self_paced.turns_ended(one, [ended(wake, at=NOW + timedelta(seconds=9))])
    assert (silent.state, in_s(silent)) == (TaskState.ACTIVE, 300)
    asking, _ = self_paced.turns_ended(one, [ended(wake, at=NOW + timedelta(seconds=9), asks=1)])
    assert in_s(asking) == 10


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_a_failed_or_cancelled_turn_is_no_silence(outcome: Outcome) -> None:
    one, why = after(task(first="0s", if_silent="end"), outcome, asks=5)
    assert (one.state, in_s(one), why) == (TaskState.ACTIVE, 1502, "")


def test_three_failed_or_cancelled_turns_in_a_row_pause_it_and_a_good_one_begins_anew() -> None:
    one = task(first="0s", if_silent="end")
    for outcome in (Outcome.FAILED, Outcome.CANCELLED):
        one, why = after(one, outcome)
        assert why == ""
    good, _ = after(one, asks=60)
    assert good.pacing.setbacks == 0
    bad, why = after(one, Outcome.FAILED, reason="it broke")
    assert why == "3 turns in a row failed or were cancelled, the last: it broke"
    assert bad.pacing.armed_at is not None
    assert self_paced.resumed(bad).pacing.setbacks == 0


def test_how_many_failures_pause_it_can_be_said() -> None:
    one = task(first="0s", pause_after_failures=1)
    assert after(one, Outcome.FAILED)[1].startswith("1 turns in a row")


def test_a_failed_turn_that_is_tried_again_arms_nothing() -> None:
    one, wake = woken(task(first="0s"))
    again, _ = self_paced.turns_ended(one, [ended(wake, Outcome.PENDING, at=NOW)])
    assert again == one


def test_a_bounded_pause_is_no_silence() -> None:
    one = task(first="0s", if_silent="end")
    assert in_s(after(one, reason="paused")[0]) == 1502
    assert in_s(after(one, reason="paused", asks=60)[0]) == 62


def test_what_lies_in_the_inbox_of_a_terminal_asks_for_nothing_and_comes_again() -> None:
    assert in_s(after(task(first="0s", if_silent="end"), reason="delivered")[0]) == 1502
    assert in_s(after(task(first="0s", if_silent="wait"), reason="delivered")[0]) is None


def test_a_manual_run_arms_what_it_asks_for_and_its_silence_nothing() -> None:
    one = task(first="1h", if_silent="end")
    manual = Fire(
        task_id=ID, kind=FireKind.MANUAL, nominal_at=NOW, due_at=NOW, first_at=NOW, last_at=NOW, outcome=Outcome.RUNNING
    )
    assert self_paced.turns_ended(one, [ended(manual, at=NOW)])[0] == one
    assert self_paced.turns_ended(one, [ended(manual, Outcome.FAILED, at=NOW)])[0] == one
    assert in_s(self_paced.turns_ended(one, [ended(manual, at=NOW, asks=60)])[0]) == 60


def test_an_ended_task_is_armed_by_no_turn() -> None:
    one, wake = woken(task(first="0s"))
    over = replace(one, state=TaskState.DONE)
    assert self_paced.turns_ended(over, [ended(wake, at=NOW, asks=1)])[0] == over


def test_a_loop_keeps_the_pace_asked_for_until_its_budget_of_an_hour_is_used_up_and_says_so() -> None:
    one, gaps = task(first="0s", if_silent="end"), list[float]()
    for _ in range(601):
        before = in_s(one)
        one, why = after(one, asks=0, seconds=0)
        assert why == ""
        gaps.append(in_s(one) - before)
    assert gaps == [0.0] * 599 + [3600.0, 0.0], "600 an hour by default; then the next hour begins"
    slow, _ = after(task(first="0s"), asks=0)
    assert slow.pacing.put_off == ""


def test_the_author_sets_the_budget_of_an_hour_by_turns_or_by_tokens() -> None:
    one, _ = after(task(first="0s", budget={"turns_per_hour": 2}), asks=0, seconds=0)
    assert self_paced.earliest_wake(one, NOW) is None
    assert self_paced.earliest_wake(one, NOW, running=1) == NOW + timedelta(hours=1)
    one, _ = after(one, asks=60, seconds=0)
    assert (in_s(one), one.pacing.put_off) == (
        3600, "put off to 2026-03-02T10:00:00Z, as its hourly budget is used up: turns_per_hour is 2"
    )  # fmt: skip
    assert one.pacing.put_off in one.pacing.why
    assert self_paced.rescheduled(one, NOW, timedelta(0)).pacing.put_off == "", "its author says otherwise"
    later, _ = after(one, asks=7200, seconds=0)
    assert later.pacing.put_off == ""
    costly, wake = woken(task(first="0s", budget={"tokens_per_hour": 50}))
    turn = replace(ended(wake, at=NOW, asks=0), tokens=60)
    assert "tokens_per_hour is 50" in self_paced.turns_ended(costly, [turn])[0].pacing.put_off


def test_a_limit_of_an_hour_is_for_self_paced_tasks() -> None:
    fixed = wire.TaskSpec(name="a", category="c", channel="c", prompt="p", every="1m", budget={"turns_per_hour": 9})
    with pytest.raises(InvalidInput, match="only for a self-paced task"):
        parse_spec(fixed, DEFAULTS, NOW)


def test_a_wake_that_was_asked_for_with_wrong_arguments_keeps_the_loop_armed_and_says_so() -> None:
    reason = f"{MISASKED}: delay_seconds: must be a number"
    one, why = after(task(first="0s", if_silent="end"), reason=reason)
    assert (one.state, in_s(one), why) == (TaskState.ACTIVE, 1502, "")
    assert reason in one.pacing.why
    good = after(task(first="0s", if_silent="end"), reason=reason, asks=5)[0]
    assert in_s(good) == 7, "a later call was right"


def test_a_wake_beyond_a_year_is_cut_and_said_to_be() -> None:
    one, _ = after(task(first="0s"), asks=1 << 62)
    assert in_s(one) == 366 * 86400 + 2
    assert one.pacing.why.endswith("the longest there is")


def test_a_wake_beyond_its_end_ends_it() -> None:
    one, _ = after(task(first="0s", expires_at="1h"), asks=7200)
    planned = plan(Snapshot(task=one), timetable_of(one.definition), NOW + timedelta(seconds=2))
    assert planned.task.state is TaskState.EXPIRED
    assert "its end at 2026-03-02T10:00:00Z" in planned.task.reason


def test_it_is_done_after_max_fires() -> None:
    one, _ = after(task(first="0s", max_fires=1), asks=1)
    planned = plan(Snapshot(task=replace(one, accepted=1)), timetable_of(one.definition), NOW + timedelta(hours=1))
    assert (planned.task.state, planned.new) == (TaskState.DONE, ())


def test_a_paused_task_keeps_what_is_armed_and_a_withdrawn_wake_is_armed_again() -> None:
    one, wake = woken(task(first="0s"))
    snapshot = Snapshot(task=one, open=(replace(wake, outcome=Outcome.PENDING, entry_id=1),))
    withdrawn = withdraw(snapshot, timetable_of(one.definition), "paused", NOW, manual=False)
    assert [(fire.outcome, fire.reason) for fire in withdrawn.changed] == [(Outcome.SKIPPED, "paused")]
    assert (withdrawn.task.pacing.armed_at, withdrawn.task.pacing.iteration) == (NOW, 1)
    _, again = woken(withdrawn.task, NOW + timedelta(hours=1))
    assert again.fire_id == "loop-0123abcd@20260302T090000Z~w2"


def test_rescheduling_moves_the_wake_and_lets_an_ended_task_go_on() -> None:
    one = self_paced.rescheduled(task(), NOW, timedelta(seconds=300))
    assert in_s(one) == 300
    over, _ = after(task(first="0s", if_silent="end"))
    again = self_paced.rescheduled(over, NOW, timedelta(0))
    assert (again.state, again.reason, in_s(again)) == (TaskState.ACTIVE, "", 0)
    with pytest.raises(InvalidInput, match="later than the task's end"):
        self_paced.rescheduled(task(expires_at="1h"), NOW, timedelta(hours=2))
    for wrong in (timedelta(seconds=-1), timedelta(days=367)):
        with pytest.raises(InvalidInput, match="from 0 to"):
            self_paced.rescheduled(task(), NOW, wrong)


def test_an_edit_leaves_the_pace_as_it_is_unless_the_pace_is_what_changes() -> None:
    one, _ = after(task(first="0s"), asks=60)
    other = parse_spec(spec(first="0s", prompt="q"), DEFAULTS, NOW, previous=one.definition)
    assert self_paced.edited(one, other, NOW) == one.pacing
    every = parse_spec(wire.TaskSpec(name="pace", category="c", channel="c", prompt="p", every="1m"), DEFAULTS, NOW)
    fixed = replace(one, definition=every, pacing=self_paced.edited(one, every, NOW))
    assert (fixed.pacing.armed_at, fixed.pacing.iteration) == (None, 1)
    back = self_paced.edited(fixed, other, NOW)
    assert (back.armed_at, back.iteration) == (NOW, 1)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"catch_up": "run-all"}, "catch_up"), ({"catch_up": "skip"}, "catch_up"), ({"overlap": "queue"}, "overlap"),
        ({"exclude": ["2026-12-25"]}, "exclude"), ({"if_silent": "never"}, "if_silent"), ({"if_silent": "0s"}, "if_silent"),
        ({"first": "400d"}, "first"), ({"on": "turn_end"}, "on"), ({"catch_up_window": "1h"}, "catch_up_window"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_for_it_is_refused(fields: dict, where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        task(**fields)
    assert refused.value.where == where


def test_only_a_self_paced_task_has_a_first_wake() -> None:
    fixed = wire.TaskSpec(name="pace", category="c", channel="c", prompt="p", every="1m", if_silent="end")
    with pytest.raises(InvalidInput, match="only for a self-paced task"):
        parse_spec(fixed, DEFAULTS, NOW)


def test_its_definition_is_written_as_it_is_read() -> None:
    one = task(first="90s", if_silent="25m", ephemeral=True).definition
    assert parse_spec(write_spec(one), DEFAULTS, NOW, previous=one) == one
