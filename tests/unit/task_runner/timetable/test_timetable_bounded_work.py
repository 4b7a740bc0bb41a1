"""Whatever an author or an agent writes as a schedule, reading it and asking it takes a bounded number of steps.

Steps are counted, not timed: each line of Python that runs is one.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from task_runner.timetable import Timetable, check_excluded, excluding, parse_cron, zone
from task_runner.timetable.rrule import parse_rrule
from turnkeeper.errors import InvalidInput

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
LATER = START + timedelta(days=3653)
YEAR = timedelta(days=365)
# A line takes about a tenth of a microsecond: a tenth of a second at most, for reading and a dozen questions.
MOST_STEPS = 600_000
HOSTILE = [
    "FREQ=YEARLY;COUNT=10000;BYSETPOS=1;BYDAY=MO",
    "FREQ=YEARLY;COUNT=10000;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO",
    "FREQ=YEARLY;COUNT=10000;BYWEEKNO=53;BYDAY=SU;BYSETPOS=-1",
    "FREQ=DAILY;COUNT=10000;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=DAILY;COUNT=10000;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=DAILY;COUNT=10000;INTERVAL=1000;BYDAY=MO,TU,WE,TH,FR,SA,SU",
    "FREQ=DAILY;BYSETPOS=2;BYDAY=MO",
    "FREQ=WEEKLY;BYSETPOS=7;BYDAY=MO",
    "FREQ=WEEKLY;COUNT=10000;INTERVAL=1000;BYMONTH=2",
    "FREQ=MONTHLY;COUNT=10000;BYDAY=MO;BYSETPOS=5",
    "FREQ=MINUTELY;COUNT=10000",
    "FREQ=MINUTELY;COUNT=10000;BYYEARDAY=366;BYDAY=MO",
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
    "DTSTART:19700101T000000 RRULE:FREQ=MINUTELY;COUNT=10000",
    "DTSTART:19700101T000000 RRULE:FREQ=YEARLY;COUNT=10000",
    "DTSTART:22000101T000000 RRULE:FREQ=DAILY;COUNT=10000",
]


def steps(work: Callable[[], object]) -> int:
    """Return how many lines of Python a piece of work runs."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def asked(table: Timetable) -> None:
    """Ask what creating, planning, catching up and explaining ask."""
    table.next_after(START)
    table.last_at_or_before(LATER)
    table.upcoming(START, 3)
    table.count(START - YEAR, LATER)
    table.last_n(START, LATER, 3)
    table.next_after(LATER)
    table.last_at_or_before(START)


def rule(text: str, place: str = "UTC") -> Timetable:
    return parse_rrule(text, zone=zone(place), anchor=START)


def read_and_asked(text: str, place: str) -> None:
    try:
        table = rule(text, place)
    except InvalidInput:
        return
    asked(table)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_rule_takes_few_steps(text: str) -> None:
    read_and_asked("FREQ=DAILY", "Europe/Riga")  # the zone's own changes are found once for all tasks
    assert steps(lambda: read_and_asked(text, "Europe/Riga")) < MOST_STEPS


def _some(key: str, low: int, high: int, most: int = 4) -> st.SearchStrategy[str]:
    return st.sets(st.integers(low, high).filter(bool), min_size=1, max_size=most).map(
        lambda numbers: f";{key}=" + ",".join(map(str, sorted(numbers)))
    )


parts = st.lists(
    st.one_of(
        _some("BYMONTH", 1, 12), _some("BYMONTHDAY", -31, 31), _some("BYYEARDAY", -366, 366), _some("BYWEEKNO", -53, 53),
        _some("BYSETPOS", -366, 366), _some("BYHOUR", 0, 23, 20), _some("BYMINUTE", 0, 59, 50),
        _some("INTERVAL", 1, 1000, 1), _some("COUNT", 1, 10_000, 1),
        st.sets(st.sampled_from(["MO", "TU", "1WE", "-1TH", "FR", "5SA", "53SU", "SU"]), min_size=1)
        .map(lambda days: ";BYDAY=" + ",".join(sorted(days))),
    ),
    max_size=6, unique_by=lambda part: part.partition("=")[0],
).map("".join)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"]), parts)
def test_any_rule_takes_few_steps(frequency: str, rest: str) -> None:
    assert steps(lambda: read_and_asked(f"FREQ={frequency}{rest}", "UTC")) < MOST_STEPS


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,TH", "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=-1", "FREQ=YEARLY"]),
    st.integers(1, 60),
    st.integers(-10, 400),
)
def test_a_count_ends_a_rule_where_the_oracle_ends_it(text: str, most: int, weeks: int) -> None:
    table = rule(f"{text};COUNT={most}")
    every = [at.replace(tzinfo=UTC) for at in rrulestr(f"{text};COUNT={most}", dtstart=START.replace(tzinfo=None))]
    at = START + timedelta(weeks=weeks)
    assert table.next_after(at) == next((each for each in every if each > at), None)
    assert table.last_at_or_before(at) == next((each for each in reversed(every) if each <= at), None)
    assert table.count(START - YEAR, at) == sum(each <= at for each in every)
    assert table.upcoming(START - YEAR, 100) == every
    assert table.last_n(START - YEAR, every[-1] + 50 * YEAR, 100) == every
    assert table.count(START - YEAR, every[-1] + 50 * YEAR) == most


def test_the_siblings_of_a_hostile_rule_take_few_steps() -> None:
    here = zone("Europe/Riga")
    days = [f"{START + timedelta(days=number):%Y-%m-%d}" for number in range(1, 4000, 2)]
    leap = parse_cron("0 0 29 2 1", name="a", zone=here)
    asked(leap)
    assert steps(lambda: asked(leap)) < MOST_STEPS
    with pytest.raises(InvalidInput, match="never fires"):
        parse_cron("0 0 30 2 *", name="a", zone=here)
    daily = parse_cron("0 0 * * *", name="a", zone=here)
    less = excluding(daily, check_excluded(days, here), here)
    assert steps(lambda: (less.next_after(START), less.upcoming(START, 3))) < MOST_STEPS
    whole = excluding(daily, check_excluded(["1970-01-01..9990-01-01"], here), here)
    assert steps(lambda: whole.next_after(START)) < MOST_STEPS
    with pytest.raises(InvalidInput, match="more than 2000"):
        check_excluded((f"{START + timedelta(days=number):%Y-%m-%d}" for number in range(10_000)), here)
