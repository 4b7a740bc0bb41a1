"""A self-paced task against its rules in plain words: `python -m tests.integration.runner.paced_machine --runs 2000`."""

import sys
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from task_runner.model.task import COUNTED, OPEN, Fire, FireKind, Outcome, Pacing, TaskState
from task_runner.planner.self_paced import LONGEST_DELAY
from task_runner.scheduler.planning import take_over
from task_runner.service.changes import reschedule
from tests.integration.runner.task_machine import SECOND, Life, many_runs

HOW = st.fixed_dictionaries(
    {
        "first": st.sampled_from([None, "0s", "90s", "1h"]),
        "if_silent": st.sampled_from([None, "end", "wait", "5m"]),
        "jitter": st.sampled_from([None, None, "20s"]),
        "retries": st.sampled_from([None, None, 2]),
        "pause_after_failures": st.sampled_from([None, None, 2]),
        "grace": st.sampled_from(["1s", "5m"]),
        "max_fires": st.sampled_from([None, None, None, 3]),
    }
)
ENDED = frozenset({TaskState.DONE, TaskState.EXPIRED, TaskState.DELETED})


class PacedMachine(Life):
    """Everything that can happen to one task whose turns ask for the next one."""

    # What can happen.

    @initialize(how=HOW)
    def create(self, how: Any) -> None:
        self.how = how
        self.may_wait = how["if_silent"] in {
            None,
            "wait",
        }  # for somebody to reschedule it, after a turn asked for nothing
        self.over = False  # what had ended is asleep until it is rescheduled, also where it is disabled and enabled
        self.world.create(dynamic=True, **how)

    @rule(seconds=st.sampled_from([0, 45, 7200]))
    def reschedule(self, seconds: int) -> None:
        self.commands(lambda session: reschedule(session, "digest", seconds, self.world.now), told=True)

    @rule(how=HOW)
    def edit(self, how: Any) -> None:
        self.may_wait |= how["if_silent"] in {None, "wait"}
        self.commands(lambda _: self.world.edit(dynamic=True, **how | {"max_fires": self.how["max_fires"]}), told=True)

    @rule()
    def the_author_takes_over(self) -> None:
        self.commands(lambda session: take_over(session, [self.world.task_id], self.world.now), told=True)

    # What is looked at.

    def did(self, work: Any, *, told: bool = False) -> None:
        """What is armed stays armed until it is committed, unless a turn ended or somebody said something else."""
        before, rows = self.pacing, {row.entry_id: row for row in self.world.rows()}
        work()
        after = self.pacing
        ended = any(row.outcome in OPEN and now.outcome not in OPEN for row, now in self.changed(rows))
        if before == after or told or ended or self.stepped_back:
            return
        assert before.armed_at is not None, f"armed by nothing: {before}, then {after}"
        assert after.armed_at is None, f"armed for another time by nothing: {before}, then {after}"
        if self.state not in ENDED:
            assert after.iteration == before.iteration + 1, "a wake that was armed is gone"
            (wake,) = [row for row in self.world.rows() if row.fire_id.endswith(f"~w{after.iteration}")]
            assert wake.nominal_at == before.armed_at

    def changed(self, before: dict[int, Fire]) -> list[tuple[Fire, Fire]]:
        return [(before[row.entry_id], row) for row in self.world.rows() if row.entry_id in before]

    @property
    def pacing(self) -> Pacing:
        pacing = self.world.task().pacing
        assert pacing is not None
        return pacing

    def fire_leaves(self, fire: Fire) -> None:
        """No wake comes in the middle of another one's turn."""
        if fire.kind is FireKind.WAKE:
            running = self.world.peer.one("running") or self.world.peer.one("interrupted")
            assert running is None or "~w" not in running.fire_id, f"{running} is not over, and {fire} leaves"

    @invariant()
    def one_wake_at_a_time_each_with_the_next_number(self) -> None:
        wakes = [row for row in self.world.rows() if row.kind in COUNTED]
        assert sum(row.outcome in OPEN for row in wakes) <= 1, wakes
        numbers = [int(row.fire_id.rpartition("~w")[2]) for row in wakes]
        assert numbers == list(range(1, len(wakes) + 1)), numbers
        assert self.pacing.iteration == len(wakes)

    @invariant()
    def a_task_that_has_not_ended_knows_what_it_waits_for(self) -> None:
        task, rows = self.world.task(), self.world.rows()
        assert task.state is not TaskState.QUARANTINED, task.reason
        self.over |= task.state in ENDED
        if self.over or any(row.kind in COUNTED and row.outcome in OPEN for row in rows):
            return
        looked_at = task.wake_at is not None or task.state is not TaskState.ACTIVE
        assert looked_at or self.pacing.armed_at is None, f"armed, and nobody looks at it: {task}"
        wakes = [row for row in rows if row.kind is FireKind.WAKE]
        waits = self.may_wait and bool(wakes) and wakes[-1].outcome is Outcome.SUCCEEDED
        assert self.pacing.armed_at is not None or waits or self.how["max_fires"], f"asleep for ever: {task}"

    @invariant()
    def the_limit_holds(self) -> None:
        limit, wakes = self.how["max_fires"], [row for row in self.world.rows() if row.kind in COUNTED]
        open_ = sum(row.outcome in OPEN and row.accepted_at is None for row in wakes)
        assert limit is None or self.world.task().accepted + open_ <= limit, wakes

    @invariant()
    def no_wake_is_further_off_than_anybody_asked(self) -> None:
        armed_at: datetime | None = self.pacing.armed_at
        assert armed_at is None or armed_at <= self.world.now + LONGEST_DELAY

    def commands(self, work: Any, *, told: bool = True) -> None:
        """A command may say something else."""
        before = self.did
        self.did = lambda each: before(each, told=told)  # type: ignore[method-assign]
        try:
            super().commands(work)
        finally:
            self.did = before  # type: ignore[method-assign]

    def teardown(self) -> None:
        """In the end whatever is armed wakes, in time."""
        super().teardown()
        if not hasattr(self, "how"):
            return
        self.comes_to_its_end()
        if self.state is TaskState.ACTIVE and (armed_at := self.pacing.armed_at) is not None:
            number = self.pacing.iteration
            self.world.now = max(self.world.now, armed_at) + timedelta(minutes=1)
            self.everything()
            assert self.pacing.iteration > number or self.state in ENDED, "armed, and it never wakes"
            self.world.now += SECOND
            self.comes_to_its_end()


if __name__ == "__main__":
    many_runs(PacedMachine, str(__doc__), sys.argv[1:])
