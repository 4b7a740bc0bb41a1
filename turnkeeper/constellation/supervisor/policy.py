"""The decision about one daemon, from its present state and the watchdog's memory; pure.

A daemon that ended is started again after growing pauses, until its budget of restarts in a sliding window is
spent. Then the crash-loop marker is written, restarts stop, and the author is alerted once. A start is verified if the
daemon has reported that it serves (`up-detected`), and then ran through one more tick interval. A daemon with an
unchanged counter is first suspected, and is killed at a later tick. A quiet window prevents both.

A marker that cannot be read is not treated as absent: in that case the watchdog does less, never more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from turnkeeper.constellation.supervisor.markers import Budget, CrashLoop, Memory, Revive, Stall, Unreadable

LOOK_AGAIN_S = 0.5
WAITS_S = 5.0  # the most seconds between starts of a daemon that waits for a server
FEWEST_STILL_LOOKS = 2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for giving up and waiting. All times in seconds.

    Attributes:
        interval_s: the time between two ticks; a start is verified after one whole interval.
        restarts: the most restarts of a daemon in the window.
        window_s: the length of the window in which restarts count.
        failed_starts: the most starts in the window after which the daemon did not serve.
        start_timeout_s: the longest time until a daemon serves.
        hang_after_s: the longest time without a change of the counter.
        backoff_s: the pause after the first restart in the window; doubled at each further restart.
    """

    interval_s: float = 60.0
    restarts: int = 10
    window_s: float = 600.0
    failed_starts: int = 3
    start_timeout_s: float = 120.0
    hang_after_s: float = 180.0
    backoff_s: float = 0.5
    longest_backoff_s: float = 30.0

    def backoff_after(self, restarts: int) -> float:
        """Return the pause after this number of restarts in the window.

        >>> [Limits().backoff_after(count) for count in (0, 1, 2, 5, 1000)]
        [0.0, 0.5, 1.0, 8.0, 30.0]
        """
        if restarts == 0:
            return 0.0
        return float(min(self.longest_backoff_s, self.backoff_s * 2 ** min(restarts - 1, 32)))


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The observed state of a daemon.

    Attributes:
        state: `absent`; `starting`: its process runs and does not serve yet; `up`: it has reported that it serves.
        pid: its pid; None if absent.
        beats: its progress counter; None if it is not up.
        error: how an absent daemon ended, if known.
        waits: True if it is absent because a server that it needs, such as a shared database, does not answer.
    """

    state: Literal["absent", "starting", "up"]
    pid: int | None = None
    beats: int | None = None
    error: str = ""
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start the daemon. `crashed` is True if the daemon ran before and ended without a request."""

    id: str
    crashed: bool


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Kill the process `pid`, which does not progress."""

    pid: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Escalate:
    """Alert the author on a route outside the bus. `key` identifies the cause."""

    key: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Write the restart-status file `id`."""

    id: str
    phase: Literal["spawned", "up-detected", "verified", "failed"]
    error: str = ""
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Note:
    """Write one event to the event log."""

    event: str
    fields: dict[str, Any]


Action = Start | Kill | Escalate | Phase | Note


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of one decision.

    Attributes:
        memory: the memory that is written to disk before the actions.
        wake_at: the latest time for the next tick.
    """

    memory: Memory
    actions: Sequence[Action]
    wake_at: float


def look(now: float, sight: Sight, memory: Memory, limits: Limits, *, quiet: bool, new_id: str) -> Step:
    """Decide the actions for one daemon that should run.

    Args:
        now: seconds since 1970.
        limits: the limits for giving up and waiting.
        quiet: True if an unchanged counter is expected now.
        new_id: the id for a start that this call begins.
    """
    if isinstance(memory.budget, Budget):
        memory = replace(memory, budget=memory.budget.within(now, limits.window_s))
    if memory.crash_loop is not None:
        return _given_up(now, memory, limits)
    if sight.state == "absent":
        return _absent(now, sight, memory, limits, new_id)
    if memory.budget is None:
        memory = replace(memory, budget=Budget())
    if sight.state == "starting":
        return _starting(now, sight, memory, limits)
    return _up(now, sight, memory, limits, quiet=quiet)


def _given_up(now: float, memory: Memory, limits: Limits) -> Step:
    actions: list[Action] = []
    if isinstance(memory.crash_loop, CrashLoop) and not memory.crash_loop.escalated:
        actions.append(Escalate(key=f"{memory.crash_loop.at:.0f}", text=memory.crash_loop.reason))
        memory = replace(memory, crash_loop=replace(memory.crash_loop, escalated=True))
    return Step(memory=memory, actions=actions, wake_at=now + limits.interval_s)


def _absent(now: float, sight: Sight, memory: Memory, limits: Limits, new_id: str) -> Step:
    budget, revive = memory.budget, memory.revive
    if isinstance(budget, Unreadable) or isinstance(revive, Unreadable):
        return _give_up(now, memory, limits, "it does not run, and the record of earlier restarts cannot be read", [])
    if budget is None:
        fresh = replace(memory, budget=Budget(), revive=Revive(id=new_id, at=now), stall=None)
        return Step(memory=fresh, actions=[Start(id=new_id, crashed=False)], wake_at=now + LOOK_AGAIN_S)
    actions: list[Action] = []
    if revive is not None:
        actions += [Phase(id=revive.id, phase="failed", error=sight.error, waits=sight.waits)]
        actions += [Note(event="revive.failed", fields={"id": revive.id, "served": revive.up_at is not None})]
        if revive.up_at is None:
            budget = replace(budget, failures=(*budget.failures, now))
        memory = replace(memory, budget=budget, revive=None)
    if sight.waits:  # nothing is wrong with the daemon: only the last start counts, for the pause before the next one
        budget = Budget(restarts=budget.restarts[-1:])
        memory = replace(memory, budget=budget)
    if len(budget.failures) >= limits.failed_starts:
        return _give_up(now, memory, limits, f"it failed to start {len(budget.failures)} times: {sight.error}", actions)
    if len(budget.restarts) >= limits.restarts:
        return _give_up(now, memory, limits, f"it ended {limits.restarts + 1} times: {sight.error}", actions)
    pause_s = (
        min(WAITS_S, limits.interval_s)
        if sight.waits and budget.restarts
        else limits.backoff_after(len(budget.restarts))
    )
    not_before = max(budget.restarts, default=now) + pause_s
    if now < not_before:
        return Step(memory=memory, actions=actions, wake_at=not_before)
    budget = replace(budget, restarts=(*budget.restarts, now))
    memory = replace(memory, budget=budget, revive=Revive(id=new_id, at=now), stall=None)
    return Step(memory=memory, actions=[*actions, Start(id=new_id, crashed=True)], wake_at=now + LOOK_AGAIN_S)


def _give_up(now: float, memory: Memory, limits: Limits, reason: str, before: list[Action]) -> Step:
    reason = reason.rstrip(": ")
    step = _given_up(now, replace(memory, crash_loop=CrashLoop(at=now, reason=reason)), limits)
    return replace(step, actions=[*before, Note(event="crashloop.suspected", fields={"reason": reason}), *step.actions])


def _starting(now: float, sight: Sight, memory: Memory, limits: Limits) -> Step:
    revive = memory.revive
    if revive is None:  # another program started it: the same time limit applies
        memory = replace(memory, revive=Revive(id="", at=now))
    elif isinstance(revive, Revive) and now - revive.at >= limits.start_timeout_s and sight.pid is not None:
        reason = f"did not serve within {limits.start_timeout_s:.0f}s"
        return Step(memory=memory, actions=[Kill(pid=sight.pid, reason=reason)], wake_at=now + LOOK_AGAIN_S)
    return Step(memory=memory, actions=[], wake_at=now + LOOK_AGAIN_S)


def _up(now: float, sight: Sight, memory: Memory, limits: Limits, *, quiet: bool) -> Step:
    actions: list[Action] = []
    revive, wake_at = memory.revive, now + limits.interval_s
    if isinstance(revive, Revive):
        # The count belongs to another pid, or is from the future because the clock was set back.
        if revive.up_at is None or revive.up_at > now or revive.pid != sight.pid:
            memory = replace(memory, revive=replace(revive, up_at=now, pid=sight.pid))
            actions.append(Phase(id=revive.id, phase="up-detected"))
        elif now - revive.up_at >= limits.interval_s:
            memory = replace(memory, revive=None)
            actions += [Phase(id=revive.id, phase="verified"), Note(event="revive.verified", fields={"id": revive.id})]
        else:
            wake_at = revive.up_at + limits.interval_s
    stall, more = _progress(now, sight, memory.stall, limits, quiet=quiet)
    return Step(memory=replace(memory, stall=stall), actions=[*actions, *more], wake_at=wake_at)


def _progress(
    now: float, sight: Sight, stall: Stall | Unreadable | None, limits: Limits, *, quiet: bool
) -> tuple[Stall | None, list[Action]]:
    if sight.pid is None or sight.beats is None:
        return None, []
    seen = Stall(pid=sight.pid, beats=sight.beats, since=now, looked_at=now)
    if not isinstance(stall, Stall) or (stall.pid, stall.beats) != (seen.pid, seen.beats) or stall.looked_at > now:
        resumed = isinstance(stall, Stall) and stall.suspected
        return seen, [Note(event="hang.resumed", fields={"suspect": seen.pid})] if resumed else []
    if now - stall.looked_at < min(limits.interval_s, limits.hang_after_s) / 2:
        return stall, []  # too soon after the last tick to be significant
    stall = replace(stall, looks=stall.looks + 1, looked_at=now)
    if now - stall.since < limits.hang_after_s or stall.looks < FEWEST_STILL_LOOKS:
        return stall, []
    return _hanging(now, stall, quiet=quiet)


def _hanging(now: float, stall: Stall, *, quiet: bool) -> tuple[Stall, list[Action]]:
    still_s = round(now - stall.since)
    if quiet:
        return replace(stall, suspected=False), [Note(event="hang.suppressed", fields={"suspect": stall.pid})]
    if not stall.suspected:
        note = Note(event="hang.suspected", fields={"suspect": stall.pid, "still_s": still_s})
        return replace(stall, suspected=True), [note]
    return stall, [Kill(pid=stall.pid, reason=f"its progress counter did not change for {still_s}s")]
