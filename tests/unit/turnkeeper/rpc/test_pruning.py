"""Nothing is deleted by age because a clock stepped forward."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from tests.support.clock import ManualClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.inspect.condition import findings
from turnkeeper.constellation.supervisor.retention import Kept, let_go
from turnkeeper.rpc.pruning import BelievedTime, Pruning

HOUR, DAY = 3600.0, 86_400.0
MONTHS = 122 * DAY


class Over(Exception):
    """Ends what would run until it is cancelled."""


class Passing(ManualClock):
    """A clock on which waiting lets time pass, up to a time."""

    over_at = 0.0

    async def sleep(self, seconds: float) -> None:
        if self.monotonic() >= self.over_at:
            raise Over
        self.advance(seconds)


class Process:
    """A process that deletes by age, and what it tells."""

    def __init__(self, home: Home, clock: Passing) -> None:
        self.clock, self.passes = clock, list[datetime]()
        self.events = list[tuple[str, dict[str, Any]]]()
        self.believed = BelievedTime(home, "task-runner", clock, lambda name, **what: self.events.append((name, what)))

    async def work(self) -> None:
        self.passes.append(self.clock.now())

    async def pass_time(self, seconds: float) -> int:
        """Run for a while; return how often it deleted meanwhile."""
        before, self.clock.over_at = len(self.passes), self.clock.monotonic() + seconds
        with suppress(Over):
            await Pruning(self.believed, self.work, clock=self.clock, first_s=60.0).run()
        return len(self.passes) - before

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


async def test_after_a_step_of_months_nothing_is_deleted_for_a_day_and_the_step_is_on_record(home: Home):
    process = Process(home, clock := Passing())
    assert await process.pass_time(3 * HOUR) >= 3
    clock.step(MONTHS)
    assert await process.pass_time(23 * HOUR) == 0
    ((name, what),) = process.events
    assert (name, what) == ("pruning.held", {"before": "2026-03-02T12:00:00Z", "after": "2026-07-02T12:00:00Z"})
    (found,) = [each for each in findings(home, clock.now().timestamp()) if each.process == "task-runner"]
    assert found.what == (
        "deletes no old history: the clock stepped forward from 2026-03-02T12:00:00Z; it is believed after 1 h more"
    )
    assert await process.pass_time(3 * HOUR) >= 1
    assert process.names == ["pruning.held", "pruning.resumed"]
    assert not [each for each in findings(home, clock.now().timestamp()) if each.process == "task-runner"]


async def test_a_step_while_the_process_is_down_counts_and_so_does_another_one(home: Home):
    await Process(home, clock := Passing()).pass_time(HOUR)
    clock.step(MONTHS)
    process = Process(home, clock)
    assert await process.pass_time(12 * HOUR) == 0
    clock.step(3 * DAY)
    process = Process(home, clock)
    assert await process.pass_time(23 * HOUR) == 0, "the day begins anew"
    assert await process.pass_time(2 * HOUR) >= 1


async def test_a_clock_that_is_set_right_is_believed_at_once(home: Home):
    process = Process(home, clock := Passing())
    await process.pass_time(HOUR)
    clock.step(MONTHS)
    assert await process.pass_time(2 * HOUR) == 0
    clock.step(-MONTHS)
    assert await process.pass_time(2 * HOUR) >= 1
    assert process.names == ["pruning.held", "pruning.resumed"]


@contextmanager
def trail_of(home: Home, day: str) -> Iterator[None]:
    trail = home.logs / f"events-task-runner-{day}.jsonl"
    trail.touch()
    yield
    assert trail.exists()


async def test_trails_are_deleted_by_the_last_time_that_was_believed(home: Home):
    process = Process(home, clock := Passing())
    await process.pass_time(HOUR)
    clock.step(MONTHS)
    with trail_of(home, "2026-03-01"):
        assert process.believed.now() == datetime(2026, 3, 2, 10, tzinfo=UTC)
        assert let_go(home, Kept(), process.believed.now()) == ([], [])
