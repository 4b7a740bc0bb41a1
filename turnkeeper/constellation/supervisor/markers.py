"""Every marker of the lifecycle: its path, its meaning, its writers and readers, and its end.

The state is in files, not in memory. If a process dies, the next one reads the state. A marker is replaced whole and
synced. A marker that exists and cannot be read is :data:`UNREADABLE`. It is never treated as absent.

Between two ticks, the watchdog's memory of a daemon is in several markers. Each is read back exactly, or is unreadable.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from turnkeeper.config.home import Home
from turnkeeper.errors import Corrupt
from turnkeeper.storage.files import SystemFiles

LARGEST_BYTES = 64 * 1024
_FILES = SystemFiles()


class Unreadable(Enum):
    """The value of a marker that exists and cannot be read."""

    UNREADABLE = "unreadable"


UNREADABLE: Final = Unreadable.UNREADABLE


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A row of the table.

    Attributes:
        path: the path under the home; `<process>` is agent-runtime or task-runner.
        ends: when the marker is cleared or escalated.
    """

    path: str
    meaning: str
    writer: str
    consumer: str
    ends: str

    def at(self, home: Home, **names: str) -> Path:
        """Return the marker's path, with `<name>` replaced by each of `names`."""
        path = self.path
        for name, value in names.items():
            path = path.replace(f"<{name}>", value)
        return home.root / path


WANTED = Kind(
    path="state/wanted",
    meaning="the constellation should run, with the watchdog settings of the last `up`",
    writer="`turnkeeper up`",
    consumer="supervisor, `watchdog tick`, `status`",
    ends="cleared by `turnkeeper down`",
)
RESTORED = Kind(
    path="state/restored",
    meaning="the home was restored from a backup, and its original may still run: no daemon starts",
    writer="`turnkeeper restore`",
    consumer="both daemons, `up`, `status`, `doctor`, `turnkeeper task list`",
    ends="cleared by `turnkeeper up --takeover`",
)
MIGRATED = Kind(
    path="state/migrated",
    meaning="the stores were moved into a database: if config.toml names none, no daemon starts",
    writer="`turnkeeper migrate`",
    consumer="both daemons, `up`, `status`, `doctor`, `turnkeeper task list`",
    ends="cleared by `turnkeeper up --takeover`",
)
ATTEMPTS = Kind(
    path="state/<process>-restart-attempts",
    meaning="the sliding window of restarts and of starts that failed",
    writer="watchdog, before each start",
    consumer="watchdog: the budget of restarts",
    ends="entries older than the window are dropped; cleared by `turnkeeper up` and `down`",
)
INFLIGHT = Kind(
    path="state/<process>-restart-inflight",
    meaning="a start that is not yet verified",
    writer="watchdog, before the start",
    consumer="watchdog: verification",
    ends="cleared when verified or failed, by `turnkeeper up` and `down`",
)
CRASH_LOOP = Kind(
    path="state/<process>-crashloop-suspected",
    meaning="the budget is spent: the watchdog has stopped trying",
    writer="watchdog",
    consumer="watchdog, `status`, `doctor`",
    ends="escalated once when written; cleared by `turnkeeper up`",
)
WAITS = "it is started again every few seconds, until the server answers"
FAILED_REVIVE = Kind(
    path="state/<process>-failed-revive",
    meaning="the last start that was not verified, and the daemon's last words",
    writer="watchdog",
    consumer="`status`, `doctor`, people",
    ends="cleared when a later start is verified, or serves after it waited for a server, and by `turnkeeper up`",
)
PROGRESS_SEEN = Kind(
    path="state/<process>-progress-seen",
    meaning="the newest progress count, and when it was first seen",
    writer="watchdog",
    consumer="watchdog: hang detection",
    ends="replaced when the count rises; cleared with the process",
)
HANG = Kind(
    path="state/<process>-hang-suspected",
    meaning="the count did not change for too long; replaces `progress-seen`",
    writer="watchdog",
    consumer="watchdog: kills the process if the next tick finds no progress; `status`",
    ends="cleared when progress resumes or the process is started again",
)
QUIET = Kind(
    path="state/quiet-until-<epoch>",
    meaning="hang detection is suspended until this Unix time",
    writer="`turnkeeper watchdog suspend D`",
    consumer="watchdog",
    ends="cleared by the first tick after it, and by `turnkeeper watchdog suspend --clear`",
)
ESCALATION = Kind(
    path="state/escalate-failed-<ts>-<process>",
    meaning="an alert that no route has delivered",
    writer="watchdog, before it tries; agent-runtime, of an approval that waits (`-approvals`); either "
    "daemon, of a lost machine (`-nodes`) or lost commits (`-database`); `turnkeeper escalate`",
    consumer="watchdog: every tick tries again; `status`",
    ends="marked as over when its process or machine is back; cleared when sent, its approval ends, and by `up`",
)
STATUS = Kind(
    path="state/restart-status/<id>.json",
    meaning="one start: phase (`stopping`, `spawned`, `up-detected`, `verified`; `refused`, `failed`), pid, error",
    writer="watchdog, restart child",
    consumer="watchdog: verification; people",
    ends="the newest 50 are kept",
)
REQUEST = Kind(
    path="state/restart-request",
    meaning="a request for a planned restart of agent-runtime, with the handoff's text",
    writer="`turnkeeper restart`, and agent0 by its tool `lifecycle_request_restart`",
    consumer="watchdog, which claims it by renaming it",
    ends="becomes `restart-request.processing`",
)
PROCESSING = Kind(
    path="state/restart-request.processing",
    meaning="a planned restart in progress: its process, and the number of tries",
    writer="watchdog, restart child",
    consumer="restart child; a tick that finds the child dead starts another, at most three in all",
    ends="moved to `restart-archive/` when done, refused or abandoned; an abandoned restart is escalated",
)
DRAFT = Kind(
    path="state/crash-handoffs/<id>.json",
    meaning="a handoff, planned or after a crash, that may not yet be in agent0's inbox",
    writer="watchdog after a crash, restart child",
    consumer="restart child; every tick that finds agent-runtime up",
    ends="removed once its copy is archived",
)
ARCHIVE = Kind(
    path="state/restart-archive/<id>.json",
    meaning="handoffs that reached agent0's inbox (`<id>-handoff.json`), and restart requests that ended",
    writer="watchdog, restart child",
    consumer="people",
    ends="kept",
)
PROGRESS = Kind(
    path="state/run/<process>.progress",
    meaning="the session marker: this pid serves; its count rises while its event loop runs",
    writer="agent-runtime, task-runner",
    consumer="watchdog, `up`",
    ends="ignored once this pid no longer holds the lock",
)
KINDS = tuple(value for value in list(globals().values()) if isinstance(value, Kind))


def read_marker(path: Path) -> dict[str, Any] | Unreadable | None:
    """Return a marker's content. Return None only if the marker does not exist."""
    try:
        found = json.loads(_FILES.read(path, LARGEST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, Corrupt, RecursionError):
        return UNREADABLE
    return found if isinstance(found, dict) else UNREADABLE


def write_marker(path: Path, says: Mapping[str, Any]) -> None:
    """Write or replace a marker, and sync it. Raises OSError or Exhausted. The old marker then stays."""
    fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    _FILES.write_synced(fresh, json.dumps(says, sort_keys=True).encode())
    _FILES.rename(fresh, path)
    _FILES.sync_folder(path.parent)


def sync(folder: Path) -> None:
    _FILES.sync_folder(folder)


def clear_marker(path: Path) -> None:
    """Remove a marker if it exists, and sync its folder."""
    if os.path.lexists(path):
        path.unlink(missing_ok=True)
        _FILES.sync_folder(path.parent)


def found(home: Home, kind: Kind) -> Iterator[Path]:
    """Yield the existing markers of a kind, by name. A part between `<` and `>` matches any text."""
    parent, _, pattern = kind.path.rpartition("/")
    folder = home.root / parent
    yield from sorted(folder.glob(re.sub("<[a-z]+>", "*", pattern))) if folder.is_dir() else ()


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The restarts and failed starts in a sliding window.

    Attributes:
        restarts: times, in seconds since 1970 and oldest first, at which a daemon that had run was started again.
        failures: times when a start that never served was given up.
    """

    restarts: tuple[float, ...] = ()
    failures: tuple[float, ...] = ()

    def within(self, now: float, window_s: float) -> "Budget":
        """Return the entries within the window. A future time, from before a clock was set back, counts as now."""
        return Budget(restarts=_within(self.restarts, now, window_s), failures=_within(self.failures, now, window_s))


@dataclass(frozen=True, kw_only=True)
class Revive:
    """A start that is not verified yet.

    Attributes:
        id: the id of its restart-status file; empty if another program began the start.
        up_at: when the daemon was first seen to serve; None until then.
        pid: the process that was started, and later the process that serves; None if unknown.
    """

    id: str
    at: float
    up_at: float | None = None
    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The newest count of a progress counter.

    Attributes:
        since: when this count was first seen.
        looks: the number of ticks, a tick interval apart, at which it was unchanged.
        looked_at: the time of the last such tick.
        suspected: True if the hang-suspected marker exists.
    """

    pid: int
    beats: int
    since: float
    looks: int = 0
    looked_at: float = 0.0
    suspected: bool = False


@dataclass(frozen=True, kw_only=True)
class CrashLoop:
    """The state in which the watchdog has stopped trying.

    Attributes:
        escalated: True if the author was alerted, or if the alert is on disk for a retry.
    """

    at: float
    reason: str
    escalated: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The watchdog's memory of one daemon.

    Attributes:
        budget: None until the daemon is first seen or started after an `up`.
        revive: None if no start waits for its verification.
        crash_loop: None while the watchdog tries to start the daemon.
        stall: None before the first count.
    """

    budget: Budget | Unreadable | None = None
    revive: Revive | Unreadable | None = None
    crash_loop: CrashLoop | Unreadable | None = None
    stall: Stall | Unreadable | None = None


def _within(times: tuple[float, ...], now: float, window_s: float) -> tuple[float, ...]:
    return tuple(min(at, now) for at in times if at > now - window_s)


_BY_PROCESS = (ATTEMPTS, INFLIGHT, CRASH_LOOP, FAILED_REVIVE, PROGRESS_SEEN, HANG)


def recall(home: Home, process: str) -> Memory:
    suspected = _read(HANG.at(home, process=process), Stall)
    seen = suspected or _read(PROGRESS_SEEN.at(home, process=process), Stall)
    return Memory(
        budget=_read(ATTEMPTS.at(home, process=process), Budget),
        revive=_read(INFLIGHT.at(home, process=process), Revive),
        crash_loop=_read(CRASH_LOOP.at(home, process=process), CrashLoop),
        stall=seen,
    )


def remember(home: Home, process: str, before: Memory, after: Memory) -> None:
    """Write the changes of a daemon's memory to disk."""
    for kind, was, now in (
        (ATTEMPTS, before.budget, after.budget),
        (INFLIGHT, before.revive, after.revive),
        (CRASH_LOOP, before.crash_loop, after.crash_loop),
    ):
        if was != now:
            _put(kind.at(home, process=process), now)
    if before.stall != after.stall:
        stall = after.stall if isinstance(after.stall, Stall) else None
        suspected = stall is not None and stall.suspected
        _put(HANG.at(home, process=process), stall if suspected else None)
        _put(PROGRESS_SEEN.at(home, process=process), None if suspected else stall)


def forget(home: Home, process: str, *, keep_start: bool) -> None:
    """Clear every marker of a daemon's past, as an author's `up` does. With `keep_start`, keep the start's marker."""
    for kind in _BY_PROCESS:
        if not (keep_start and kind is INFLIGHT):
            clear_marker(kind.at(home, process=process))


def _put(path: Path, part: Budget | Revive | CrashLoop | Stall | Unreadable | None) -> None:
    if part is None:
        clear_marker(path)
    elif not isinstance(part, Unreadable):
        write_marker(path, asdict(part))


def _read(path: Path, kind: Callable[..., T]) -> T | Unreadable | None:
    says = read_marker(path)
    if says is None or isinstance(says, Unreadable):
        return says
    try:
        parts: Any = fields(kind)  # type: ignore[arg-type]
        return kind(**{part.name: _PARSERS[part.type](says[part.name]) for part in parts})
    except (KeyError, TypeError, ValueError):
        return UNREADABLE


def _integer(value: object) -> int:
    return int(number(value))


def _times(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list of times")
    return tuple(sorted(map(number, value)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


_PARSERS: dict[Any, Any] = {
    bool: lambda value: value is True,
    int: _integer,
    float: number,
    str: _text,
    int | None: lambda value: None if value is None else _integer(value),
    float | None: lambda value: None if value is None else number(value),
    tuple[float, ...]: _times,
}
