"""The stretches of time in which the offset of a time zone from UTC is constant.

`zoneinfo` answers for one instant at a time and takes longer than the rest of a cron evaluation. So this module divides
the time line into blocks of about a year and caches them. When a block is first used, every third day of the block is
probed, and each change is located to the second. No zone of the database has ever changed its offset twice within three
days (the closest changes are four days apart, in Africa/Freetown in 1939).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from task_runner.timetable.timetable import EARLIEST_S, LATEST_S, SECONDS_PER_DAY

_BLOCK_BITS = 25  # 2**25 s are 388 days
_MOST_BLOCKS = 512
PROBE_S = 3 * SECONDS_PER_DAY
_SECOND = timedelta(seconds=1)
# No zone has ever changed its clock by more than a day at once.
_LEAD_IN_S = 3 * SECONDS_PER_DAY


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time span in which the offset of a zone is constant.

    Attributes:
        start, end: instants, in seconds; half-open.
        offset: local time minus UTC, in seconds.
        floor: one past the highest local time that the wall clock showed before `start`. If the floor is below
            `start + offset`, a gap skipped the local times between them; if above, those local times occur twice.
    """

    start: int
    end: int
    offset: int
    floor: int


@dataclass(slots=True)
class ZoneOffsets:
    """The stretches of one zone, computed on demand and cached."""

    zone: tzinfo
    _blocks: dict[int, tuple[Stretch, ...]] = field(default_factory=dict)

    def at(self, second: int) -> Stretch:
        """Return the stretch that contains an instant in [EARLIEST_S, LATEST_S); the end of a block cuts a stretch."""
        number = second >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.clear()
            block = self._blocks[number] = tuple(self._block(number))
        for stretch in block:
            if second < stretch.end:
                return stretch
        raise AssertionError(f"{second} lies outside {EARLIEST_S} to {LATEST_S}")

    def _block(self, number: int) -> Iterator[Stretch]:
        start = max(number << _BLOCK_BITS, EARLIEST_S)
        end = min((number + 1) << _BLOCK_BITS, LATEST_S)
        lead_in = start - _LEAD_IN_S
        shown = lead_in + self._offset(lead_in)
        for begin, finish, offset in self._runs(lead_in, end):
            if begin >= start:
                yield Stretch(begin, finish, offset, shown)
            elif finish > start:
                yield Stretch(start, finish, offset, max(shown, start + offset))
            shown = max(shown, finish + offset)

    def _runs(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        at, offset = begin, self._offset(begin)
        while at < end:
            probe = min(at + PROBE_S, end)
            if self._offset(probe) != offset:
                probe = self._change(at, probe, offset)
                yield begin, probe, offset
                begin, offset = probe, self._offset(probe)
            at = probe
        if begin < end:
            yield begin, end, offset

    def _change(self, low: int, high: int, offset: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high

    def _offset(self, second: int) -> int:
        offset = datetime.fromtimestamp(second, self.zone).utcoffset()
        assert offset is not None
        return offset // _SECOND


@lru_cache(maxsize=1024)
def offsets_of(zone: ZoneInfo) -> ZoneOffsets:
    """Return the stretches of a zone, which all timetables of the zone share."""
    return ZoneOffsets(zone)
