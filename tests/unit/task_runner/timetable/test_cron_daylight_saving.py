"""What cron does where the wall clock jumps, as data: zone, expression, from when, and the local times that follow.

The rule for a fixed time (hour and minute are plain lists): it fires at the first instant at which the wall clock shows
it or a later time. For wildcards and steps: whenever the wall clock shows a named time.
"""

from datetime import UTC, datetime, timedelta

import pytest

from task_runner.timetable import parse_cron, zone

NEW_YORK = [
    (
        "a fixed time at which the gap ends",
        "0 3 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-09T03:00-04:00"],
    ),
    # The gap of 8 March 2026: 02:00-05:00 is followed by 03:00-04:00.
    (
        "a fixed time in the gap fires when it ends",
        "30 2 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
    ),
    (
        "several fixed times in one gap are one nominal",
        "0,20,40 2 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-09T02:00-04:00", "2026-03-09T02:20-04:00"],
    ),
    (
        "also together with the time at which it ends",
        "30 2,3 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-08T03:30-04:00", "2026-03-09T02:30-04:00"],
    ),
    (
        "never two fires with one nominal",
        "0 2,3 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-09T02:00-04:00"],
    ),
    (
        "a range is a plain list",
        "15 1-3 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T01:15-05:00", "2026-03-08T03:00-04:00", "2026-03-08T03:15-04:00", "2026-03-09T01:15-04:00"],
    ),
    (
        "seconds do not make a time less fixed",
        "*/20 30 2 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00", "2026-03-09T02:30:20-04:00"],
    ),
    (
        "a step runs in real time through the gap",
        "*/30 * * * *",
        "2026-03-08T01:00-05:00",
        ["2026-03-08T01:30-05:00", "2026-03-08T03:00-04:00", "2026-03-08T03:30-04:00"],
    ),
    (
        "a skipped time of a step does not occur",
        "*/30 2 * * *",
        "2026-03-07T12:00-05:00",
        ["2026-03-09T02:00-04:00", "2026-03-09T02:30-04:00"],
    ),
    ("a start with a step is a step", "15/30 2 * * *", "2026-03-07T12:00-05:00", ["2026-03-09T02:15-04:00"]),
    (
        "a step in the hour is enough",
        "30 */2 * * *",
        "2026-03-08T00:30-05:00",
        ["2026-03-08T04:30-04:00", "2026-03-08T06:30-04:00"],
    ),
    ("a fixed time of the day after is not moved", "0 0 * * *", "2026-03-08T00:00-05:00", ["2026-03-09T00:00-04:00"]),
    # The overlap of 1 November 2026: 02:00-04:00 is followed by 01:00-05:00.
    (
        "a fixed time in the overlap fires the first time",
        "30 1 * * *",
        "2026-10-31T12:00-04:00",
        ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"],
    ),
    ("asked between the two, it has fired", "30 1 * * *", "2026-11-01T01:15-05:00", ["2026-11-02T01:30-05:00"]),
    (
        "a fixed time after the overlap is once anyway",
        "0 2 * * *",
        "2026-10-31T12:00-04:00",
        ["2026-11-01T02:00-05:00", "2026-11-02T02:00-05:00"],
    ),
    (
        "every 15 minutes fires in both passes",
        "*/15 * * * *",
        "2026-11-01T01:30-04:00",
        ["2026-11-01T01:45-04:00", "2026-11-01T01:00-05:00", "2026-11-01T01:15-05:00", "2026-11-01T01:30-05:00"],
    ),
    (
        "hourly fires in both passes",
        "@hourly",
        "2026-11-01T00:30-04:00",
        ["2026-11-01T01:00-04:00", "2026-11-01T01:00-05:00", "2026-11-01T02:00-05:00"],
    ),
    (
        "a step on one day of the year fires in both passes",
        "*/30 1 1 11 *",
        "2026-10-31T12:00-04:00",
        [
            "2026-11-01T01:00-04:00",
            "2026-11-01T01:30-04:00",
            "2026-11-01T01:00-05:00",
            "2026-11-01T01:30-05:00",
            "2027-11-01T01:00-04:00",
        ],
    ),
]

LONDON = [
    ("gap", "30 1 * * *", "2026-03-28T12:00+00:00", ["2026-03-29T02:00+01:00", "2026-03-30T01:30+01:00"]),
    ("overlap", "30 1 * * *", "2026-10-24T12:00+01:00", ["2026-10-25T01:30+01:00", "2026-10-26T01:30+00:00"]),
    (
        "overlap, step",
        "*/30 1 * * *",
        "2026-10-25T00:00+01:00",
        ["2026-10-25T01:00+01:00", "2026-10-25T01:30+01:00", "2026-10-25T01:00+00:00", "2026-10-25T01:30+00:00"],
    ),
]

RIGA = [
    ("gap", "30 3 * * *", "2026-03-28T12:00+02:00", ["2026-03-29T04:00+03:00", "2026-03-30T03:30+03:00"]),
    (
        "gap, only on Sundays",
        "0 3 * * sun",
        "2026-03-22T12:00+02:00",
        ["2026-03-29T04:00+03:00", "2026-04-05T03:00+03:00"],
    ),
    ("overlap", "0 3 * * *", "2026-10-24T12:00+03:00", ["2026-10-25T03:00+03:00", "2026-10-26T03:00+02:00"]),
]

SANTIAGO = [
    # Midnight itself is skipped on 6 September, and 23:00 to 24:00 shown twice on 4 April.
    (
        "midnight in the gap",
        "0 0 * * *",
        "2026-09-05T12:00-04:00",
        ["2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"],
    ),
    ("the day still begins", "@daily", "2026-09-05T12:00-04:00", ["2026-09-06T01:00-03:00"]),
    (
        "half past midnight in the gap, on Sundays",
        "30 0 * * 0",
        "2026-09-05T12:00-04:00",
        ["2026-09-06T01:00-03:00", "2026-09-13T00:30-03:00"],
    ),
    (
        "a wildcard after the gap",
        "*/30 1 * * 0",
        "2026-09-05T12:00-04:00",
        ["2026-09-06T01:00-03:00", "2026-09-06T01:30-03:00", "2026-09-13T01:00-03:00"],
    ),
    (
        "late evening, shown twice",
        "30 23 * * *",
        "2026-04-04T12:00-03:00",
        ["2026-04-04T23:30-03:00", "2026-04-05T23:30-04:00"],
    ),
    ("midnight after it", "0 0 * * *", "2026-04-04T12:00-03:00", ["2026-04-05T00:00-04:00", "2026-04-06T00:00-04:00"]),
    (
        "hourly",
        "0 * * * *",
        "2026-04-04T22:30-03:00",
        ["2026-04-04T23:00-03:00", "2026-04-04T23:00-04:00", "2026-04-05T00:00-04:00"],
    ),
]

LORD_HOWE = [
    # The clock moves by thirty minutes.
    ("gap", "15 2 * * *", "2026-10-03T12:00+10:30", ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
    ("after the gap", "45 2 * * *", "2026-10-03T12:00+10:30", ["2026-10-04T02:45+11:00"]),
    ("gap, step", "*/15 2 * * *", "2026-10-04T00:00+10:30", ["2026-10-04T02:30+11:00", "2026-10-04T02:45+11:00"]),
    ("overlap", "45 1 * * *", "2026-04-04T12:00+11:00", ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]),
    (
        "overlap, step",
        "*/15 1 * * *",
        "2026-04-05T01:15+11:00",
        ["2026-04-05T01:30+11:00", "2026-04-05T01:45+11:00", "2026-04-05T01:30+10:30", "2026-04-05T01:45+10:30"],
    ),
]

APIA = [
    # 29 December 2011 was followed by 31 December.
    (
        "a fixed time on the missing day fires when it is over",
        "0 9 * * *",
        "2011-12-29T09:00-10:00",
        ["2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"],
    ),
    (
        "also on the missing Friday",
        "0 9 * * fri",
        "2011-12-29T12:00-10:00",
        ["2011-12-31T00:00+14:00", "2012-01-06T09:00+14:00"],
    ),
    (
        "all times of the missing day are one nominal",
        "0 9-17 30 * *",
        "2011-12-29T12:00-10:00",
        ["2011-12-31T00:00+14:00", "2012-01-30T09:00+14:00"],
    ),
    (
        "a missing day is still the last Friday of its month",
        "0 9 * * 5L",
        "2011-12-29T12:00-10:00",
        ["2011-12-31T00:00+14:00", "2012-01-27T09:00+14:00"],
    ),
    ("and the fifth", "0 9 * * fri#5", "2011-12-01T00:00-10:00", ["2011-12-31T00:00+14:00", "2012-03-30T09:00+14:00"]),
    ("the last day is the 31st, as ever", "0 9 L * *", "2011-12-29T12:00-10:00", ["2011-12-31T09:00+14:00"]),
    (
        "in real time the missing day does not occur",
        "0 */12 * * *",
        "2011-12-29T11:00-10:00",
        ["2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00"],
    ),
    ("nor does its Friday", "0 */12 * * 5L", "2011-12-29T11:00-10:00", ["2012-01-27T00:00+14:00"]),
]

DUBLIN = [
    # Winter is the daylight saving time there, an hour behind: zoneinfo reports it as negative.
    ("gap", "30 1 * * *", "2026-03-28T12:00+00:00", ["2026-03-29T02:00+01:00", "2026-03-30T01:30+01:00"]),
    ("overlap", "30 1 * * *", "2026-10-24T12:00+01:00", ["2026-10-25T01:30+01:00", "2026-10-26T01:30+00:00"]),
]

CASABLANCA = [
    # An hour back for Ramadan (15 February) and forward after it (22 March).
    ("overlap", "30 2 * * *", "2026-02-14T12:00+01:00", ["2026-02-15T02:30+01:00", "2026-02-16T02:30+00:00"]),
    (
        "overlap, step",
        "*/30 2 * * *",
        "2026-02-15T02:00+01:00",
        ["2026-02-15T02:30+01:00", "2026-02-15T02:00+00:00", "2026-02-15T02:30+00:00"],
    ),
    ("gap", "30 2 * * *", "2026-03-21T12:00+00:00", ["2026-03-22T03:00+01:00", "2026-03-23T02:30+01:00"]),
]

VECTORS = [
    pytest.param(name, *vector[1:], id=f"{name}: {vector[0]}")
    for name, vectors in {
        "America/New_York": NEW_YORK,
        "Europe/London": LONDON,
        "Europe/Riga": RIGA,
        "America/Santiago": SANTIAGO,
        "Australia/Lord_Howe": LORD_HOWE,
        "Pacific/Apia": APIA,
        "Europe/Dublin": DUBLIN,
        "Africa/Casablanca": CASABLANCA,
    }.items()
    for vector in vectors
]  # fmt: skip


@pytest.mark.parametrize(("place", "expression", "after", "expected"), VECTORS)
def test_fires_follow(place: str, expression: str, after: str, expected: list[str]) -> None:
    cron = parse_cron(expression, name="task", zone=zone(place))
    wanted = [datetime.fromisoformat(text) for text in expected]
    nominals = cron.upcoming(datetime.fromisoformat(after), len(wanted))
    assert [at.astimezone(zone(place)).isoformat() for at in nominals] == [at.isoformat() for at in wanted]


@pytest.mark.parametrize(("place", "expression", "after", "expected"), VECTORS)
def test_looking_back_and_counting_agree(place: str, expression: str, after: str, expected: list[str]) -> None:
    cron = parse_cron(expression, name="task", zone=zone(place))
    wanted = [datetime.fromisoformat(text).astimezone(UTC) for text in expected]
    start = datetime.fromisoformat(after)
    assert cron.last_n(start, wanted[-1], 99) == wanted
    assert cron.count(start, wanted[-1]) == len(wanted)
    assert cron.count(start, wanted[-1] - timedelta(seconds=1)) == len(wanted) - 1


def test_what_a_zone_always_skips_ends_the_search_with_none() -> None:
    # The second Sunday of March is the day of the change, each year since 2007.
    cron = parse_cron("*/15 2 * 3 0#2", name="task", zone=zone("America/New_York"))
    assert cron.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert cron.count(datetime(2026, 1, 1, tzinfo=UTC), datetime(2046, 1, 1, tzinfo=UTC)) == 0
