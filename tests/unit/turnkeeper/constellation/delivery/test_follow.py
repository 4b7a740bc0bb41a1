"""Which turn events become deliveries."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnkeeper.constellation.delivery.follow import NEVER_BEGAN, delivery_key, skipped, taken
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
