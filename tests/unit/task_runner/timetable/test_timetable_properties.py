"""What holds for every timetable, whatever its kind, zone and time."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_runner.timetable import Bounded, CronTimetable, InvalidCron, Once, Timetable, parse_cron, parse_every, zone
from task_runner.timetable.zones import Stretch, ZoneOffsets

SECOND = timedelta(seconds=1)
PLACES = (
    "America/New_York", "Europe/London", "Europe/Riga", "America/Santiago", "Australia/Lord_Howe",
    "Pacific/Apia", "Europe/Dublin", "Africa/Casablanca", "America/St_Johns", "Asia/Kathmandu", "UTC",
)  # fmt: skip
EXPRESSIONS = (
    "* * * * *", "*/15 * * * *", "7,37 */3 * * *", "30 1 * * *", "0,30 0-3 * * *", "0 0 * * *", "@weekly",
    "30 2 L * *", "0 9 * * 1#2", "15 23 * * 5L", "0 12 13 * 5", "*/20 * 1-3 * * *", "0,1 30 2,3 * * *",
    "H H * * *", "H/10 1-2 * * *", "59 59 23 31 12 *", "0 0 29 2 *", "* * 2 30 3 *",
)  # fmt: skip

instants = st.one_of(
    st.datetimes(datetime(1975, 1, 1), datetime(2075, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    # The days on which the zones above change their clocks.
    st.datetimes(datetime(2011, 12, 28), datetime(2012, 1, 2), timezones=st.just(UTC)),  # noqa: DTZ001
    st.datetimes(datetime(2026, 3, 7), datetime(2026, 4, 6), timezones=st.just(UTC)),  # noqa: DTZ001
    st.datetimes(datetime(2026, 10, 3), datetime(2026, 11, 2), timezones=st.just(UTC)),  # noqa: DTZ001
)
crons = st.builds(
    lambda expression, place: parse_cron(expression, name="task", zone=zone(place)),
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(PLACES),
)
intervals = st.builds(
    lambda seconds, anchor: parse_every(f"{seconds}s", anchor=anchor), st.integers(1, 999_999), instants
)
unbounded = st.one_of(crons, intervals, st.builds(Once, instants))
timetables = st.one_of(unbounded, st.builds(Bounded, unbounded, st.none() | instants, st.none() | instants))
many = settings(max_examples=250, deadline=None)


@many
@given(timetables, instants)
def test_nominals_are_whole_seconds_in_utc_strictly_increasing(timetable: Timetable, after: datetime) -> None:
    nominals = timetable.upcoming(after, 12)
    assert all(at.tzinfo is UTC and at.microsecond == 0 for at in nominals)
    assert all(earlier < later for earlier, later in pairwise([after, *nominals]))


@many
@given(timetables, instants, st.data())
def test_every_instant_before_the_next_has_the_same_next(
    timetable: Timetable, after: datetime, data: st.DataObject
) -> None:
    following = timetable.next_after(after)
    if following is None:
        return
    for at in (data.draw(st.datetimes(after.replace(tzinfo=None), following.replace(tzinfo=None))), after):
        between = min(at.replace(tzinfo=UTC), following - timedelta(microseconds=1))
        assert timetable.next_after(between) == following
    assert timetable.next_after(following - SECOND) == following


@many
@given(timetables, instants)
def test_the_last_at_the_next_is_the_next(timetable: Timetable, after: datetime) -> None:
    following = timetable.next_after(after)
    before = timetable.last_at_or_before(after)
    if following is not None:
        assert timetable.last_at_or_before(following) == following
        assert timetable.last_at_or_before(following - SECOND) == before
    if before is not None:
        assert before <= after
        assert timetable.next_after(before) == following
        assert timetable.last_at_or_before(before) == before


@many
@given(timetables, instants, st.timedeltas(timedelta(0), timedelta(days=3)), st.integers(1, 60))
def test_slices_and_counts_agree_with_enumeration(
    timetable: Timetable, after: datetime, span: timedelta, n: int
) -> None:
    every = timetable.upcoming(after, 100, until=after + span)
    until = after + span if len(every) < 100 else every[-1]
    assert timetable.count(after, until) == len(every)
    assert timetable.last_n(after, until, 200) == every
    assert timetable.last_n(after, until, n) == every[-n:]
    assert timetable.upcoming(after, n, until=until) == every[:n]
    assert timetable.upcoming(after, n)[: len(every)] == every[:n]
    assert timetable.upcoming(after, 0) == timetable.upcoming(after, 0, until=until) == []
    assert timetable.last_n(after, until, 0) == []


@many
@given(timetables, st.lists(instants, min_size=3, max_size=3).map(sorted))
def test_counts_add_up(timetable: Timetable, at: list[datetime]) -> None:
    first, second, third = at
    whole = timetable.count(first, third)
    assert whole == timetable.count(first, second) + timetable.count(second, third)
    assert timetable.count(third, first) == 0 or first == third
    assert timetable.count(second, second) == 0


@many
@given(timetables, instants, st.sampled_from(PLACES))
def test_the_zone_of_an_argument_does_not_matter(timetable: Timetable, after: datetime, place: str) -> None:
    local = after.astimezone(zone(place))
    assert timetable.next_after(local) == timetable.next_after(after)
    assert timetable.last_at_or_before(local) == timetable.last_at_or_before(after)


@many
@given(crons)
def test_a_cron_comes_back_from_its_description(cron: CronTimetable) -> None:
    assert parse_cron(cron.describe(), name="task", zone=cron.zone) == cron


@many
@given(intervals)
def test_an_interval_comes_back_from_its_description(every: Timetable) -> None:
    assert parse_every(every.describe().removesuffix(", exactly"), anchor=every.anchor) == every


@many
@given(st.text(alphabet="0123456789*/,-LH#()@ MONFE", max_size=24))
def test_any_text_is_taken_or_refused_with_a_caret(text: str) -> None:
    try:
        cron = parse_cron(text, name="task", zone=zone("UTC"))
    except InvalidCron as refusal:
        assert refusal.caret.count("\n") == 1  # noqa: PT017
        return
    assert cron.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is not None


@many
@given(st.sets(st.integers(29, 31), min_size=1), st.sets(st.integers(1, 12), min_size=1))
def test_what_never_fires_is_refused_and_nothing_else(days: set[int], months: set[int]) -> None:
    longest = max(29 if month == 2 else 30 if month in {4, 6, 9, 11} else 31 for month in months)
    text = f"0 0 {','.join(map(str, days))} {','.join(map(str, months))} *"
    if min(days) > longest:
        with pytest.raises(InvalidCron, match="never fires"):
            parse_cron(text, name="task", zone=zone("UTC"))
    else:
        assert parse_cron(text, name="task", zone=zone("UTC")).upcoming(datetime(2026, 1, 1, tzinfo=UTC), 1)


class Counted:
    """A zone's offsets that count how often they are asked."""

    def __init__(self, inner: ZoneOffsets) -> None:
        self.inner = inner
        self.asked = 0

    def at(self, second: int) -> Stretch:
        self.asked += 1
        return self.inner.at(second)


@pytest.mark.parametrize(("expression", "per_day"), [("* * * * *", 1440), ("* * * * * *", 86_400)])
def test_ten_years_are_counted_by_stretches_of_the_zone(expression: str, per_day: int) -> None:
    cron = parse_cron(expression, name="task", zone=zone("America/New_York"))
    counted = Counted(cron.offsets)
    cron = CronTimetable(
        expression=cron.expression,
        zone=cron.zone,
        pattern=cron.pattern,
        offsets=counted,  # type: ignore[arg-type]
    )
    start = datetime(2016, 11, 21, tzinfo=UTC)
    assert cron.count(start, start + timedelta(days=3652)) == 3652 * per_day
    assert counted.asked < 40


def test_a_naive_time_is_refused() -> None:
    cron = parse_cron("* * * * *", name="task", zone=zone("UTC"))
    with pytest.raises(TypeError):
        cron.next_after(datetime(2026, 1, 1))  # noqa: DTZ001
