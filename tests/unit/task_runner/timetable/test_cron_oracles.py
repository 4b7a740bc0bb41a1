"""Cron beside three oracles: brute force over every minute, croniter away from clock changes, cronsim near them.

Ours differs on purpose, and the generators below leave out:

- from croniter: `5-5` is 5, not the whole field; a range that runs over the end of its field takes no step; `1#2` or
  `L5` beside a day of month means either, where croniter ignores the day of month.
- from cronsim: `*/2` as a day restricts it; `5/15` is a step and not a fixed time; expressions of six fields follow
  the same rule as those of five; two fixed times moved by one gap are one nominal, where cronsim repeats it; a
  wildcard on the day whose midnight is skipped fires, where cronsim passes over that day; a step in the hour finds
  the hour that begins within half an hour of Lord Howe's change, where cronsim walks past it in whole hours.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterBadDateError, croniter
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from task_runner.timetable import CronTimetable, parse_cron, zone

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
CHANGES = [
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Europe/London", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/London", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Europe/Riga", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Riga", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 4, 5, 3, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("Europe/Dublin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Dublin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 3, 22, 2, tzinfo=UTC)),
    # A minute past midnight the clock went back to the evening before.
    ("America/St_Johns", datetime(2010, 11, 7, 2, 31, tzinfo=UTC)),
    # A whole local day was shown twice, but for an hour.
    ("Pacific/Kwajalein", datetime(1969, 9, 30, 13, tzinfo=UTC)),
]


def values(low: int, high: int) -> st.SearchStrategy[str]:
    """One field: a star, a step, a range, or a list."""
    number = st.integers(low, high)
    span = st.tuples(number, number).filter(lambda pair: pair[0] < pair[1])
    step = st.integers(1, high)
    return st.one_of(
        st.just("*"),
        step.map("*/{}".format),
        span.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        st.tuples(span, step).map(lambda it: f"{it[0][0]}-{it[0][1]}/{it[1]}"),
        st.tuples(number, step).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        st.lists(number, min_size=1, max_size=3).map(lambda them: ",".join(map(str, them))),
    )


def expressions(*, dates: bool) -> st.SearchStrategy[str]:
    star = st.just("*")
    fields = (
        values(0, 59),
        st.one_of(values(0, 23), values(0, 3)),
        st.one_of(star, values(1, 31), st.just("L")) if dates else star,
        st.one_of(star, values(1, 12)) if dates else star,
        st.one_of(star, values(0, 6)) if dates else star,
    )
    return st.tuples(*fields).map(" ".join)


def named(text: str, low: int, high: int) -> set[int]:
    """The naive reading of a field."""
    found: set[int] = set()
    for item in text.split(","):
        body, _, step = item.partition("/")
        first, _, last = body.replace("*", f"{low}-{high}").partition("-")
        end = int(last) if last else high if step else int(first)
        found.update(range(int(first), end + 1, int(step or 1)))
    return found


@lru_cache(maxsize=64)
def walk(place: str, change: datetime) -> list[tuple[datetime, datetime]]:
    """Every minute of four days around a change: the instant and the local time shown."""
    start = change - 2 * DAY
    minutes = [start + number * MINUTE for number in range(4 * 24 * 60)]
    return [(at, at.astimezone(ZoneInfo(place)).replace(tzinfo=None, fold=0)) for at in minutes]


def brute_force(expression: str, place: str, change: datetime) -> list[datetime]:
    """What fires in those four days, but for the first minute, by asking each minute."""
    minute_text, hour_text = expression.split()[:2]
    minutes, hours = named(minute_text, 0, 59), named(hour_text, 0, 23)
    steps = walk(place, change)
    shown, found = steps[0][1], []
    fixed = not set("*/") & set(minute_text + hour_text)
    for at, local in steps[1:]:
        passed = [local]
        if fixed:
            passed = [shown + (number + 1) * MINUTE for number in range((local - shown) // MINUTE)]
            shown = max(shown, local)
        if any(time.minute in minutes and time.hour in hours for time in passed):
            found.append(at)
    return found


@pytest.mark.parametrize(("place", "change"), CHANGES, ids=lambda it: str(it)[:20])
@settings(max_examples=15, deadline=None)
@given(expression=expressions(dates=False), part=st.integers(0, 4 * 24 * 60 - 1))
def test_near_a_change_it_fires_when_brute_force_says(place: str, change: datetime, expression: str, part: int) -> None:
    expected = brute_force(expression, place, change)
    cron = parse_cron(expression, name="a", zone=zone(place))
    start, end = change - 2 * DAY, change + 2 * DAY - MINUTE
    assert cron.upcoming(start, 9999, until=end) == expected
    assert cron.last_n(start, end, 9999) == expected
    assert cron.count(start, end) == len(expected)
    middle = start + part * MINUTE
    assert cron.count(middle, end) == sum(at > middle for at in expected)
    assert cron.count(start, middle) == sum(at <= middle for at in expected)


@settings(max_examples=200, deadline=None)
@given(
    expression=expressions(dates=True),
    start=st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)),  # noqa: DTZ001
)
def test_without_changes_it_equals_croniter(expression: str, start: datetime) -> None:
    after = start.replace(tzinfo=UTC)
    ahead, back = croniter(expression, after), croniter(expression, after)
    try:
        expected = [ahead.get_next(datetime) for _ in range(4)]
        before = back.get_prev(datetime)
    except CroniterBadDateError:  # it gives up after fifty years
        assume(False)
    cron = parse_cron(expression, name="a", zone=zone("UTC"))
    assert cron.upcoming(after, 4) == expected
    assert cron.last_n(datetime.min.replace(tzinfo=UTC), after - timedelta(microseconds=1), 1) == [before]


@settings(max_examples=100, deadline=None)
@given(
    expression=expressions(dates=True),
    place=st.sampled_from(["America/New_York", "Europe/Riga", "Australia/Lord_Howe", "America/Santiago"]),
    minute=st.integers(0, 60 * 24 * 60),
)
def test_between_changes_it_equals_croniter(expression: str, place: str, minute: int) -> None:
    # From 10 May to the end of August none of these zones has a change.
    start = datetime(2026, 5, 10, tzinfo=UTC) + minute * MINUTE
    end = datetime(2026, 8, 30, tzinfo=UTC)
    try:
        theirs = croniter(expression, start.astimezone(ZoneInfo(place)))
        expected = [theirs.get_next(datetime) for _ in range(4)]
    except CroniterBadDateError:
        assume(False)
    ours = parse_cron(expression, name="a", zone=zone(place)).upcoming(start, 4, until=end)
    assert ours == [at for at in expected if at <= end]


@pytest.mark.parametrize("weekday", ["0#1", "1#2", "3#5", "6#4"])
def test_the_nth_weekday_equals_croniter(weekday: str) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    theirs = croniter(f"0 6 * * {weekday}", start)
    expected = [theirs.get_next(datetime) for _ in range(30)]
    assert parse_cron(f"0 6 * * {weekday}", name="a", zone=zone("UTC")).upcoming(start, 30) == expected


@pytest.mark.parametrize("weekday", range(7))
def test_the_last_weekday_equals_croniter_and_cronsim(weekday: int) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    ours = parse_cron(f"0 6 * * {weekday}L", name="a", zone=zone("UTC")).upcoming(start, 30)
    theirs = croniter(f"0 6 * * L{weekday}", start)
    assert ours == [theirs.get_next(datetime) for _ in range(30)]
    other = CronSim(f"0 6 * * {weekday}L", start)
    assert ours == [next(other) for _ in range(30)]


def beside_cronsim(cron: CronTimetable, start: datetime, limit: int) -> list[datetime]:
    theirs = CronSim(cron.expression, start.astimezone(cron.zone))
    expected: list[datetime] = []
    for at in theirs:
        instant = at.astimezone(UTC)
        if len(expected) == limit:
            break
        if instant not in expected[-1:]:
            expected.append(instant)
    return expected


def lists(low: int, high: int) -> st.SearchStrategy[str]:
    return st.lists(st.integers(low, high), min_size=1, max_size=3).map(lambda them: ",".join(map(str, them)))


WILD = st.tuples(st.sampled_from(["*", "*/15", "*/7", "*/30"]), st.just("*"))
FIXED = st.tuples(lists(0, 59), st.one_of(lists(0, 3), lists(0, 23), st.just("0-3")))
DATED = st.tuples(FIXED, st.sampled_from(["* * *", "* * 0", "* * 1-5", "1-7 * *", "L * *"]))


@settings(max_examples=150, deadline=None)
@given(
    expression=st.one_of(
        WILD.map(lambda pair: f"{pair[0]} {pair[1]} * * *"),
        DATED.map(lambda it: f"{it[0][0]} {it[0][1]} {it[1]}"),
    ),
    change=st.sampled_from([change for change in CHANGES if change[0] != "Pacific/Kwajalein"]),
    hours=st.integers(1, 48),
)
def test_near_a_change_it_equals_cronsim(expression: str, change: tuple[str, datetime], hours: int) -> None:
    place, at = change
    cron = parse_cron(expression, name="a", zone=zone(place))
    start = at - timedelta(hours=hours)
    assert cron.upcoming(start, 12) == beside_cronsim(cron, start, 12)
