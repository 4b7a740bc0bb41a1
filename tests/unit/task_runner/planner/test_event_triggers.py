"""What becomes of the events that a task is triggered by: the rules, one by one."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from task_runner.model.events import Event
from task_runner.model.task import (
    EventTrigger,
    Fire,
    FireKind,
    Outcome,
    Overlap,
    Schedule,
    ScheduleKind,
    Task,
    TaskId,
    TaskState,
)
from task_runner.planner.event_triggers import LONGEST_CHAIN, MOST_AN_HOUR, Decided, Standing, Trigger, decide
from tests.unit.task_runner.simulated import T0, at, definition

TASK = "task-00000001"


def task(*, debounce: float = 0, hybrid: bool = False, state: TaskState = TaskState.ACTIVE, **fields) -> Task:
    schedule = {} if hybrid else {"schedule": Schedule(kind=ScheduleKind.ON, text="")}
    on = EventTrigger(event="demo", debounce=timedelta(seconds=debounce), since=T0)
    declared = replace(definition(), on=on, **schedule, **fields)
    return Task(id=TaskId(TASK), definition=declared, state=state, created_at=T0, cursor_at=T0)


def trigger(seconds: float, *chain: str, name: str = "demo") -> Trigger:
    return Trigger(event=Event(name=name, id=f"e{seconds}", at=at(seconds)), chain=chain)


def came(decided: Decided) -> list[tuple[str, str, int]]:
    """(outcome, reason or the fire's event, count) of fires, then of records."""
    fires = [(fire.outcome.value, fire.reason or fire.fire_id.rpartition("~")[2], 1) for fire, _ in decided.fires]
    return fires + [(rec.outcome.value, rec.reason.rpartition("~")[2], rec.count) for rec, _ in decided.records]


def after(one: Task, decided: Decided, *, outcome: Outcome = Outcome.PENDING) -> Standing:
    """How the task stands afterwards, its newest fire having come so far."""
    fire, by = decided.fires[-1]
    newest = replace(fire, entry_id=1, outcome=outcome)
    records = tuple(replace(record, entry_id=2 + n) for n, (record, _) in enumerate(decided.records))
    opened = () if outcome in {Outcome.SUCCEEDED, Outcome.SKIPPED} else (newest,)
    return Standing(task=one, open=opened, newest=newest, opened_at=by.event.at, records=records, hourly=(by.event.at,))


def fire_of(kind: FireKind, outcome: Outcome, *, ready_at: datetime | None = None) -> Fire:
    return Fire(
        task_id=TaskId(TASK), kind=kind, outcome=outcome, nominal_at=T0, due_at=T0, first_at=T0, last_at=T0,
        ready_at=ready_at, entry_id=9, fire_id="x",
    )  # fmt: skip


def test_an_event_fires_at_once_under_its_own_id() -> None:
    decided = decide(Standing(task=task()), [trigger(5.5)], at(6))
    ((fire, by),) = decided.fires
    assert fire.fire_id == f"{TASK}@20260302T090005Z~ee5.5"
    assert (fire.kind, fire.nominal_at, fire.due_at, fire.ready_at) == (FireKind.EVENT, at(5), at(5.5), at(6))
    assert by.event.id == "e5.5"


def test_a_debounced_event_fires_when_its_window_closes_and_others_go_into_it() -> None:
    decided = decide(Standing(task=task(debounce=30)), [trigger(0), trigger(10), trigger(29.9)], at(29.9))
    assert came(decided) == [("pending", "ee0", 1), ("coalesced", "ee0", 2)]
    assert decided.fires[0][0].ready_at == at(30)


def test_the_window_never_extends() -> None:
    one = task(debounce=30, overlap=Overlap.QUEUE)
    decided = decide(Standing(task=one), [trigger(0), trigger(29), trigger(30), trigger(59), trigger(60)], at(60))
    assert came(decided) == [
        ("pending", "ee0", 1), ("pending", "ee30", 1), ("pending", "ee60", 1), ("coalesced", "ee0", 1),
        ("coalesced", "ee30", 1),
    ]  # fmt: skip


def test_a_hybrid_fires_when_its_window_opens_and_others_go_into_it_though_it_was_sent() -> None:
    one = task(debounce=30, hybrid=True)
    first = decide(Standing(task=one), [trigger(0)], at(0))
    assert first.fires[0][0].ready_at == at(0)
    done = after(one, first, outcome=Outcome.SUCCEEDED)
    assert came(decide(done, [trigger(29)], at(29))) == [("coalesced", "ee0", 1)]
    assert came(decide(done, [trigger(30)], at(30))) == [("pending", "ee30", 1)]


def test_a_clock_that_was_set_back_opens_a_window_of_its_own() -> None:
    one = task(debounce=30)
    done = after(one, decide(Standing(task=one), [trigger(3600)], at(3600)), outcome=Outcome.SUCCEEDED)
    assert came(decide(done, [trigger(0)], at(0))) == [("pending", "ee0", 1)]


def test_what_comes_while_a_fire_has_not_been_sent_goes_into_it() -> None:
    one = task()
    standing = after(one, decide(Standing(task=one), [trigger(0)], at(0)))
    assert came(decide(standing, [trigger(1), trigger(500)], at(500))) == [("coalesced", "ee0", 2)]


@pytest.mark.parametrize("outcome", [Outcome.SENT, Outcome.ACCEPTED, Outcome.RUNNING, Outcome.INTERRUPTED])
def test_what_comes_during_a_turn_is_one_fire_that_stands_behind_it(outcome: Outcome) -> None:
    one = task()
    standing = after(one, decide(Standing(task=one), [trigger(0)], at(0)), outcome=outcome)
    decided = decide(standing, [trigger(1), trigger(2)], at(2))
    assert came(decided) == [("pending", "ee1", 1), ("coalesced", "ee1", 1)]
    assert decided.fires[0][0].ready_at is None


def test_what_comes_while_a_fire_is_held_goes_into_it() -> None:
    one = task()
    standing = after(one, decide(Standing(task=one), [trigger(0)], at(0)), outcome=Outcome.HELD)
    assert came(decide(standing, [trigger(1)], at(1))) == [("coalesced", "ee0", 1)]


@pytest.mark.parametrize(
    ("kind", "outcome", "ready", "waits"),
    [
        (FireKind.SCHEDULED, Outcome.RUNNING, None, True),
        (FireKind.SCHEDULED, Outcome.HELD, None, True),
        (FireKind.SCHEDULED, Outcome.PENDING, T0, True),
        (FireKind.SCHEDULED, Outcome.WAITING, None, False),
        (FireKind.MANUAL, Outcome.RUNNING, None, False),
        (FireKind.BACKFILL, Outcome.PENDING, T0, False),
    ],
)
def test_it_stands_behind_what_goes_before_it_and_nothing_beside_it(kind, outcome, ready, waits) -> None:
    standing = Standing(task=task(hybrid=True), open=(fire_of(kind, outcome, ready_at=ready),))
    decided = decide(standing, [trigger(1)], at(1))
    assert (decided.fires[0][0].ready_at is None) == waits


def test_overlap_queue_lines_up_every_event_up_to_the_most() -> None:
    one = task(overlap=Overlap.QUEUE, max_catch_up=2)
    decided = decide(Standing(task=one), [trigger(n) for n in range(5)], at(5))
    assert came(decided) == [
        ("pending", "ee0", 1), ("skipped", "queue_full", 1), ("skipped", "queue_full", 1), ("pending", "ee3", 1),
        ("pending", "ee4", 1),
    ]  # fmt: skip
    assert [fire.ready_at for fire, _ in decided.fires] == [at(5), None, None, None, None]


def test_overlap_skip_records_what_comes_during_a_turn() -> None:
    one = task(overlap=Overlap.SKIP)
    standing = after(one, decide(Standing(task=one), [trigger(0)], at(0)), outcome=Outcome.RUNNING)
    assert came(decide(standing, [trigger(1), trigger(2)], at(2))) == [("skipped", "overlap", 2)]


@pytest.mark.parametrize(("outcome", "asks"), [(Outcome.RUNNING, "cancel-running"), (Outcome.INTERRUPTED, "")])
def test_overlap_cancel_running_asks_for_the_end_of_a_turn_but_not_of_one_that_waits_for_its_author(
    outcome: Outcome, asks: str
) -> None:
    one = task(overlap=Overlap.CANCEL_RUNNING)
    standing = after(one, decide(Standing(task=one), [trigger(0)], at(0)), outcome=outcome)
    ((fire, _),) = decide(standing, [trigger(1)], at(1)).fires
    assert fire.reason == asks


@pytest.mark.parametrize("state", [TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED])
def test_what_comes_while_a_task_is_stopped_is_one_entry(state: TaskState) -> None:
    one = task(state=state)
    first = decide(Standing(task=one), [trigger(0), trigger(1)], at(1))
    assert came(first) == [("skipped", state.value, 2)]
    standing = Standing(task=one, records=(replace(first.records[0][0], entry_id=7),))
    again = decide(standing, [trigger(9)], at(9))
    assert came(again) == [("skipped", state.value, 3)]
    ((record, _),) = again.records
    assert (record.entry_id, record.first_at, record.last_at) == (7, at(0), at(9))


def test_bounds_and_the_limit_on_fires_hold_for_events() -> None:
    bounded = task(start_at=at(10), end_at=at(20), max_fires=1, overlap=Overlap.QUEUE)
    decided = decide(Standing(task=bounded), [trigger(n) for n in (9, 10, 15, 21)], at(21))
    assert came(decided) == [
        ("pending", "ee10", 1), ("skipped", "outside_bounds", 1), ("skipped", "max_fires", 1),
        ("skipped", "outside_bounds", 1),
    ]  # fmt: skip


def test_a_task_is_not_triggered_by_what_its_own_fire_led_to() -> None:
    own = [trigger(0, TASK), trigger(1, TASK, "task-00000002")]
    assert came(decide(Standing(task=task()), own, at(1))) == [("skipped", "storm: own chain", 2)]
    assert came(decide(Standing(task=task()), [trigger(0, "task-00000002")], at(0))) == [("pending", "ee0", 1)]


def test_a_chain_of_tasks_ends_somewhere() -> None:
    others = [f"task-1000000{n}" for n in range(LONGEST_CHAIN)]
    assert came(decide(Standing(task=task()), [trigger(0, *others[1:])], at(0)))[0][0] == "pending"
    assert came(decide(Standing(task=task()), [trigger(0, *others)], at(0))) == [("skipped", "storm: chain of 8", 1)]


def storm(one: Task, seconds: float, *, name: str = "demo") -> list[tuple[str, str, int]]:
    """What comes of one more event after as many fires as there may be in an hour, the first of them at 0."""
    hourly = tuple(at(n) for n in range(MOST_AN_HOUR))
    return came(decide(Standing(task=one, hourly=hourly), [trigger(seconds, name=name)], at(seconds)))


def test_a_task_fires_for_events_so_often_in_an_hour() -> None:
    assert storm(task(), 3599) == [("skipped", "storm: 60 in 1h", 1)]
    assert storm(task(), 3600) == [("pending", "ee3600", 1)]


def test_a_line_of_work_may_be_longer_but_not_one_of_what_turns_do() -> None:
    line = task(overlap=Overlap.QUEUE)
    assert storm(line, 100) == [("pending", "ee100", 1)]
    assert storm(line, 100, name="turn_end") == [("skipped", "storm: 60 in 1h", 1)]
