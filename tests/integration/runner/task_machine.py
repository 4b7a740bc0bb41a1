"""What can happen to one task of any kind: the rules of a state machine that each kind completes with its own."""

import argparse
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from task_runner.model.task import OPEN, Fire, FireKind, Outcome, Overlap, TaskState
from task_runner.service import changes
from task_runner.service.explain import explain
from task_runner.store.rows import Outgoing
from tests.integration.runner.simulation import FINAL, Crash, World, open_store
from turnkeeper.errors import Conflict
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

SECOND = timedelta(seconds=1)
SPAN = st.sampled_from([1, 5, 31, 59, 60, 61, 299, 301, 900, 3600, 6 * 3600])
# How long after its end a turn asks to be woken; None for not at all.
ASKS = st.sampled_from([None, None, 0, 30, 600])


class Life(RuleBasedStateMachine):
    """One task, its runner and its runtime; after each step the rules are looked at."""

    engine: ClassVar[Any]  # where the worlds of all runs are, one after the other

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.engine)
        self.world.watch = self.leaves
        self.created = self.world.now
        self.seen: dict[int, Fire] = {}
        self.left: set[tuple[str, int]] = set()
        self.stepped_back = False
        self.requests = 0

    def did(self, work: Any) -> None:
        """Let something happen that may plan."""
        work()

    def fire_leaves(self, fire: Fire) -> None:
        """Look at a fire that is sent."""

    @property
    def state(self) -> TaskState:
        return self.world.task().state

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
        for _ in range(3):  # a pause that ends by itself takes two, a limit that is met then one more
            self.did(self.world.tick)
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

    @rule(runner=st.booleans(), how=st.sampled_from([None, *sorted(FINAL)]), before=SPAN, after=SPAN)
    def one_of_them_is_away_for_a_while(self, *, runner: bool, how: str | None, before: int, after: int) -> None:
        """The runner dies, or cannot hear the runtime; a turn may end meanwhile."""
        self.the_runtime_is_lost()
        if runner:
            self.world.crash()
        self.world.now += before * SECOND
        if how is not None:
            self.world.peer.end(how, self.world.now)
        self.world.now += after * SECOND
        self.tick()
        self.connect()

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
    @rule(how=st.sampled_from(sorted(FINAL)), asks=ASKS)
    def a_turn_ends(self, how: str, asks: int | None) -> None:
        self.world.peer.end(how, self.world.now, asks)

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
        self.commands(lambda s: changes.resume(s, "digest", self.world.now, replay=replay))

    @rule()
    def disable(self) -> None:
        self.commands(lambda s: changes.stop(s, "digest", TaskState.DISABLED, "", self.world.now))

    @precondition(lambda self: self.state is TaskState.DISABLED)
    @rule()
    def enable(self) -> None:
        self.commands(lambda s: changes.resume(s, "digest", self.world.now, replay=False))

    @rule()
    def run(self) -> None:
        self.requests += 1
        self.commands(lambda s: changes.run_now(s, "digest", f"r{self.requests}", self.world.now))

    @rule(seconds=SPAN, back=st.booleans())
    def somebody_asks_why(self, seconds: int, back: bool) -> None:
        at = self.world.now + (-seconds if back else seconds) * SECOND
        request = wire.ExplainFireRequest(name="digest", at=rfc3339(at))
        assert self.world.run(lambda session: explain(request, self.world.now, session)).lines

    def commands(self, work: Any) -> None:
        def command() -> None:
            try:
                self.world.run(work)
            except Conflict:
                return

        self.did(command)

    def check_wake(self) -> None:
        """After planning, whoever is active and not held up has nothing left to plan now."""
        task = self.world.task()
        assert task.state is not TaskState.QUARANTINED, task.reason
        assert task.wake_at is None or task.wake_at > self.world.now, "would be planned again at once, for ever"

    def teardown(self) -> None:
        self.world.check_records()

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

    def leaves(self, outgoing: Outgoing) -> None:
        """A fire is sent: once an attempt, not early, and not of a task that is stopped."""
        fire = outgoing.fire
        key = fire.fire_id, fire.attempt
        if key in self.left:
            assert fire.refusals, f"{key} was sent twice"
        self.left.add(key)
        if self.state in {TaskState.PAUSED, TaskState.DISABLED}:
            allowed = fire.kind is FireKind.MANUAL and self.state is TaskState.PAUSED
            assert allowed, f"sent while {self.state}"
        if fire.attempt == 1 and not fire.refusals:
            assert self.world.now >= fire.due_at, "early"
            # Only what a timetable names comes again once the clock was set back.
            assert fire.due_at >= fire.nominal_at or fire.kind is not FireKind.SCHEDULED, "due before its time"
        self.fire_leaves(fire)

    def comes_to_its_end(self) -> None:
        """All outages end: everything that was begun comes to its end."""
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


def many_runs(machine: type[Life], about: str, argv: list[str]) -> None:
    """Make as many runs as asked, other ones each time; end with what was found, in the fewest steps that show it."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args(argv)
    many = settings(
        max_examples=asked.runs, stateful_step_count=asked.steps, deadline=None, database=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    machine.engine = open_store()
    run_state_machine_as_test(machine, settings=many)
    sys.stdout.write(f"{asked.runs} runs of at most {asked.steps} steps: nothing found\n")
