"""What the watchdog remembers of a daemon between two looks: each part is a marker, read back exactly or unreadable."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from constellation.supervisor import markers
from turnkeeper.config.home import Home

T = TypeVar("T")


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
    """What is remembered of one daemon.

    Attributes:
        budget: None until the daemon is first seen or started after an `up`.
        revive: None when no start waits to be verified.
        crash_loop: None while the watcher tries.
        stall: None while nothing was counted.
    """

    budget: Budget | markers.Unreadable | None = None
    revive: Revive | markers.Unreadable | None = None
    crash_loop: CrashLoop | markers.Unreadable | None = None
    stall: Stall | markers.Unreadable | None = None


def _within(times: tuple[float, ...], now: float, window_s: float) -> tuple[float, ...]:
    return tuple(min(at, now) for at in times if at > now - window_s)


_BY_PROCESS = (
    markers.ATTEMPTS,
    markers.INFLIGHT,
    markers.CRASH_LOOP,
    markers.FAILED_REVIVE,
    markers.PROGRESS_SEEN,
    markers.HANG,
)


def recall(home: Home, process: str) -> Memory:
    """Read what is remembered of a daemon."""
    suspected = _read(markers.HANG.at(home, process=process), Stall)
    seen = suspected or _read(markers.PROGRESS_SEEN.at(home, process=process), Stall)
    return Memory(
        budget=_read(markers.ATTEMPTS.at(home, process=process), Budget),
        revive=_read(markers.INFLIGHT.at(home, process=process), Revive),
        crash_loop=_read(markers.CRASH_LOOP.at(home, process=process), CrashLoop),
        stall=seen,
    )


def remember(home: Home, process: str, before: Memory, after: Memory) -> None:
    """Write what has changed; when this returns it is on disk."""
    for kind, was, now in (
        (markers.ATTEMPTS, before.budget, after.budget),
        (markers.INFLIGHT, before.revive, after.revive),
        (markers.CRASH_LOOP, before.crash_loop, after.crash_loop),
    ):
        if was != now:
            _put(kind.at(home, process=process), now)
    if before.stall != after.stall:
        stall = after.stall if isinstance(after.stall, Stall) else None
        suspected = stall is not None and stall.suspected
        _put(markers.HANG.at(home, process=process), stall if suspected else None)
        _put(markers.PROGRESS_SEEN.at(home, process=process), None if suspected else stall)


def forget(home: Home, process: str, *, keep_start: bool) -> None:
    """Clear every marker of a daemon's past, as an author's `up` does; with `keep_start` not that of a start."""
    for kind in _BY_PROCESS:
        if not (keep_start and kind is markers.INFLIGHT):
            markers.clear_marker(kind.at(home, process=process))


def _put(path: Path, part: Budget | Revive | CrashLoop | Stall | markers.Unreadable | None) -> None:
    if part is None:
        markers.clear_marker(path)
    elif not isinstance(part, markers.Unreadable):
        markers.write_marker(path, asdict(part))


def _read(path: Path, kind: Callable[..., T]) -> T | markers.Unreadable | None:
    says = markers.read_marker(path)
    if says is None or isinstance(says, markers.Unreadable):
        return says
    try:
        parts: Any = fields(kind)  # type: ignore[arg-type]
        return kind(**{part.name: _PARSERS[part.type](says[part.name]) for part in parts})
    except (KeyError, TypeError, ValueError):
        return markers.UNREADABLE


def _integer(value: object) -> int:
    return int(markers.number(value))


def _times(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list of times")
    return tuple(sorted(map(markers.number, value)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


_PARSERS: dict[Any, Any] = {
    bool: lambda value: value is True,
    int: _integer,
    float: markers.number,
    str: _text,
    int | None: lambda value: None if value is None else _integer(value),
    float | None: lambda value: None if value is None else markers.number(value),
    tuple[float, ...]: _times,
}
