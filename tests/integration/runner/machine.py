"""The runner against its own rules in plain words, through whatever order of events anybody can think of.

A few runs of it are in the suite. After a change of the planner: `python -m tests.integration.runner.machine --runs 2000`.
"""

import argparse
import sys
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner import changes
from task_runner.backfill import backfill
from task_runner.explaining import explain
from task_runner.model import OPEN, UNDER_WAY, CatchUp, Fire, FireKind, Outcome, Overlap, TaskState
from task_runner.overlap import CANCELS, OVERLAP
from task_runner.schedules import timetable_of
from task_runner.store import Outgoing
from tests.integration.runner.world import FINAL, Crash, World, open_store
from turnkeeper.clock import rfc3339
from turnkeeper.errors import Conflict

SECOND = timedelta(seconds=1)
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
SPAN = st.sampled_from([1, 5, 31, 59, 60, 61, 299, 301, 900, 3600, 6 * 3600])
ENGINE = open_store()


@dataclass
class UnderWay:
    """A scheduled fire from when it was sent until its end was heard."""

    fire_id: str
    since: datetime
    until: datetime | None = None


class RunnerMachine(RuleBasedStateMachine):
    """Everything that can happen to one task; after each step the rules are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(ENGINE)
        self.world.watch = self.leaves
        self.covered: list[datetime] = []  # the nominal times that the cursor has passed
        self.named: set[datetime] = set()  # all that any revision in force ever named
        self.seen: dict[int, Fire] = {}
        self.left: set[tuple[str, int]] = set()
        self.under_way: list[UnderWay] = []
        self.stepped_back = False
        self.requests = 0

    @property
    def state(self) -> TaskState:
        return self.world.task().state

    # What can happen.

    @initialize(when=WHEN, how=HOW, policy=POLICY, limit=LIMIT)
    def create(self, when: Any, how: Any, policy: Any, limit: int | None) -> None:
        self.limit = limit
        self.world.create(**when, **how, **policy, max_fires=limit)
        self.cursor = self.created = self.world.now

    @rule(seconds=SPAN)
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds * SECOND

    @rule(seconds=SPAN)
    def the_clock_steps_back(self, seconds: int) -> None:
        self.world.now = max(self.created, self.world.now - seconds * SECOND)
        self.world.stepped_back = self.stepped_back = True

    @rule(seconds=SPAN)
    def all_goes_well_for_a_while(self, seconds: int) -> None:
        self.world.now += seconds * SECOND
        self.everything()

    @rule()
    def everything(self) -> None:
        self.tick()
        self.connect()
        self.send()
        self.hear()
        self.ask_for_the_end()
        self.follow(100)

    @rule()
    def tick(self) -> None:
        self.did(self.world.tick)
        self.did(self.world.tick)  # a pause that ends by itself takes two
        self.check_wake()

    @precondition(lambda self: not self.world.connected)
    @rule()
    def connect(self) -> None:
        self.did(self.world.connect)

    @precondition(lambda self: self.world.connected)
    @rule()
    def the_runtime_is_lost(self) -> None:
        self.world.connected = False
        self.world.receipts.clear()

    @rule()
    def send(self) -> None:
        self.did(self.world.tick)  # a loop that lives has planned before
        self.did(self.world.send)

    @precondition(lambda self: self.world.receipts)
    @rule()
    def hear(self) -> None:
        self.did(self.world.hear)

    @rule(most=st.sampled_from([1, 2, 100]))
    def follow(self, most: int) -> None:
        self.did(lambda: self.world.follow(most))

    @rule()
    def ask_for_the_end(self) -> None:
        """Overlap cancel-running: the turn before ends, unless it waits for its author."""
        interrupted = self.world.peer.one("interrupted")
        asked = self.world.cancel()
        assert not asked or self.world.task().definition.overlap is Overlap.CANCEL_RUNNING
        for fire in asked:
            turn = self.world.peer.turns.get((fire.fire_id, fire.attempt))
            assert turn is None or turn.state not in {"running", "queued"}, f"{fire} goes on"
        assert self.world.peer.one("interrupted") == interrupted, "an author was asked something"

    @rule(what=st.sampled_from(["tick", "send", "hear", "follow", "connect"]))
    def the_runner_dies_in(self, what: str) -> None:
        self.world.dies = True
        with suppress(Crash):  # there may be nothing to do, and so nothing to die in
            getattr(self.world, what)()
        self.world.crash()

    @rule(refuses=st.booleans())
    def the_runtime_is_full_or_not(self, refuses: bool) -> None:
        self.world.peer.refuses = refuses

    @precondition(lambda self: self.world.peer.one("running") or self.world.peer.one("interrupted"))
    @rule(how=st.sampled_from(sorted(FINAL)))
    def a_turn_ends(self, how: str) -> None:
        self.world.peer.end(how, self.world.now)

    @precondition(lambda self: self.world.peer.one("running"))
    @rule()
    def a_turn_is_interrupted(self) -> None:
        self.world.peer.interrupt(self.world.now)

    @precondition(lambda self: self.world.peer.idle())
    @rule()
    def the_author_writes(self) -> None:
        self.world.peer.write(self.world.now)

    @precondition(lambda self: self.world.peer.author_writes or self.world.peer.one("interrupted"))
    @rule()
    def the_author_decides(self) -> None:
        self.world.peer.release(self.world.now)

    @rule(until=st.sampled_from([None, 30, 600]))
    def pause(self, until: int | None) -> None:
        at = self.world.now + until * SECOND if until else None
        self.commands(lambda s: changes.stop(s, "digest", TaskState.PAUSED, "", self.world.now, until=at))

    @precondition(lambda self: self.state in {TaskState.PAUSED, TaskState.QUARANTINED})
    @rule(replay=st.booleans())
    def resume(self, replay: bool) -> None:
        states = frozenset({TaskState.PAUSED, TaskState.QUARANTINED})
        self.commands(lambda s: changes.resume(s, "digest", self.world.now, replay=replay, states=states))

    @rule()
    def disable(self) -> None:
        self.commands(lambda s: changes.stop(s, "digest", TaskState.DISABLED, "", self.world.now))

    @precondition(lambda self: self.state is TaskState.DISABLED)
    @rule()
    def enable(self) -> None:
        states = frozenset({TaskState.DISABLED, TaskState.QUARANTINED})
        self.commands(lambda s: changes.resume(s, "digest", self.world.now, replay=False, states=states))

    @rule(when=WHEN, how=HOW, policy=POLICY)
    def edit(self, when: Any, how: Any, policy: Any) -> None:
        before = timetable_of(self.world.task().definition)
        if self.world.edit(**when, **how, **policy, max_fires=self.limit):
            self.passed(before, max(self.world.now, self.cursor))
        self.passed(timetable_of(self.world.task().definition), self.world.task().cursor_at)

    @rule()
    def run(self) -> None:
        self.requests += 1
        self.commands(lambda s: changes.run_now(s, "digest", f"r{self.requests}", self.world.now))

    @rule(every=st.booleans())
    def backfill(self, every: bool) -> None:
        self.requests += 1
        start, end = self.world.now - timedelta(minutes=10), self.world.now
        asked = wire.BackfillTaskRequest(name="digest", to=rfc3339(end), all=every, request_id=f"b{self.requests}")
        setattr(asked, "from", rfc3339(start))
        self.commands(lambda s: backfill(s, asked, self.world.now))

    @rule(seconds=SPAN, back=st.booleans())
    def somebody_asks_why(self, seconds: int, back: bool) -> None:
        at = self.world.now + (-seconds if back else seconds) * SECOND
        request = wire.ExplainFireRequest(name="digest", at=rfc3339(at))
        assert self.world.run(lambda session: explain(session, request, self.world.now)).lines

    def commands(self, work: Any) -> None:
        def command() -> None:
            try:
                self.world.run(work)
            except Conflict:
                return

        self.did(command)

    # What is looked at.

    def did(self, work: Any) -> None:
        before = timetable_of(self.world.task().definition)
        work()
        self.passed(before, self.world.task().cursor_at)
        self.heard()

    def passed(self, timetable: Any, cursor: datetime) -> None:
        if cursor < self.cursor:
            self.covered = [at for at in self.covered if at <= cursor]
        else:
            fresh = timetable.first_n(self.cursor, cursor, 100_000)
            self.covered += fresh
            self.named.update(fresh)
        self.cursor = cursor

    def heard(self) -> None:
        """Note from when until when a scheduled fire was under way, as far as the runner knew."""
        rows = {row.fire_id: row for row in self.world.rows()}
        for way in self.under_way:
            if way.until is None and rows[way.fire_id].outcome not in UNDER_WAY | {Outcome.INTERRUPTED}:
                way.until = self.world.now

    def leaves(self, outgoing: Outgoing) -> None:
        """A fire is sent: not early, not for a time that nothing named, not what the policy leaves out."""
        fire, now = outgoing.fire, self.world.now
        key = fire.fire_id, fire.attempt
        if key in self.left:
            assert fire.refusals, f"{key} was sent twice"
        self.left.add(key)
        if self.state in {TaskState.PAUSED, TaskState.DISABLED}:
            allowed = fire.kind is FireKind.MANUAL and self.state is TaskState.PAUSED
            assert allowed, f"sent while {self.state}"
        if fire.kind is not FireKind.SCHEDULED:
            return
        if fire.attempt == 1 and not fire.refusals:
            assert now >= fire.due_at >= fire.nominal_at, "early"
        assert fire.nominal_at in self.named, "nothing named that time"
        self.under_way.append(UnderWay(fire.fire_id, now))
        definition = self.world.task().definition
        if fire.policy is CatchUp.SKIP and definition.catch_up is CatchUp.SKIP:
            assert fire.send_by is None or now <= fire.send_by, f"missed, and sent all the same: {fire}"

    def check_wake(self) -> None:
        """After planning, whoever is active and not held up has nothing left to plan now."""
        task = self.world.task()
        assert task.state is not TaskState.QUARANTINED, task.reason
        assert task.wake_at is None or task.wake_at > self.world.now, "would be planned again at once, for ever"

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
    def what_is_settled_stays(self) -> None:
        rows = {row.entry_id: row for row in self.world.rows()}
        for number, old in self.seen.items():
            new = rows.get(number)
            if new is None:
                assert not old.fire_id, f"gone: {old}"
                continue
            assert new.attempt >= old.attempt, (old, new)
            assert not old.fire_id or new.fire_id == old.fire_id or old.outcome is Outcome.WAITING, (old, new)
            assert old.outcome in OPEN or new.outcome is old.outcome, (old, new)
        self.seen = rows

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

    @invariant()
    def what_overlap_skipped_came_due_while_one_was_under_way(self) -> None:
        if self.stepped_back or self.world.task().revision > 1:
            return
        timetable = timetable_of(self.world.task().definition)
        for row in self.world.rows():
            if row.reason == OVERLAP and row.count:
                for at in timetable.first_n(row.first_at - SECOND, row.last_at, 10_000):
                    assert any(way.since <= at <= (way.until or self.world.now) for way in self.under_way), (at, row)

    def teardown(self) -> None:
        """All outages end: everything that was begun comes to its end, and nothing due is left out."""
        if not hasattr(self, "cursor"):
            return
        self.world.peer.refuses = False
        for _ in range(300):
            self.world.peer.release(self.world.now)
            self.everything()
            self.world.peer.end("succeeds", self.world.now)
            self.follow(100)
            rows = self.world.rows()
            if not any(row.outcome in OPEN for row in rows):
                break
            self.world.now = max([self.world.now, *(row.ready_at for row in rows if row.ready_at)]) + 7 * SECOND
        else:
            raise AssertionError(f"never comes to its end: {[row for row in rows if row.outcome in OPEN]}")
        self.everything()
        self.the_cursor_passed_a_time_if_and_only_if_one_entry_covers_it()
        task = self.world.task()
        if task.state is TaskState.ACTIVE:
            following = timetable_of(task.definition).next_after(task.cursor_at)
            assert following is None or following > self.world.now, f"due, and nobody looks at it: {task}"


def main(argv: list[str]) -> None:
    """Make as many runs as asked, other ones each time; end with what was found, in the fewest steps that show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args(argv)
    many = settings(
        max_examples=asked.runs, stateful_step_count=asked.steps, deadline=None, database=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(RunnerMachine, settings=many)
    sys.stdout.write(f"{asked.runs} runs of at most {asked.steps} steps: nothing found\n")


if __name__ == "__main__":
    main(sys.argv[1:])
