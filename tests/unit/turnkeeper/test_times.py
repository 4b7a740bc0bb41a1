"""Durations are read and written exactly."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration


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
