"""Durations are read and written exactly."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration, written_time


@given(st.integers(min_value=0, max_value=36_525 * 86_400))
def test_a_duration_reads_back_exactly(seconds: int) -> None:
    duration = timedelta(seconds=seconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    "text",
    ["", "5", "m", "1x", "1m2m", "-5m", "1.5h", "1e3s", "٥m", "nan", "1h\x00", "every", "99999999999d", "15m;ls"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_duration(text, field="--every")


FRIDAY = datetime(2026, 11, 20, 15, 30, 5, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ahead", "back"),
    [
        ("now", "2026-11-20T15:30:05Z", "2026-11-20T15:30:05Z"),
        ("2h", "2026-11-20T17:30:05Z", "2026-11-20T13:30:05Z"),
        ("in 1h30m", "2026-11-20T17:00:05Z", "2026-11-20T17:00:05Z"),
        ("2 days ago", "2026-11-18T15:30:05Z", "2026-11-18T15:30:05Z"),
        ("tomorrow 9am", "2026-11-21T09:00:00", "2026-11-21T09:00:00"),
        ("Tomorrow at 9:30pm", "2026-11-21T21:30:00", "2026-11-21T21:30:00"),
        ("yesterday", "2026-11-19T00:00:00", "2026-11-19T00:00:00"),
        ("today noon", "2026-11-20T12:00:00", "2026-11-20T12:00:00"),
        ("fri 9am", "2026-11-27T09:00:00", "2026-11-13T09:00:00"),
        ("saturday", "2026-11-21T00:00:00", "2026-11-14T00:00:00"),
        ("thu 17:05", "2026-11-26T17:05:00", "2026-11-19T17:05:00"),
        ("9am", "2026-11-21T09:00:00", "2026-11-20T09:00:00"),
        ("17:30", "2026-11-20T17:30:00", "2026-11-19T17:30:00"),
        ("12am", "2026-11-21T00:00:00", "2026-11-20T00:00:00"),
        ("12pm", "2026-11-21T12:00:00", "2026-11-20T12:00:00"),
        ("2026-12-24 6pm", "2026-12-24T18:00:00", "2026-12-24T18:00:00"),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, ahead: str, back: str) -> None:
    assert (written_time(text, FRIDAY), written_time(text, FRIDAY, past=True)) == (ahead, back)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "9",
        "25:00",
        "13pm",
        "0am",
        "9:75",
        "tomorrow soon",
        "mo 9am",
        "2026-11-21T09:00:00Z",
        "2026-02-30",
        "9am ago",
    ],
)
def test_any_other_text_is_left_to_who_reads_it(text: str) -> None:
    assert written_time(text, FRIDAY) == text
