"""What a program declares of a task is the contract's own, in Python's types, and comes back as it was given."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnkeeper.client.specs import ON_WIRE, TaskFields, fields_of, spec_of
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
GIVEN: dict[str, Any] = {
    "cron": "0 9 * * *", "filters": ("a=b",), "on": "done", "debounce": timedelta(minutes=2), "if_silent": "end",
    "timezone": "Europe/Riga", "category": "loop", "channel": "c", "prompt": "p", "payload": {"n": [1]},
    "catch_up": "skip", "grace": timedelta(seconds=90), "catch_up_window": timedelta(days=1), "max_catch_up": 3,
    "overlap": "queue", "jitter": timedelta(seconds=5), "exclude": ("2026-12-24",), "ignore_calendar": True, "start_at": NOW, "end_at": NOW,
    "expires_at": NOW, "max_fires": 2, "retries": 1, "pause_after_failures": 4, "budget": {"turns_per_day": 5},
    "thread_id": "each", "graph": "g", "context": {"a": 1}, "config": {"b": 2}, "input": {"c": 3}, "agent": "agent1",
    "queue": "gpu", "needs": "gpu", "read_only": True, "ephemeral": True, "approval_reminder": timedelta(hours=1), "first": timedelta(minutes=1),
    "approval_escalation": timedelta(hours=2), "approval_timeout": timedelta(hours=3), "paused": True, "tags": {"k": "v"},
}  # fmt: skip
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"every": timedelta(minutes=7)}, {"at": NOW}, {"rrule": "FREQ=DAILY"}, {"dynamic": True},
)  # fmt: skip


def test_the_fields_are_those_of_the_contract() -> None:
    named = {ON_WIRE.get(name, name) for name in TaskFields.__annotations__}
    assert named == set(wire.TaskSpec.DESCRIPTOR.fields_by_name) - {"name", "id", "created_by", "run_json"}
    assert {*GIVEN, *(name for one in SCHEDULES for name in one), "in_"} == set(TaskFields.__annotations__)


@pytest.mark.parametrize("schedule", [{}, *SCHEDULES], ids=str)
def test_what_is_given_comes_back(schedule: dict[str, Any]) -> None:
    given = GIVEN | schedule
    if schedule:
        del given["cron"]
    assert fields_of(spec_of("a", given, now=NOW)) == given


def test_an_update_changes_what_it_names_and_removes_what_is_none() -> None:
    base = spec_of("a", GIVEN, now=NOW)
    changed = fields_of(spec_of("a", {"every": "15m", "tags": None, "budget": {"x": 1}}, now=NOW, base=base))
    assert changed == {key: value for key, value in GIVEN.items() if key not in {"cron", "tags"}} | {
        "every": timedelta(minutes=15),
        "budget": {"x": 1},
    }


def test_a_delay_is_written_down_as_an_instant_and_a_wall_time_stays_one() -> None:
    assert spec_of("a", {"in_": timedelta(hours=1)}, now=NOW).at == "2026-11-22T10:00:00Z"
    assert spec_of("a", {"in_": "2h"}, now=NOW).at == "2026-11-22T11:00:00Z"
    wall = spec_of("a", {"at": datetime(2026, 12, 1, 9, 0)}, now=NOW)  # noqa: DTZ001  that is the point
    assert wall.at == "2026-12-01T09:00:00"
    assert fields_of(wall) == {"at": "2026-12-01T09:00:00"}


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"corn": "0 9 * * *"}, "corn"),
        ({"cron": 9}, "cron"),
        ({"tags": {"a": 1}}, "tags"),
        ({"exclude": [1]}, "exclude"),
        ({"grace": timedelta(seconds=-1)}, "grace"),
        ({"grace": timedelta(milliseconds=1500)}, "grace"),
        ({"in_": "soon"}, "in_"),
        ({"max_fires": "two"}, "max_fires"),
    ],
)
def test_a_wrong_field_is_refused_by_name(given: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        spec_of("a", given, now=NOW)
    assert raised.value.where == where
