"""Exclusions: days of a zone and spans of time that a schedule leaves out."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_runner.timetable import Timetable, check_excluded, excluding, parse_cron, parse_every, zone
from turnkeeper.errors import InvalidInput

T0 = datetime(2026, 12, 20, tzinfo=UTC)


def hourly(*texts: str, place: str = "UTC") -> Timetable:
    table = parse_cron("0 * * * *", name="a", zone=zone(place))
    return excluding(table, check_excluded(texts, zone(place)), zone(place))


def test_a_day_is_a_day_of_the_tasks_zone() -> None:
    table = hourly("2026-12-25", place="Europe/Riga")
    assert table.last_at_or_before(datetime(2026, 12, 25, 12, tzinfo=UTC)) == datetime(2026, 12, 24, 21, tzinfo=UTC)
    assert table.next_after(datetime(2026, 12, 24, 21, tzinfo=UTC)) == datetime(2026, 12, 25, 22, tzinfo=UTC)


def test_ranges_include_their_last_day_and_spans_do_not_include_their_end() -> None:
    table = hourly("2026-12-24..2026-12-26", "2026-12-27T10:00:00Z..2026-12-27T12:00:00Z")
    assert table.count(T0, T0 + timedelta(days=10)) == 240 - 72 - 2
    assert table.next_after(datetime(2026, 12, 27, 9, tzinfo=UTC)) == datetime(2026, 12, 27, 12, tzinfo=UTC)


def test_a_span_without_offsets_is_one_of_the_tasks_wall_clock() -> None:
    for place, hours in (("UTC", 0), ("Europe/Riga", 2), ("America/New_York", -5)):
        table = hourly("2026-12-24T10:00:00..2026-12-24T12:00", place=place)
        first = datetime(2026, 12, 24, 9, tzinfo=UTC) - timedelta(hours=hours)
        assert table.next_after(first) == first + timedelta(hours=3)
    # In a gap a time is its end, and of two times that are shown alike it is the first.
    night = parse_every("30m", anchor=T0)
    spring = excluding(
        night, check_excluded(["2026-03-29T03:30..2026-03-29T05:00"], zone("Europe/Riga")), zone("Europe/Riga")
    )
    assert spring.next_after(datetime(2026, 3, 29, 0, 30, tzinfo=UTC)) == datetime(2026, 3, 29, 2, tzinfo=UTC)
    autumn = excluding(
        night, check_excluded(["2026-10-25T03:30..2026-10-25T04:00"], zone("Europe/Riga")), zone("Europe/Riga")
    )
    assert autumn.next_after(datetime(2026, 10, 25, 0, 0, tzinfo=UTC)) == datetime(2026, 10, 25, 2, tzinfo=UTC)


def test_a_day_that_the_zone_skipped_excludes_nothing() -> None:
    assert hourly("2011-12-30", place="Pacific/Apia").count(
        datetime(2011, 12, 29, tzinfo=UTC), datetime(2012, 1, 1, tzinfo=UTC)
    ) == 72  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["25 December"], "not a day"),
        (["2026-13-01"], "not a day"),
        (["2026-12-26..2026-12-24"], "ends before"),
        (["2026-12-24T10:00..2026-12-24T12:00Z"], "not a day"),
        (["2026-12-24..2026-12-24T12:00"], "not a day"),
        (["2026-12-24T10:00..2026-12-24T10:00"], "ends before"),
        (["2026-12-24T12:00:00Z..2026-12-24T12:00:00Z"], "ends before"),
        ([f"{2000 + n // 300}-{n % 12 + 1:02}-{n % 25 + 1:02}" for n in range(12000)], "more than"),
    ],
)
def test_what_is_no_exclusion_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        check_excluded(texts, zone("UTC"))


spans = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(1, 400)).map(
        lambda pair: (
            f"{(T0 + timedelta(minutes=pair[0])).isoformat()}..{(T0 + timedelta(minutes=sum(pair))).isoformat()}"
        )
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(texts=spans, minutes=st.integers(1, 90), after=st.integers(-100, 5500), width=st.integers(0, 3000))
def test_it_is_the_timetable_less_the_spans(texts: list[str], minutes: int, after: int, width: int) -> None:
    plain = parse_every(f"{minutes}m", anchor=T0)
    table = excluding(plain, texts, zone("UTC"))
    start = T0 + timedelta(minutes=after)
    end = start + timedelta(minutes=width)
    bounds = [tuple(map(datetime.fromisoformat, text.split(".."))) for text in texts]
    expected = [
        at for at in plain.upcoming(start, 9999, until=end) if not any(low <= at < high for low, high in bounds)
    ]
    assert table.upcoming(start, 9999, until=end) == table.last_n(start, end, 9999) == expected
    assert table.count(start, end) == len(expected)


@pytest.mark.parametrize("text", ["9999-12-30..9999-12-31", "9999-12-31", "9990-06-01..9999-12-31"])
def test_days_behind_the_last_that_a_schedule_has_exclude_nothing(text: str) -> None:
    assert check_excluded([text], zone("Europe/Riga")) == (text,)
    table = parse_cron("0 0 * * *", name="a", zone=zone("UTC"))
    assert excluding(table, [text], zone("UTC")).next_after(T0) == table.next_after(T0)
