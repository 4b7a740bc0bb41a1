"""Exclusions from calendar files of foreign origin."""

from itertools import islice
from pathlib import Path

import pytest

from task_runner.cli.exclusions import read_exclusions
from task_runner.timetable.exclusions import MOST_EXCLUDED
from tests.unit.task_runner.timetable.test_timetable_bounded_work import steps
from turnkeeper.errors import InvalidInput

EVENT = "BEGIN:VEVENT\nDTSTART{start}\nDTEND{end}\n{rest}END:VEVENT\n"


def calendar(folder: Path, *events: str) -> list[str]:
    text = "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n" + "".join(events) + "END:VCALENDAR\n"
    (folder / "a.ics").write_text(text.replace("\n", "\r\n"))
    return read_exclusions(["a.ics"], folder)


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


def test_a_calendar_of_many_events_is_read_no_further_than_a_task_can_hold(tmp_path: Path) -> None:
    dates = [
        f"20{year:02}{month:02}{day:02}" for year in range(27, 99) for month in range(1, 13) for day in range(1, 29)
    ]
    events = [event(start=f";VALUE=DATE:{date}", end=f";VALUE=DATE:{date}") for date in islice(dates, 5000)]
    assert len(calendar(tmp_path, *events)) == MOST_EXCLUDED + 1
    assert steps(lambda: calendar(tmp_path, *[event("RRULE:FREQ=DAILY\n")] * 20)) < 5_000_000
