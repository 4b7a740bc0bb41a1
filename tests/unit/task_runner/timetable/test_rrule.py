"""Recurrence rules: the examples of the RFC by python-dateutil as oracle, clock changes, and what is refused."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from task_runner.timetable import Timetable, zone
from task_runner.timetable.rrule import parse_rrule
from turnkeeper.errors import InvalidInput

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def rule(text: str, place: str = "UTC", anchor: datetime = START) -> Timetable:
    return parse_rrule(text, zone=zone(place), anchor=anchor)


def local(table: Timetable, place: str, after: str, count: int) -> list[str]:
    found = table.upcoming(datetime.fromisoformat(after), count)
    return [at.astimezone(zone(place)).strftime("%Y-%m-%d %H:%M%z") for at in found]


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY",
        "FREQ=DAILY;INTERVAL=10",
        "FREQ=DAILY;BYMONTH=1;BYHOUR=6,18",
        "FREQ=WEEKLY",
        "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=TU,TH",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU;WKST=MO",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU;WKST=SU",
        "FREQ=MONTHLY;BYDAY=1FR",
        "FREQ=MONTHLY;INTERVAL=2;BYDAY=1SU,-1SU",
        "FREQ=MONTHLY;BYDAY=-2MO",
        "FREQ=MONTHLY;BYMONTHDAY=-3",
        "FREQ=MONTHLY;BYMONTHDAY=2,15,31",
        "FREQ=MONTHLY;BYMONTHDAY=1,-1",
        "FREQ=MONTHLY;INTERVAL=18;BYMONTHDAY=10,11",
        "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        "FREQ=MONTHLY;BYDAY=TU,WE,TH;BYSETPOS=3;COUNT=3",
        "FREQ=YEARLY",
        "FREQ=YEARLY;BYMONTH=6,7",
        "FREQ=YEARLY;INTERVAL=2;BYMONTH=1,2,3",
        "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200",
        "FREQ=YEARLY;BYDAY=20MO",
        "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
        "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=HOURLY;INTERVAL=3;UNTIL=20260402T170000Z",
        "FREQ=MINUTELY;INTERVAL=15;BYHOUR=9,10,11",
        "FREQ=MINUTELY;INTERVAL=120",
        "FREQ=HOURLY;BYDAY=MO;BYMINUTE=5,35",
        "FREQ=WEEKLY;UNTIL=20260420",
    ],
)
def test_in_utc_it_equals_dateutil(text: str) -> None:
    table = rule(text)
    naive = START.replace(tzinfo=None)
    oracle = rrulestr(text.replace("20260420", "20260420T235959").replace("Z", ""), dtstart=naive)
    expected = [at.replace(tzinfo=UTC) for at in islice(oracle, 60)]
    assert table.upcoming(START - timedelta(seconds=1), 60) == expected
    assert table.last_n(START - timedelta(seconds=1), expected[-1], 60) == expected
    assert table.count(START, expected[-1]) == len(expected) - (expected[0] == START)
    middle = expected[len(expected) // 2]
    assert table.next_after(middle - timedelta(seconds=1)) == table.last_at_or_before(middle) == middle


def test_weeks_are_those_of_the_calendar_also_around_new_year() -> None:
    # Not beside dateutil, which takes 2 January 2039, of week 52, for a day of week 53.
    days = [START + timedelta(days=number) for number in range(20 * 365)]
    for weeks in ("1,53", "-1", "52"):
        table = rule(f"FREQ=YEARLY;BYWEEKNO={weeks};BYDAY=MO,SU")
        wanted = [
            day
            for day in days
            if day.weekday() in {0, 6}
            and any(
                day.isocalendar().week == (int(week) if int(week) > 0 else weeks_of(day.isocalendar().year))
                for week in weeks.split(",")
            )
        ]
        assert table.upcoming(START - timedelta(seconds=1), 9999, until=days[-1]) == wanted


def weeks_of(year: int) -> int:
    return datetime(year, 12, 28, tzinfo=UTC).isocalendar().week


@settings(max_examples=60, deadline=None)
@given(
    frequency=st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]),
    interval=st.integers(1, 12),
    months=st.sets(st.integers(1, 12), max_size=3),
    weekdays=st.sets(st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"]), max_size=3),
    start=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001
    later=st.integers(0, 30 * 365),
)
def test_asked_years_later_it_equals_dateutil(frequency, interval, months, weekdays, start, later) -> None:
    text = f"FREQ={frequency};INTERVAL={interval}"
    text += f";BYMONTH={','.join(map(str, sorted(months)))}" if months else ""
    text += f";BYDAY={','.join(sorted(weekdays))}" if weekdays else ""
    start = start.replace(microsecond=0)
    oracle = rrulestr(text, dtstart=start)
    after = start + timedelta(days=later)
    try:
        table = rule(text, anchor=start.replace(tzinfo=UTC))
    except InvalidInput as refused:
        assert "never fires" in str(refused)  # noqa: PT017
        return
    # Only asked where there is something: where there is nothing it searches until the year 9999.
    ours = table.upcoming(after.replace(tzinfo=UTC), 3)
    assert [at.replace(tzinfo=UTC) for at in islice(oracle.xafter(after), len(ours))] == ours


def test_a_time_in_a_gap_fires_when_it_ends_and_one_shown_twice_the_first_time() -> None:
    daily = rule("DTSTART:20260101T023000 RRULE:FREQ=DAILY", "America/New_York")
    assert local(daily, "America/New_York", "2026-03-07T12:00-05:00", 2) == [
        "2026-03-08 03:00-0400",
        "2026-03-09 02:30-0400",
    ]
    night = rule("FREQ=DAILY;BYHOUR=1;BYMINUTE=30;BYSECOND=0", "America/New_York")
    assert local(night, "America/New_York", "2026-10-31T12:00-04:00", 2) == [
        "2026-11-01 01:30-0400",
        "2026-11-02 01:30-0500",
    ]


def test_the_start_is_read_in_the_tasks_zone_and_bounds_the_rule() -> None:
    place = "Europe/Riga"
    for start in ("DTSTART:20260401T090000", "DTSTART;TZID=Europe/Riga:20260401T090000", "DTSTART:20260401T060000Z"):
        table = rule(f"{start}\nRRULE:FREQ=WEEKLY;COUNT=2", place)
        assert local(table, place, "2020-01-01T00:00+00:00", 5) == ["2026-04-01 09:00+0300", "2026-04-08 09:00+0300"]
        assert table.describe() == "DTSTART:20260401T090000 RRULE:FREQ=WEEKLY;COUNT=2"
        assert rule(table.describe(), place).describe() == table.describe()


@pytest.mark.parametrize(
    "start",
    [
        "DTSTART;VALUE=DATE:20260401", "DTSTART:20260401", "dtstart;value=date:20260401", "DTSTART:20260401t000000",
        "DTSTART;VALUE=DATE-TIME:20260401T000000", "dtstart;tzid=Europe/Riga:20260401T000000", "DTSTART:20260331t210000z",
        'DTSTART;TZID="Europe/Riga";VALUE=DATE-TIME:20260401T000000',
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "form", ["{} RRULE:FREQ=DAILY;COUNT=2", "{}\r\nrrule:freq=daily;count=2", "FREQ=DAILY;COUNT=2 {}"]
)
def test_a_start_is_read_in_each_form_that_the_rfc_has(form: str, start: str) -> None:
    table = rule(form.format(start), "Europe/Riga")
    assert table.describe() == "DTSTART:20260401T000000 RRULE:FREQ=DAILY;COUNT=2"
    assert local(table, "Europe/Riga", "2020-01-01T00:00+00:00", 5) == [
        "2026-04-01 00:00+0300",
        "2026-04-02 00:00+0300",
    ]


@pytest.mark.parametrize("text", ["DTSTART:20261025T013000Z RRULE:{}", "{}"], ids=["DTSTART", "anchor"])
def test_a_rule_that_starts_when_a_time_is_shown_again_begins_there_and_counts_from_there(text: str) -> None:
    place, start = "Europe/Riga", datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    daily = rule(text.format("FREQ=DAILY;COUNT=2"), place, start)
    assert local(daily, place, "2026-10-24T00:00+00:00", 5) == ["2026-10-25 03:30+0200", "2026-10-26 03:30+0200"]
    assert rule(daily.describe(), place, start).upcoming(start - timedelta(days=1), 5) == daily.upcoming(START, 5)
    assert (daily.count(START, START + timedelta(days=999)), daily.last_at_or_before(start)) == (2, start)
    often = rule(text.format("FREQ=MINUTELY;INTERVAL=10;COUNT=4"), place, start)
    assert local(often, place, "2026-10-24T00:00+00:00", 5) == [
        "2026-10-25 03:30+0200", "2026-10-25 03:40+0200", "2026-10-25 03:50+0200", "2026-10-25 04:00+0200",
    ]  # fmt: skip
    nightly = rule(text.format("FREQ=DAILY;BYHOUR=3;BYMINUTE=15;COUNT=1"), place, start)
    assert local(nightly, place, "2026-10-24T00:00+00:00", 5) == ["2026-10-26 03:15+0200"], "03:15 was shown before"


def test_counting_ten_years_lists_no_nominal_times() -> None:
    table = rule("FREQ=MINUTELY;BYDAY=MO,TU,WE,TH,FR,SA,SU", "Europe/Riga")
    # Wall-clock times: each year's repeated hour is named once.
    assert table.count(START, START + timedelta(days=3652)) == 3652 * 1440 - 10 * 60


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not one rule"),
        ("every day", "not one rule"),
        ("FREQ=DAILY RRULE:FREQ=WEEKLY", "not one rule"),
        ("RRULE:FREQ=DAILY EXDATE:20260101T000000", "not one rule"),
        ("FREQ=DÄILY", "not one rule"),
        ("FREQ=SECONDLY", "finer than a minute"),
        ("FREQ=DAILY;BYSECOND=0,30", "finer than a minute"),
        ("FREQ=FORTNIGHTLY", "not known"),
        ("INTERVAL=2;FREQ=DAILY;INTERVAL=3", "given twice"),
        ("FREQ=DAILY;BYEASTER=0", "not a part"),
        ("FREQ=DAILY;INTERVAL=0", "out of range"),
        ("FREQ=DAILY;INTERVAL=", "out of range"),
        ("FREQ=DAILY;COUNT=100000", "out of range"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20270101", "exclude each other"),
        ("FREQ=DAILY;UNTIL=soon", "not a time"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "out of range"),
        ("FREQ=MONTHLY;BYMONTHDAY=--1", "out of range"),
        ("FREQ=WEEKLY;BYDAY=1MO", "only MONTHLY and YEARLY"),
        ("FREQ=WEEKLY;BYDAY=XX", "not a weekday"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "no meaning"),
        ("FREQ=WEEKLY;WKST=1", "not a weekday"),
        ("FREQ=MONTHLY;BYSETPOS=1", "needs another"),
        ("FREQ=MONTHLY;BYDAY=MO;BYHOUR=9,10;BYSETPOS=1", "a single time of day"),
        ("FREQ=MINUTELY;INTERVAL=7", "do not divide"),
        ("FREQ=HOURLY;INTERVAL=5", "do not divide"),
        ("FREQ=HOURLY;INTERVAL=2;BYHOUR=10", "no time of day"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=31", "never fires"),
        ("DTSTART:20260230T090000 RRULE:FREQ=DAILY", "not a time"),
        ("DTSTART:00010101T090000 RRULE:FREQ=DAILY", "1970"),
        ("DTSTART:2026 RRULE:FREQ=DAILY", "cannot be read"),
        ("DTSTART;TZID=Europe/Riga:20260401T090000 RRULE:FREQ=DAILY", "the task in UTC"),
        ("FREQ=DAILY;" + "BYMONTH=1,1" + ",1" * 600, "characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        rule(text)
    assert refused.value.where == "rrule"
