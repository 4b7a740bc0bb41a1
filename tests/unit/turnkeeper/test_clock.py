"""The clock that several machines share goes on steadily, and is never ahead of the database's."""

from datetime import UTC, datetime, timedelta

import pytest

from turnkeeper.clock import SharedClock

START = datetime(2026, 3, 2, 9, tzinfo=UTC)


class Steady(SharedClock):
    """One whose steady counter is set by hand."""

    counter_s = 0.0

    def monotonic(self) -> float:
        """Return what was set."""
        return self.counter_s


def test_an_answer_that_took_long_does_not_set_it_back() -> None:
    clock = Steady()
    clock.set(START)
    clock.counter_s = 2.0
    before = clock.now()
    clock.set(START + timedelta(seconds=1.7), waited_s=0.4)  # read as 1.7 s had passed, and told 0.3 s later
    assert clock.now() == before


@pytest.mark.parametrize("moved_s", [-3600.0, -0.5, 0.1, 3600.0], ids="{:+} s".format)
def test_it_follows_the_database_where_it_cannot_be_right(moved_s: float) -> None:
    clock = Steady()
    clock.set(START)
    at = START + timedelta(seconds=moved_s)
    clock.set(at, waited_s=0.4)
    assert clock.now() == at
