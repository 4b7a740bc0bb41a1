"""What the watcher remembers of a daemon between two looks. Each part lies on disk as a marker of its own."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Unreadable(Enum):
    """A marker that is there and does not say what it should."""

    UNREADABLE = "unreadable"


UNREADABLE: Final = Unreadable.UNREADABLE


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The sliding window.

    Attributes:
        restarts: when a daemon that had run was started again, seconds since 1970, oldest first.
        failures: when a start was given up that never came to serve.
    """

    restarts: tuple[float, ...] = ()
    failures: tuple[float, ...] = ()

    def within(self, now: float, window_s: float) -> "Budget":
        """Return what still counts. A time in the future, left by a clock that was set back, counts as now."""
        return Budget(restarts=_within(self.restarts, now, window_s), failures=_within(self.failures, now, window_s))


@dataclass(frozen=True, kw_only=True)
class Revive:
    """A start that is not verified yet.

    Attributes:
        id: names its restart-status file; empty where somebody else began it.
        at: when it was begun.
        up_at: when the daemon was first seen to serve; None until then.
        pid: the process that was started, then the one that serves; None where it is not known.
    """

    id: str
    at: float
    up_at: float | None = None
    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The newest count of a progress counter.

    Attributes:
        pid: whose.
        beats: the count.
        since: when it was first seen.
        looks: how often it was seen unchanged, a tick interval apart.
        looked_at: when it was last looked at.
        suspected: the hang-suspected marker stands.
    """

    pid: int
    beats: int
    since: float
    looks: int = 0
    looked_at: float = 0.0
    suspected: bool = False


@dataclass(frozen=True, kw_only=True)
class CrashLoop:
    """The watcher has stopped trying.

    Attributes:
        at: since when.
        reason: in one line.
        escalated: the author has been told, or the telling is on disk to be retried.
    """

    at: float
    reason: str
    escalated: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is remembered of a daemon between looks; each part is a marker of its own.

    Attributes:
        budget: None until the daemon is first seen or started after an `up`.
        revive: None when no start waits to be verified.
        crash_loop: None while the watcher tries.
        stall: None while nothing was counted.
    """

    budget: Budget | Unreadable | None = None
    revive: Revive | Unreadable | None = None
    crash_loop: CrashLoop | Unreadable | None = None
    stall: Stall | Unreadable | None = None


def _within(times: tuple[float, ...], now: float, window_s: float) -> tuple[float, ...]:
    return tuple(min(at, now) for at in times if at > now - window_s)
