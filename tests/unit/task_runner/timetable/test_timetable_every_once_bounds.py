"""Intervals, single instants, bounds and zones."""

from datetime import UTC, datetime, timedelta

import pytest

from task_runner.timetable import Bounded, EveryTimetable, Once, Timetable, parse_cron, parse_every, zone
from turnkeeper.errors import InvalidInput

ANCHOR = datetime(2026, 11, 21, 9, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_an_interval_counts_from_its_anchor_and_nothing_is_snapped() -> None:
    every = parse_every("7m", anchor=ANCHOR + SECOND)
    assert every.upcoming(ANCHOR, 3) == [
        ANCHOR + SECOND,
        ANCHOR + timedelta(minutes=7, seconds=1),
        ANCHOR + timedelta(minutes=14, seconds=1),
    ]


def test_an_interval_reaches_back_before_its_anchor() -> None:
    every = parse_every("1h", anchor=ANCHOR)
    assert every.last_at_or_before(ANCHOR - SECOND) == ANCHOR - timedelta(hours=1)


def test_an_interval_does_not_see_daylight_saving() -> None:
    every = parse_every("1d", anchor=datetime(2026, 3, 7, 14, tzinfo=UTC))
    assert every.upcoming(datetime(2026, 3, 8, tzinfo=UTC), 2) == [
        datetime(2026, 3, 8, 14, tzinfo=UTC),
        datetime(2026, 3, 9, 14, tzinfo=UTC),
    ]


def test_an_interval_drops_the_fraction_of_its_anchor() -> None:
    every = parse_every("10s", anchor=ANCHOR + timedelta(microseconds=999_999))
    assert every.next_after(ANCHOR) == ANCHOR + 10 * SECOND
    assert every.anchor == ANCHOR


def test_an_interval_is_counted_without_enumerating() -> None:
    every = parse_every("1s", anchor=ANCHOR)
    assert every.count(ANCHOR, ANCHOR + timedelta(days=36_500)) == 36_500 * 86_400


@pytest.mark.parametrize("text", ["0s", "0d", "", "7", "-5m", "1x", "every"])
def test_an_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_every(text, anchor=ANCHOR)


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(milliseconds=1500), -SECOND])
def test_an_interval_is_whole_seconds(interval: timedelta) -> None:
    with pytest.raises(InvalidInput, match="whole seconds"):
        EveryTimetable(anchor=ANCHOR, interval=interval)


def test_once_is_once() -> None:
    once = Once(ANCHOR)
    assert once.next_after(ANCHOR - SECOND) == ANCHOR
    assert once.next_after(ANCHOR) is None
    assert once.last_at_or_before(ANCHOR) == ANCHOR
    assert once.last_at_or_before(ANCHOR - SECOND) is None
    assert once.count(ANCHOR - SECOND, ANCHOR) == 1
    assert once.count(ANCHOR, ANCHOR + SECOND) == 0


def test_once_is_in_utc_and_never_early() -> None:
    once = Once(datetime(2026, 11, 21, 10, 59, 59, 1, tzinfo=zone("Europe/Riga")))
    assert once.at.isoformat() == "2026-11-21T09:00:00+00:00"


DESCRIPTIONS: list[tuple[Timetable, str]] = [
    (parse_every("7m", anchor=ANCHOR), "every 7m, exactly"),
    (parse_every("every 2 hours", anchor=ANCHOR), "every 2h, exactly"),
    (Once(ANCHOR), "at 2026-11-21T09:00:00Z"),
    (parse_cron("0 9 * * 1-5", name="a", zone=zone("UTC")), "0 9 * * 1-5"),
]


@pytest.mark.parametrize(("timetable", "line"), DESCRIPTIONS)
def test_describe(timetable: Timetable, line: str) -> None:
    assert timetable.describe() == line
    assert Bounded(timetable).describe() == line
    assert isinstance(timetable, Timetable)


def test_both_bounds_are_included() -> None:
    bounded = Bounded(parse_every("1h", anchor=ANCHOR), ANCHOR, ANCHOR + timedelta(hours=2))
    hours = [ANCHOR + timedelta(hours=number) for number in range(3)]
    assert bounded.upcoming(ANCHOR - timedelta(days=1), 9) == hours
    assert bounded.last_n(ANCHOR - timedelta(days=1), ANCHOR + timedelta(days=1), 9) == hours
    assert bounded.last_n(ANCHOR - timedelta(days=1), ANCHOR + timedelta(days=1), 2) == hours[1:]
    assert bounded.upcoming(ANCHOR - timedelta(days=1), 2, until=ANCHOR + timedelta(days=1)) == hours[:2]
    assert bounded.count(ANCHOR - timedelta(days=1), ANCHOR + timedelta(days=1)) == 3


def test_beyond_its_bounds_there_is_nothing() -> None:
    bounded = Bounded(parse_every("1h", anchor=ANCHOR), ANCHOR, ANCHOR + timedelta(hours=2))
    assert bounded.next_after(ANCHOR + timedelta(hours=2)) is None
    assert bounded.last_at_or_before(ANCHOR - SECOND) is None
    assert bounded.count(ANCHOR + timedelta(hours=2), ANCHOR + timedelta(days=1)) == 0
    assert bounded.count(ANCHOR - timedelta(days=2), ANCHOR - timedelta(days=1)) == 0


@pytest.mark.parametrize(("fraction", "kept"), [(0, 2), (1, 1)])
def test_a_start_between_two_seconds_leaves_the_earlier_out(fraction: int, kept: int) -> None:
    bounded = Bounded(parse_every("1h", anchor=ANCHOR), ANCHOR + timedelta(microseconds=fraction))
    assert bounded.count(ANCHOR - timedelta(hours=5), ANCHOR + timedelta(hours=1)) == kept


@pytest.mark.parametrize("name", ["Europe/Riga", "UTC", "America/Argentina/Ushuaia", "EST5EDT"])
def test_a_zone_is_found_by_name(name: str) -> None:
    assert zone(name).key == name


@pytest.mark.parametrize(
    "name",
    ["", "localtime", "posixrules", "Factory", "europe/riga", "Riga", "EST6EST", "+02:00", "/etc/localtime",
     "../UTC", "Europe/Riga\0", "posix/UTC", "right/UTC", "zone.tab", "x" * 9999],
)  # fmt: skip
def test_a_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a time zone"):
        zone(name)


def test_a_zone_written_in_small_letters_is_suggested() -> None:
    with pytest.raises(InvalidInput) as refusal:
        zone("europe/riga")
    assert refusal.value.hint == "did you mean Europe/Riga?"
