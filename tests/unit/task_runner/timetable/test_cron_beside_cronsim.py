"""Cron beside cronsim: any expression that both read alike, in any zone, from any time.

What they read differently is listed with the other oracle tests and left out here: a step is never written for a
single start (`5/15`), a day of the month has no step, there are no seconds, and a wildcard or a step in hour or minute
goes only with zones that move by whole hours and not at midnight.
"""

from datetime import UTC, datetime, timedelta
from itertools import islice

from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from task_runner.timetable import InvalidCron, parse_cron, zone
from task_runner.timetable.timetable import zone_names

# Each moves its clocks by an hour, and never at midnight, since 1990. (Casablanca did at midnight, from 2008 to 2011.)
WHOLE_HOURS = (
    "America/New_York", "America/Los_Angeles", "Europe/London", "Europe/Riga", "Europe/Dublin", "Europe/Berlin",
    "Australia/Sydney", "Pacific/Auckland", "Asia/Kathmandu", "Asia/Tokyo", "UTC",
)  # fmt: skip


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: f"{pair[0]}-{pair[1]}")
    return st.lists(st.one_of(number.map(str), span), min_size=1, max_size=3).map(",".join)


def stepped(low: int, high: int) -> st.SearchStrategy[str]:
    step = st.integers(2, high)
    span = st.tuples(st.integers(low, high), st.integers(low, high), step).filter(lambda it: it[0] < it[1])
    return st.one_of(
        st.just("*"), step.map("*/{}".format), span.map(lambda it: f"{it[0]}-{it[1]}/{it[2]}"), numbers(low, high)
    )


nth = st.tuples(st.integers(0, 6), st.integers(1, 5)).map(lambda pair: f"{pair[0]}#{pair[1]}")
weekdays = st.one_of(st.just("*"), numbers(0, 6), nth, st.integers(0, 6).map("{}L".format))
days = st.one_of(st.just("*"), numbers(1, 31), st.just("L"))
months = st.one_of(st.just("*"), numbers(1, 12), st.sampled_from(["feb", "jun-aug", "*/2", "1-12/5"]))
dates = st.tuples(days, months, weekdays).filter(lambda it: "*" in (it[0], it[2]) or "#" not in it[2])
fixed = st.tuples(numbers(0, 59), st.one_of(numbers(0, 23), numbers(0, 4)))
wild = st.tuples(stepped(0, 59), stepped(0, 23))
cases = st.one_of(
    st.tuples(fixed, dates, st.sampled_from(sorted(zone_names()))),
    st.tuples(wild, dates, st.sampled_from(WHOLE_HOURS)),
)
times = st.datetimes(datetime(1991, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
HORIZON = timedelta(days=9 * 366)


def agree(case: tuple[tuple[str, str], tuple[str, str, str], str], start: datetime) -> None:
    (minute, hour), (day, month, weekday), place = case
    expression = f"{minute} {hour} {day} {month} {weekday}"
    start = start.replace(microsecond=0)
    try:
        cron = parse_cron(expression, name="a", zone=zone(place))
    except InvalidCron:  # it never fires
        return
    ours = cron.upcoming(start, 4, until=start + HORIZON)
    theirs: list[datetime] = []
    # Two fixed times moved by one gap are one nominal here, and two equal ones there.
    for at in islice(CronSim(expression, start.astimezone(zone(place))), 40):
        if at.astimezone(UTC) not in theirs[-1:]:
            theirs.append(at.astimezone(UTC))
        if len(theirs) > len(ours) or len(theirs) == 4:
            break
    assert ours == [at for at in theirs if at <= start + HORIZON][: len(ours) + 1]


@settings(max_examples=150, deadline=None)
@given(case=cases, start=times)
@example(case=(("30", "2"), ("*", "*", "*"), "America/New_York"), start=datetime(2026, 3, 8, tzinfo=UTC))
def test_any_expression_in_any_zone_from_any_time(
    case: tuple[tuple[str, str], tuple[str, str, str], str], start: datetime
) -> None:
    agree(case, start)
