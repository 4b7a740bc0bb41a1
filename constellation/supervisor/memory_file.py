"""The watcher's memory as markers: read back exactly, or known to be unreadable."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from constellation.supervisor import markers
from constellation.supervisor.markers import clear_marker, number, read_marker, write_marker
from constellation.supervisor.memory import UNREADABLE, Budget, CrashLoop, Memory, Revive, Stall, Unreadable
from turnkeeper.config.home import Home

T = TypeVar("T")
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
    suspected = _read(markers.HANG.at(home, process=process), _stall)
    seen = suspected or _read(markers.PROGRESS_SEEN.at(home, process=process), _stall)
    return Memory(
        budget=_read(markers.ATTEMPTS.at(home, process=process), _budget),
        revive=_read(markers.INFLIGHT.at(home, process=process), _revive),
        crash_loop=_read(markers.CRASH_LOOP.at(home, process=process), _crash_loop),
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
            clear_marker(kind.at(home, process=process))


def _put(path: Path, part: Budget | Revive | CrashLoop | Stall | Unreadable | None) -> None:
    if part is None:
        clear_marker(path)
    elif not isinstance(part, Unreadable):
        write_marker(path, asdict(part))


def _read(path: Path, parse: Callable[[Mapping[str, Any]], T]) -> T | Unreadable | None:
    found = read_marker(path)
    if found is None or isinstance(found, Unreadable):
        return found
    try:
        return parse(found)
    except (KeyError, TypeError, ValueError):
        return UNREADABLE


def _budget(says: Mapping[str, Any]) -> Budget:
    return Budget(restarts=_times(says["restarts"]), failures=_times(says["failures"]))


def _revive(says: Mapping[str, Any]) -> Revive:
    up_at, pid = says["up_at"], says["pid"]
    return Revive(
        id=_text(says["id"]),
        at=number(says["at"]),
        up_at=None if up_at is None else number(up_at),
        pid=None if pid is None else int(number(pid)),
    )


def _crash_loop(says: Mapping[str, Any]) -> CrashLoop:
    return CrashLoop(at=number(says["at"]), reason=_text(says["reason"]), escalated=says["escalated"] is True)


def _stall(says: Mapping[str, Any]) -> Stall:
    return Stall(
        pid=int(number(says["pid"])),
        beats=int(number(says["beats"])),
        since=number(says["since"]),
        looks=int(number(says["looks"])),
        looked_at=number(says["looked_at"]),
        suspected=says["suspected"] is True,
    )


def _times(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list of times")
    return tuple(sorted(map(number, value)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
