"""The remembered offsets of a zone are those that zoneinfo gives, for all zones of the database."""

import doctest
import importlib
import pkgutil
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, _zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import task_runner.timetable
from task_runner.timetable.timetable import EARLIEST_S, LATEST_S, zone_names
from task_runner.timetable.zones import PROBE_S, Stretch, ZoneOffsets, offsets_of

NAMES = sorted(zone_names())


def changes(name: str) -> list[int]:
    """The instants at which the offset changes, as the pure Python reader of the same file sees them."""
    raw = _zoneinfo.ZoneInfo.no_cache(name)
    offsets = [info.utcoff for info in (raw._tti_before, *raw._ttinfos) if info is not None]
    return [at for at, (before, after) in zip(raw._trans_utc, pairwise(offsets), strict=False) if before != after]


def test_no_zone_changes_twice_between_two_probes() -> None:
    close = [(name, a) for name in NAMES for a, b in pairwise(changes(name)) if b - a <= PROBE_S]
    assert close == []


@pytest.mark.parametrize("name", ["America/New_York", "Africa/Casablanca", "Pacific/Apia", "Asia/Gaza"])
def test_each_change_is_found_to_the_second(name: str) -> None:
    offsets = offsets_of(ZoneInfo(name))
    for at in changes(name):
        if at > EARLIEST_S:
            assert offsets.at(at).start == at == offsets.at(at - 1).end


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.integers(EARLIEST_S, LATEST_S - 1) | st.integers(0, 4_000_000_000))
def test_the_offset_is_that_of_zoneinfo(name: str, second: int) -> None:
    stretch = ZoneOffsets(ZoneInfo(name)).at(second)
    local = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    assert stretch.start <= second < stretch.end
    assert timedelta(seconds=stretch.offset) == local.astimezone(ZoneInfo(name)).utcoffset()


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(NAMES), st.integers(1_500_000_000, 2_000_000_000))
def test_stretches_follow_each_other(name: str, second: int) -> None:
    offsets = offsets_of(ZoneInfo(name))
    for _ in range(8):
        stretch = offsets.at(second)
        following = offsets.at(stretch.end)
        assert following.start == stretch.end
        assert following.floor >= stretch.end + stretch.offset
        second = stretch.end


class Twice(ZoneOffsets):
    """A clock that goes back an hour shortly before a block begins, and ten minutes more just after it began."""

    edge = 60 << 25

    def _offset(self, second: int) -> int:
        return 3600 if second < self.edge - 1800 else 0 if second < self.edge + 600 else -600


def test_what_was_shown_is_remembered_over_a_block_and_a_second_change() -> None:
    offsets = Twice(ZoneInfo("UTC"))
    assert offsets.at(Twice.edge) == Stretch(Twice.edge, Twice.edge + 600, 0, Twice.edge + 1800)
    assert offsets.at(Twice.edge + 600).floor == Twice.edge + 1800


@pytest.mark.parametrize("second", [EARLIEST_S, LATEST_S - 1])
def test_the_ends_of_time_are_reached(second: int) -> None:
    assert offsets_of(ZoneInfo("Asia/Tokyo")).at(second).start <= second


@pytest.mark.parametrize("module", [it.name for it in pkgutil.iter_modules(task_runner.timetable.__path__)])
def test_the_examples_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"task_runner.timetable.{module}"))
    assert found.failed == 0
