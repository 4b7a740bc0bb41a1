"""Which turn events become deliveries."""

from datetime import UTC, datetime
from typing import Any

import pytest

from turnkeeper.constellation.delivery.follow import delivery_key, taken
from turnkeeper.v1 import agent_runtime_pb2 as agents

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
