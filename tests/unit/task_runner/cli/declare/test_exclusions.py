"""Exclusions from calendar files of foreign origin."""

import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from task_runner.cli.declare.exclusions import read_exclusions
from task_runner.timetable.exclusions import MOST_EXCLUDED
from tests.unit.task_runner.timetable.test_timetable_bounded_work import steps
from turnkeeper.errors import InvalidInput

NOW = datetime(2026, 11, 24, 12, 30, tzinfo=UTC)
EVENT = "BEGIN:VEVENT\nDTSTART{start}\nDTEND{end}\n{rest}END:VEVENT\n"


def calendar(folder: Path, *events: str) -> list[str]:
    text = "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n" + "".join(events) + "END:VCALENDAR\n"
    (folder / "a.ics").write_text(text.replace("\n", "\r\n"))
    return read_exclusions(["a.ics"], folder, NOW)


def vevent(*lines: str) -> str:
    return "\n".join(["BEGIN:VEVENT", *lines, "END:VEVENT\n"])


def refusal(folder: Path, *events: str) -> str:
    with pytest.raises(InvalidInput, match="cannot be read as a calendar") as refused:
        calendar(folder, *events)
    return str(refused.value)


def event(rest: str = "", start: str = ";VALUE=DATE:20270104", end: str = ";VALUE=DATE:20270105") -> str:
    return EVENT.format(start=start, end=end, rest=rest)


def test_a_repeated_event_is_written_out_without_its_exceptions(tmp_path: Path) -> None:
    rest = "RRULE:FREQ=WEEKLY;COUNT=4;BYDAY=MO\nEXDATE;VALUE=DATE:20270111\n"
    assert calendar(tmp_path, event(rest)) == ["2027-01-04", "2027-01-18", "2027-01-25"]
    rest = "RRULE:FREQ=YEARLY;UNTIL=20290104\n"
    assert calendar(tmp_path, event(rest)) == ["2027-01-04", "2028-01-04", "2029-01-04"]
    meeting = event(
        "RRULE:FREQ=DAILY;COUNT=2\n", ";TZID=Europe/Riga:20270327T090000", ";TZID=Europe/Riga:20270327T100000"
    )
    assert calendar(tmp_path, meeting) == [
        "2027-03-27T07:00:00Z..2027-03-27T08:00:00Z",
        "2027-03-28T06:00:00Z..2027-03-28T07:00:00Z",
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=SECONDLY",
        "FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;BYHOUR=1",
        "FREQ=DAILY;COUNT=1000000000",
    ],
)
def test_a_rule_that_would_be_searched_for_hours_is_refused_with_the_file(tmp_path: Path, rule: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read as a calendar") as refused:
        calendar(tmp_path, event(f"RRULE:{rule}\n"))
    assert refused.value.where == str(tmp_path / "a.ics")


WEEKLY = ("UID:1", "DTSTART;VALUE=DATE:20261130", "RRULE:FREQ=WEEKLY;COUNT=3")


PLACES = {
        "a moved instance": (
            [vevent(*WEEKLY), vevent("UID:1", "RECURRENCE-ID;VALUE=DATE:20261207", "DTSTART;VALUE=DATE:20261209")],
            ["2026-11-30", "2026-12-09", "2026-12-14"],
        ),
        "a moved instance and all after it": (
            [
                vevent("UID:1", "DTSTART:20261130T100000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;COUNT=3"),
                vevent("UID:1", "RECURRENCE-ID;RANGE=THISANDFUTURE:20261207T100000Z", "DTSTART:20261208T120000Z", "DURATION:PT2H"),
            ],
            [
                "2026-11-30T10:00:00Z..2026-11-30T11:00:00Z", "2026-12-08T12:00:00Z..2026-12-08T14:00:00Z",
                "2026-12-15T12:00:00Z..2026-12-15T14:00:00Z",
            ],
        ),
        "an instance that is cancelled": (
            [vevent(*WEEKLY), vevent("UID:1", "RECURRENCE-ID;VALUE=DATE:20261207", "DTSTART;VALUE=DATE:20261207", "STATUS:CANCELLED")],
            ["2026-11-30", "2026-12-14"],
        ),
        "an event that is cancelled": ([vevent(*WEEKLY, "STATUS:cancelled")], []),
        "an event that is marked as free": ([vevent("DTSTART;VALUE=DATE:20261225", "TRANSP:TRANSPARENT")], ["2026-12-25"]),
        "dates and periods that are listed": (
            [
                vevent(*WEEKLY, "RDATE;VALUE=DATE:20261203,20261204", "EXDATE;VALUE=DATE:20261207"),
                vevent("DTSTART:20261201T100000Z", "DURATION:PT1H", "RDATE;VALUE=PERIOD:20261202T100000Z/PT3H"),
            ],
            [
                "2026-11-30", "2026-12-01T10:00:00Z..2026-12-01T11:00:00Z", "2026-12-02T10:00:00Z..2026-12-02T13:00:00Z",
                "2026-12-03", "2026-12-04", "2026-12-14",
            ],
        ),
        "a night in which the clock changes": (
            [vevent("DTSTART;TZID=Europe/Riga:20270327T220000", "DTEND;TZID=Europe/Riga:20270328T060000")],
            ["2027-03-27T20:00:00Z..2027-03-28T03:00:00Z"],
        ),
        "floating times": ([vevent("DTSTART:20261201T100000", "DTEND:20261201T113000")], ["2026-12-01T10:00:00..2026-12-01T11:30:00"]),
        "floating times of a calendar with a zone": (
            ["X-WR-TIMEZONE:Europe/Riga\n", vevent("DTSTART:20261201T100000", "DTEND:20261201T113000")],
            ["2026-12-01T08:00:00Z..2026-12-01T09:30:00Z"],
        ),
        "a zone by its name in Windows": (
            [vevent("DTSTART;TZID=W. Europe Standard Time:20261201T100000", "DURATION:PT1H")],
            ["2026-12-01T09:00:00Z..2026-12-01T10:00:00Z"],
        ),
        "an event under way": ([vevent("DTSTART;VALUE=DATE:20261120", "DTEND;VALUE=DATE:20261130")], ["2026-11-20..2026-11-29"]),
        "a past event": ([vevent("DTSTART;VALUE=DATE:20260720")], []),
        "last month's event, that a catch-up may still ask for": ([vevent("DTSTART;VALUE=DATE:20261002")], ["2026-10-02"]),
        "two calendars in one file": (
            [vevent("DTSTART;VALUE=DATE:20261225"), "END:VCALENDAR\nBEGIN:VCALENDAR\n", vevent("DTSTART;VALUE=DATE:20261226")],
            ["2026-12-25", "2026-12-26"],
        ),
    }  # fmt: skip


@pytest.mark.parametrize(("events", "covered"), PLACES.values(), ids=PLACES)
def test_an_event_excludes_when_it_takes_place(tmp_path: Path, capsys, events: list[str], covered: list[str]) -> None:
    assert calendar(tmp_path, *events) == covered
    assert capsys.readouterr().err == ""


def test_a_workday_event_that_began_years_ago_excludes_the_workdays_to_come(tmp_path: Path, capsys) -> None:
    days = calendar(tmp_path, vevent("DTSTART;VALUE=DATE:20200106", "RRULE:FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR"))
    assert (len(days), days[0], "2026-11-24" in days, "2026-11-28" in days) == (
        MOST_EXCLUDED,
        "2026-10-01",
        True,
        False,
    )
    assert days[-1] == "2034-05-31"
    assert (
        "events from 2034-06-01 on are left out: a task accepts 2000 exclusions; before then" in capsys.readouterr().err
    )
    assert len(read_exclusions(["2026-12-24", "a.ics", "2026-12-26"], tmp_path, NOW)) == MOST_EXCLUDED


def test_the_end_of_what_is_read_is_said_if_events_take_place_after_it(tmp_path: Path, capsys) -> None:
    said = "a.ics: events from 2036-10-01 on are left out; before then"
    for *rest, is_said in (
        ("DTSTART;VALUE=DATE:20260704", "RRULE:FREQ=YEARLY", True),
        ("DTSTART;VALUE=DATE:20260704", "RRULE:FREQ=YEARLY;COUNT=11", False),
        ("DTSTART;VALUE=DATE:20260704", "RRULE:FREQ=YEARLY;UNTIL=20380101", True),
        ("DTSTART;VALUE=DATE:20400101", True),
        ("DTSTART;VALUE=DATE:20261201", "RDATE;VALUE=DATE:20361201", True),
    ):
        calendar(tmp_path, vevent(*rest))
        assert (said in capsys.readouterr().err) == is_said, rest


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("DTSTART:20261201T100000Z",), "the event 'Call' of 20261201T100000Z has no length and excludes nothing"),
        (("UID:1", "DTSTART;VALUE=DATE:20261224"), "'Call' of 20261224 has the UID of another"),
        (("DTSTART;VALUE=DATE:20261225", "END:VEVENT", "BEGIN:VTODO", "SUMMARY:x", "END:VTODO", "BEGIN:VEVENT", "DTSTART;VALUE=DATE:20261225"),
         "1 VTODO are left out: only events exclude times"),
    ],
)  # fmt: skip
def test_what_excludes_nothing_is_said_and_the_rest_is_read(
    tmp_path: Path, capsys, lines: tuple[str, ...], says: str
) -> None:
    other = vevent("UID:1", "DTSTART;VALUE=DATE:20261225", "SEQUENCE:1")
    assert calendar(tmp_path, other, vevent(*lines, "SUMMARY:Call")) == ["2026-12-25"]
    assert f"warning: {tmp_path}/a.ics: " in (err := capsys.readouterr().err)
    assert says in err


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("DTSTART;TZID=Nowhere/X:20261201T100000", "DURATION:PT1H"), "'Nowhere/X' is not a time zone"),
        ((*WEEKLY, "EXDATE;TZID=Nowhere/X:20261207T100000"), "'Nowhere/X' is not a time zone"),
        ((*WEEKLY, "EXDATE:soon"), "EXDATE: cannot be read"),
        (("DTSTART;VALUE=DATE:20261201", "DTEND:x"), "DTEND: cannot be read"),
        (("DTSTART:x", "DTEND:20261201T100000Z"), "DTSTART: cannot be read"),
        ((*WEEKLY, "EXRULE:FREQ=DAILY"), "EXRULE: cannot be read"),
        (("DTSTART;VALUE=DATE:20261130", "RRULE:FREQ=SOMETIMES"), "RRULE"),
        (("DTSTART;VALUE=DATE:20261130", "RRULE:FREQ=DAILY;BYEASTER=1"), "BYEASTER"),
        (("DTSTART:20200101T000000Z", "DURATION:PT1M", "RRULE:FREQ=MINUTELY"), "repeats more than 50000 times"),
        (("DTSTART:20261201T100000Z", "DTEND:20261201T090000Z"), "ends before it starts"),
        (("UID:1",), "DTSTART"),
    ],
)  # fmt: skip
def test_an_event_whose_times_cannot_be_told_is_refused_by_name(
    tmp_path: Path, lines: tuple[str, ...], says: str
) -> None:
    text = refusal(tmp_path, vevent(*WEEKLY), vevent(*lines, "SUMMARY:Call"))
    assert text.startswith(f"{tmp_path}/a.ics: cannot be read as a calendar: the event 'Call' of ")
    assert says in text
    assert "correct the event, or remove it" in text


def test_reading_an_unchanged_file_the_next_day_changes_nothing(tmp_path: Path) -> None:
    first = calendar(tmp_path, vevent("DTSTART;VALUE=DATE:20200106", "RRULE:FREQ=MONTHLY"))
    assert read_exclusions(["a.ics"], tmp_path, NOW.replace(day=30)) == first


def test_a_calendar_of_many_events_is_read_no_further_than_a_task_can_hold(tmp_path: Path, capsys) -> None:
    dates = [
        f"20{year:02}{month:02}{day:02}" for year in range(27, 99) for month in range(1, 13) for day in range(1, 29)
    ]
    events = [event(start=f";VALUE=DATE:{date}", end=f";VALUE=DATE:{date}") for date in islice(dates, 5000)]
    assert len(calendar(tmp_path, *events)) == MOST_EXCLUDED
    assert "events from 2032-12-13 on are left out" in capsys.readouterr().err
    assert steps(lambda: calendar(tmp_path, *[event("RRULE:FREQ=DAILY\n")] * 20)) < 5_000_000


def test_without_the_package_for_calendars_the_command_names_the_extra_and_days_are_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "recurring_ical_events", None)
    with pytest.raises(InvalidInput, match="the package for calendars is missing") as refused:
        calendar(tmp_path, event())
    assert "turnkeeper[calendars]" in refused.value.hint
    assert read_exclusions(["2026-12-25"], tmp_path, NOW) == ["2026-12-25"]
