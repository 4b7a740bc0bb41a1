"""The week in which New York's clocks go forward, with a declared outage, under every policy."""

from datetime import UTC, datetime, timedelta

import pytest

from task_runner.model.task import CatchUp, Overlap, Schedule, ScheduleKind
from task_runner.service.simulate import Outage, Span, simulated
from tests.unit.task_runner.simulated import T0, definition

START, END = datetime(2026, 3, 6, tzinfo=UTC), datetime(2026, 3, 11, tzinfo=UTC)
# From the evening before the change (8 March, 02:00 local is 07:00 UTC) to the afternoon after it.
DOWN = Outage(datetime(2026, 3, 8, 1, tzinfo=UTC), datetime(2026, 3, 9, 18, tzinfo=UTC))
ID = "task-00000001"


def nightly(**changes) -> list[tuple[str, str, str, str, int]]:
    """(nominal, fired, outcome, reason, count) of a fixed half past two in New York, in UTC."""
    schedule = Schedule(kind=ScheduleKind.CRON, text="30 2 * * *")
    made = definition(schedule=schedule, timezone="America/New_York", **changes)
    return shown(simulated(ID, made, Span(start=START, end=END, outages=[DOWN])))


def shown(rows) -> list[tuple[str, str, str, str, int]]:
    def text(at: datetime | None) -> str:
        return f"{at:%d %H:%M}" if at else "-"

    return [(text(row.nominal_at), text(row.fired_at), row.outcome.value, row.reason, row.stands_for) for row in rows]


BEFORE = [("06 07:30", "06 07:30", "succeeded", "", 1), ("07 07:30", "07 07:30", "succeeded", "", 1)]
AFTER = [("10 06:30", "10 06:30", "succeeded", "", 1)]


@pytest.mark.parametrize(
    ("policy", "between"),
    [
        (CatchUp.SKIP, [("09 06:30", "-", "skipped", "missed", 2)]),
        (CatchUp.RUN_ONCE, [("09 06:30", "09 18:00", "succeeded", "", 2)]),
        # The skipped half past two fires when the gap ends: 03:00, which is 07:00 in UTC.
        (CatchUp.RUN_ALL, [("08 07:00", "09 18:00", "succeeded", "", 1), ("09 06:30", "09 18:00", "succeeded", "", 1)]),
    ],
)
def test_every_policy_over_a_change_and_an_outage(policy: CatchUp, between) -> None:
    rows = nightly(catch_up=policy)
    assert sorted(rows) == sorted(BEFORE + between + AFTER)


def test_without_an_outage_every_nominal_time_fires_in_time() -> None:
    made = definition(every="1h")
    rows = shown(simulated(ID, made, Span(start=T0, end=T0 + timedelta(days=30))))
    assert len(rows) == 720
    assert all(nominal == fired and outcome == "succeeded" for nominal, fired, outcome, _, _ in rows)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        # Turns take 150 s and one is due each minute: what comes due meanwhile is one fire, or each its own.
        (
            Overlap.COALESCE,
            [("09:00", "09:00", 1), ("09:02", "09:02", 2), ("09:05", "09:05", 3), ("09:07", "09:07", 2)],
        ),
        (Overlap.QUEUE, [("09:00", "09:00", 1), ("09:01", "09:02", 1), ("09:02", "09:05", 1), ("09:03", "09:07", 1)]),
    ],
)
def test_turns_that_take_longer_than_the_gap_overlap(overlap: Overlap, expected) -> None:
    span = Span(start=T0, end=T0 + timedelta(minutes=10), turn=timedelta(seconds=150))
    rows = [row for row in simulated(ID, definition(overlap=overlap), span) if row.fired_at is not None]
    assert [(f"{row.nominal_at:%H:%M}", f"{row.fired_at:%H:%M}", row.stands_for) for row in rows] == expected


def test_limits_bounds_and_jitter_count() -> None:
    limited = list(simulated(ID, definition(max_fires=3), Span(start=T0, end=T0 + timedelta(hours=1))))
    assert len(limited) == 3
    ended = list(simulated(ID, definition(end_at=T0 + timedelta(minutes=5)), Span(start=T0, end=END)))
    assert len(ended) == 6, "both bounds are included"
    put_off = list(simulated(ID, definition(jitter=timedelta(seconds=30)), Span(start=T0, end=T0 + timedelta(hours=1))))
    assert len(put_off) >= 59
    assert len({row.fired_at - row.nominal_at for row in put_off if row.fired_at}) > 20


def test_ten_years_of_outage_are_one_row() -> None:
    span = Span(start=T0, end=T0 + timedelta(days=3652), outages=[Outage(T0, T0 + timedelta(days=3651))])
    rows = shown(simulated(ID, definition(every="24h", catch_up=CatchUp.SKIP), span))
    assert [row[2:] for row in rows if row[2] == "skipped"] == [("skipped", "missed", 3651)]
