"""Which turn events become deliveries."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnkeeper.constellation.delivery.follow import NEVER_BEGAN, delivery_key, skipped, stopped, taken
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

AT = datetime(2026, 11, 20, 8, tzinfo=UTC)


def event(state: str, **fields: Any) -> agents.TurnEvent:
    made = agents.TurnEvent(state=agents.TurnEvent.State.Value(state), turn_id="t1", sequence=3, **fields)
    made.at.FromDatetime(AT)
    return made


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "CANCELLED", "SILENT", "DELIVERED"])
def test_each_attempt_of_a_fire_leads_to_the_same_row(state: str) -> None:
    first, second = (taken(event(state, fire_id="f@1", attempt=attempt)) for attempt in (1, 2))
    assert first is not None
    assert (first.key, first.state) == ("f@1:ended", "settling")
    assert first == second


def test_a_turn_of_a_conversation_is_delivered_only_if_it_waits() -> None:
    assert taken(event("SUCCEEDED")) is None
    assert taken(event("INTERRUPTED")) is not None


@pytest.mark.parametrize("state", ["STARTED", "RESUMED", "PAUSED", "HELD", "RELEASED", "PROPOSED", "REVIEWED"])
def test_other_events_are_passed_over(state: str) -> None:
    assert taken(event(state, fire_id="f@1")) is None


def test_a_key_is_that_of_the_result_and_of_the_target() -> None:
    assert delivery_key("f@1:ended", "ops") == delivery_key("f@1:ended", "ops")
    assert len({delivery_key(about, name) for about in ("a", "b") for name in ("ops", "ada")}) == 4


def missed(reason: str, *, at: datetime = AT, outcome: str = "skipped") -> schedules.Fire:
    fire = schedules.Fire(task_id="task-1", task_name="news", entry_id=7, outcome=outcome, reason=reason, count=2)
    fire.last_nominal_at.FromDatetime(at)
    fire.first_nominal_at.FromDatetime(at)
    return fire


@pytest.mark.parametrize("reason", NEVER_BEGAN)
def test_a_fire_that_never_began_is_delivered_again_only_if_later_times_join_its_entry(reason: str) -> None:
    first, again, more = (skipped(missed(reason, at=at), AT) for at in (AT, AT, AT + timedelta(hours=1)))
    assert first is not None
    assert more is not None
    assert first == again
    assert first.key != more.key


@pytest.mark.parametrize("reason", ["paused", "overlap", "superseded", "max_fires"])
def test_a_time_that_the_author_ruled_out_is_not_delivered(reason: str) -> None:
    assert skipped(missed(reason), AT) is None


def test_a_time_before_the_first_start_is_not_delivered() -> None:
    assert skipped(missed("missed"), AT + timedelta(microseconds=1)) is None
    assert skipped(missed("missed", outcome="succeeded"), AT) is None


def paused(note: str, *, until: datetime | None = None) -> schedules.Task:
    task = schedules.Task(id="task-1", spec=schedules.TaskSpec(name="news"), state="paused", paused_note=note)
    task.last_fire_at.FromDatetime(AT)
    if until is not None:
        task.paused_until.FromDatetime(until)
    return task


def test_each_stop_by_a_budget_is_delivered_once_with_its_end() -> None:
    day = "budget: turns_per_day is 2, 2 used on 2026-11-20"
    first, again = (stopped(paused(day, until=AT + timedelta(hours=16)), AT) for _ in range(2))
    resumed = stopped(paused(day.replace("2 used", "3 used"), until=AT + timedelta(hours=16)), AT)
    assert first is not None
    assert resumed is not None
    assert (first, first.key != resumed.key) == (again, True)
    why = json.loads(first.body)["reason"]
    assert why == "its budget stops it until 2026-11-21T00:00:00Z: turns_per_day is 2, 2 used on 2026-11-20"
    by_fire = stopped(paused("budget: tokens_per_fire is 9, 12 used by f@1"), AT)
    assert by_fire is not None
    assert "until you resume it: tokens_per_fire" in json.loads(by_fire.body)["reason"]


def test_another_pause_and_a_stop_of_before_are_not_delivered() -> None:
    assert stopped(paused("on vacation"), AT) is None
    assert stopped(paused("budget: turns_per_day is 2, 2 used on 2026-11-20"), AT + timedelta(seconds=1)) is None
    assert stopped(schedules.Task(id="task-1", state="active"), AT) is None
