"""The runner against its own rules in plain words, through whatever order of events anybody can think of.

A few runs of it are in the suite. After a change of the planner: `python -m tests.integration.runner.machine --runs 2000`.
"""

import sys
from bisect import bisect_left, bisect_right
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from task_runner.model.task import OPEN, UNDER_WAY, CatchUp, Fire, FireKind, Outcome, Overlap, TaskState
from task_runner.planner.entries import timetable_of
from task_runner.planner.overlap import CANCELS, OVERLAP
from task_runner.service.backfill import backfill
from tests.integration.runner.task_machine import SECOND, Life, many_runs
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

WHEN = st.sampled_from(
    [
        {"every": "60s"}, {"every": "90s"}, {"every": "7m"}, {"every": "1h"}, {"cron": "*/5 * * * *"},
        {"cron": "30 1,3,5 * * *", "timezone": "Europe/Riga"}, {"cron": "0 * * * *", "timezone": "Europe/Riga"},
    ]
)  # fmt: skip
HOW = st.fixed_dictionaries(
    {
        "max_catch_up": st.sampled_from([1, 2, 4]),
        "grace": st.sampled_from(["1s", "10s", "5m"]),
        "catch_up_window": st.sampled_from([None, None, "3m", "2h"]),
        "jitter": st.sampled_from([None, None, "20s", "10m"]),
        "retries": st.sampled_from([None, None, 2]),
        "pause_after_failures": st.sampled_from([None, None, 2]),
    }
)
POLICY = st.sampled_from(
    [
        {"catch_up": "skip"}, {"catch_up": "run-once"}, {"catch_up": "run-all"},
        {"catch_up": "skip", "overlap": "queue"}, {"catch_up": "run-once", "overlap": "queue"},
        {"catch_up": "skip", "overlap": "skip"}, {"catch_up": "run-once", "overlap": "skip"},
        {"catch_up": "skip", "overlap": "cancel-running"}, {"catch_up": "run-once", "overlap": "cancel-running"},
    ]
)  # fmt: skip
LIMIT = st.sampled_from([None, None, None, 1, 3])


class UnderWay(NamedTuple):
    """An attempt of a scheduled fire, and when it was sent."""

    fire_id: str
    attempt: int
    since: datetime


class RunnerMachine(Life):
    """Everything that can happen to one task that keeps a timetable."""

    def __init__(self) -> None:
        super().__init__()
        self.covered: list[datetime] = []  # the nominal times that the cursor has passed
        self.named: set[datetime] = set()  # all that any revision in force ever named
        self.under_way: list[UnderWay] = []
        self.judged: set[datetime] = set()  # the nominal times that overlap skipped, and rightly

    # What can happen.

    @initialize(when=WHEN, how=HOW, policy=POLICY, limit=LIMIT)
    def create(self, when: Any, how: Any, policy: Any, limit: int | None) -> None:
        self.limit = limit
        self.world.create(**when, **how, **policy, max_fires=limit)
        self.cursor = self.world.now

    @rule(when=WHEN, how=HOW, policy=POLICY)
    def edit(self, when: Any, how: Any, policy: Any) -> None:
        before = timetable_of(self.world.task().definition)
        if self.world.edit(**when, **how, **policy, max_fires=self.limit):
            self.passed(before, max(self.world.now, self.cursor))
        self.passed(timetable_of(self.world.task().definition), self.world.task().cursor_at)

    @rule(every=st.booleans())
    def backfill(self, every: bool) -> None:
        self.requests += 1
        start, end = self.world.now - timedelta(minutes=10), self.world.now
        asked = wire.BackfillTaskRequest(name="digest", to=rfc3339(end), all=every, request_id=f"b{self.requests}")
        setattr(asked, "from", rfc3339(start))
        self.commands(lambda s: backfill(asked, self.world.now, s))

    # What is looked at.

    def did(self, work: Any) -> None:
        before = timetable_of(self.world.task().definition)
        work()
        self.passed(before, self.world.task().cursor_at)
        self.judge_what_overlap_skipped()

    def passed(self, timetable: Any, cursor: datetime) -> None:
        if cursor < self.cursor:
            self.covered = [at for at in self.covered if at <= cursor]
        else:
            fresh = timetable.upcoming(self.cursor, 100_000, until=cursor)
            self.covered += fresh
            self.named.update(fresh)
        self.cursor = cursor

    def judge_what_overlap_skipped(self) -> None:
        """It came due while one was under way; only of what is on time the last news may be missing."""
        task = self.world.task()
        if self.stepped_back or task.revision > 1:
            return
        timetable, since = timetable_of(task.definition), self.world.now - task.definition.grace
        for row in self.world.rows():
            if row.reason == OVERLAP and row.count and row.last_at not in self.judged:
                for at in timetable.upcoming(row.first_at - SECOND, 10_000, until=row.last_at):
                    assert at in self.judged or any(self.is_under_way(way, at, since) for way in self.under_way), (
                        at,
                        row,
                    )
                    self.judged.add(at)

    def is_under_way(self, way: UnderWay, at: datetime, since: datetime) -> bool:
        ended_at = self.world.peer.ended.get((way.fire_id, way.attempt), self.world.now)
        return way.since <= at and (at <= ended_at or (at >= since and self.world.connected))

    def fire_leaves(self, fire: Fire) -> None:
        """Not for a time that nothing named, and not what the policy leaves out."""
        if fire.kind is not FireKind.SCHEDULED:
            return
        assert fire.nominal_at in self.named, "nothing named that time"
        self.under_way.append(UnderWay(fire.fire_id, fire.attempt, self.world.now))
        definition = self.world.task().definition
        if fire.policy is CatchUp.SKIP and definition.catch_up is CatchUp.SKIP:
            assert fire.send_by is None or self.world.now <= fire.send_by, f"missed, and sent all the same: {fire}"

    @invariant()
    def the_cursor_passed_a_time_if_and_only_if_one_entry_covers_it(self) -> None:
        rows = [row for row in self.world.rows() if row.count and row.kind is FireKind.SCHEDULED]
        left = list(self.covered)
        # A fire owed from before an edit may stand for times on both sides of others: the narrowest entry counts.
        for row in sorted(rows, key=lambda row: row.last_at - row.first_at):
            low, high = bisect_left(left, row.first_at), bisect_right(left, row.last_at)
            assert row.count == high - low, (row, left[low:high])
            del left[low:high]
        if self.world.task().revision == 1:
            rows.sort(key=lambda row: row.first_at)
            assert all(one.last_at < two.first_at for one, two in pairwise(rows)), rows
        assert sum(row.count for row in rows) == len(self.covered), (self.cursor, rows)

    @invariant()
    def limits_hold(self) -> None:
        task, rows = self.world.task(), [row for row in self.world.rows() if row.kind is FireKind.SCHEDULED]
        under_way = [row for row in rows if row.outcome in UNDER_WAY]
        assert len(under_way) <= 1, under_way
        if self.limit is not None:
            open_ = sum(row.outcome in OPEN and row.accepted_at is None for row in rows)
            assert task.accepted + open_ <= self.limit, (task.accepted, open_)
        waits = [row for row in rows if row.outcome is Outcome.WAITING]
        most = {Overlap.QUEUE: 0, Overlap.SKIP: 0}.get(task.definition.overlap, 1)
        assert len(waits) <= most or task.revision > 1, waits
        asks = any(row.reason == CANCELS for row in waits)
        assert not asks or task.definition.overlap is Overlap.CANCEL_RUNNING, waits

    def teardown(self) -> None:
        """In the end nothing due is left out."""
        if not hasattr(self, "cursor"):
            return
        self.comes_to_its_end()
        self.the_cursor_passed_a_time_if_and_only_if_one_entry_covers_it()
        task = self.world.task()
        if task.state is TaskState.ACTIVE:
            following = timetable_of(task.definition).next_after(task.cursor_at)
            assert following is None or following > self.world.now, f"due, and nobody looks at it: {task}"


if __name__ == "__main__":
    many_runs(RunnerMachine, str(__doc__), sys.argv[1:])
