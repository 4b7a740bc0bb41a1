"""Units of several sessions of a server under a scheduler, which picks the session whose next statement runs.

Each session stops before each statement and before its commit. The scheduler continues when every session is at its
gate, waits for a lock, or is done. The server's `pg_blocking_pids` names the sessions that wait. So the order of
statements is a list of decisions, which a seed draws and which can be replayed. If several sessions wait for one lock,
the server decides which of them continues first.
"""

import random  # noqa: TID251  seeded, so that a schedule can be repeated
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

import psycopg

from turnkeeper.errors import TurnkeeperError

PATIENCE_S = 60.0  # the longest time until a statement comes to an end, on a machine that has much else to do
_LOOKS_S = 0.002


class Turnstile:
    """A gate that a session passes once for each time that it is let through."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._passes: float = float("inf")
        self.is_at_gate = False

    def close(self) -> None:
        """Stop each session at its next step."""
        self._passes = 0

    def open(self) -> None:
        """Let each session pass from now on."""
        self._let(float("inf"))

    def let_through(self) -> None:
        """Let the next step pass."""
        self._let(self._passes + 1)

    def _let(self, passes: float) -> None:
        with self._changed:
            self._passes, self.is_at_gate = passes, False
            self._changed.notify_all()

    def step(self) -> None:
        """Wait at the gate. Called by the session's thread."""
        with self._changed:
            self.is_at_gate = not self._passes
            self._changed.wait_for(lambda: self._passes > 0, timeout=PATIENCE_S)
            self._passes -= 1


@dataclass
class Session:
    """A session under the scheduler: its gate, the server's process for it, and the unit under way."""

    gate: Turnstile
    pid: int
    begin: Callable[[Any], "Future[Any]"]
    running: "Future[Any] | None" = None

    @property
    def is_done(self) -> bool:
        return self.running is None or self.running.done()


@dataclass
class Schedule:
    """The order in which statements of sessions ran.

    Attributes:
        decisions: for each step, the number of the session that went on.
        ended: the sessions in the order in which their units ended.
        waited: how many sessions waited for a lock, added up over the steps.
        wrong: errors with which no unit may end.
    """

    decisions: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    waited: int = 0
    wrong: list[str] = field(default_factory=list)


class Scheduler:
    """Runs units of sessions in an order that a seed draws, or that decisions give."""

    def __init__(self, sessions: Sequence[Session], sql: "psycopg.Connection[Any]") -> None:
        self._sessions, self._sql = sessions, sql

    def run(self, units: Sequence[Any], *, seed: int = 0, decisions: Sequence[int] = ()) -> Schedule:
        """Run a unit on each session to its end. Follow `decisions`, if there are any."""
        drawn, made, left = random.Random(f"schedule {seed}"), Schedule(), list(decisions)
        under_way = dict(enumerate(self._sessions[: len(units)]))
        for number, session in under_way.items():
            session.gate.close()
            session.running = session.begin(units[number])
        try:
            while ready := self._settled(under_way, made):
                number = left.pop(0) if left else drawn.choice(ready)
                assert number in ready, f"decision {len(made.decisions)} is for {number}, and only {ready} can go on"
                made.decisions.append(number)
                under_way[number].gate.let_through()
        finally:
            for session in under_way.values():
                session.gate.open()
        for session in under_way.values():
            error = session.running.exception(PATIENCE_S) if session.running else None
            # A unit may refuse what it finds.
            made.wrong += [repr(error)] if error is not None and not isinstance(error, TurnkeeperError) else []
        return made

    def _settled(self, under_way: dict[int, Session], made: Schedule) -> list[int]:
        """Wait until each session is at its gate, waits for another, or is done. Return those that can go on.

        Two looks must see the same, because a session that ends lets others go on.
        """
        before: list[tuple[int, ...]] | None = None
        for _ in range(int(PATIENCE_S / _LOOKS_S)):
            seen = self._seen(under_way, made)
            ready, waiting, busy = seen
            if not busy and seen == before and (ready or not waiting):
                made.waited += len(waiting)
                return list(ready)
            before = seen
            wait([each.running for each in under_way.values() if each.running and not each.is_done], timeout=_LOOKS_S)
        raise AssertionError(f"no end after {made}")

    def _seen(self, under_way: dict[int, Session], made: Schedule) -> list[tuple[int, ...]]:
        """Return the sessions at their gates, those that wait for one of these, and those whose statement runs."""
        ready, blocked, busy = list[int](), dict[int, set[int]](), list[int]()
        for number, session in under_way.items():
            if session.is_done:
                made.ended += [number] if number not in made.ended else []
            elif session.gate.is_at_gate:
                ready.append(number)
            elif blockers := self._blockers(session, under_way):
                blocked[number] = blockers
            else:
                busy.append(number)
        waiting = set[int]()
        while found := {number for number, by in blocked.items() if by & {*ready, *waiting}} - waiting:
            waiting |= found
        # The others wait for a session that ends now, or for each other until the server ends one of them.
        return [tuple(ready), tuple(sorted(waiting)), tuple(sorted({*busy, *blocked} - waiting))]

    def _blockers(self, session: Session, under_way: dict[int, Session]) -> set[int]:
        (pids,) = self._sql.execute("SELECT pg_blocking_pids(%s)", (session.pid,)).fetchall()[0]
        found = {number for number, other in under_way.items() if other.pid in pids}
        return set() if session.gate.is_at_gate else found
