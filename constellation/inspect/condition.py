"""What the markers on a home say about its condition, in words and with what to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from constellation.supervisor import markers
from constellation.supervisor.daemons import DAEMONS
from constellation.supervisor.markers import found, read_marker
from constellation.supervisor.memory import Unreadable
from turnkeeper.config.home import Home
from turnkeeper.times import rfc3339

_UP = "mend the cause, then: turnkeeper up"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a person should know.

    Attributes:
        process: whose; empty for the whole constellation.
        what: what was found.
        fix: what to do; empty where nothing is to be done.
        degraded: the constellation is not whole as long as it stands.
    """

    process: str
    what: str
    fix: str = ""
    degraded: bool = True

    def __str__(self) -> str:
        """Return one line."""
        line = f"{self.process}: {self.what}" if self.process else self.what
        return f"{line}; {self.fix}" if self.fix else line


def findings(home: Home, now: float) -> list[Finding]:
    """Return what the markers say, the worst first for each process."""
    return [*(item for daemon in DAEMONS for item in _of(home, daemon.name)), *_of_all(home, now)]


def _of(home: Home, process: str) -> Iterator[Finding]:
    loop = read_marker(markers.CRASH_LOOP.at(home, process=process))
    if loop is not None:
        yield Finding(process=process, what=f"crash loop suspected: {_said(loop, 'reason')}", fix=_UP)
    hang = read_marker(markers.HANG.at(home, process=process))
    if hang is not None:
        what = "hang suspected: its progress counter stands still"
        yield Finding(process=process, what=what, fix="it is ended at the next look, or: turnkeeper quiet 30m")
    failed = read_marker(markers.FAILED_REVIVE.at(home, process=process))
    if failed is not None and loop is None:
        what = f"the last start was not verified: {_said(failed, 'error')}".rstrip(": ")
        yield Finding(process=process, what=what, degraded=False)
    for kind in (markers.ATTEMPTS, markers.INFLIGHT):
        if isinstance(read_marker(kind.at(home, process=process)), Unreadable):
            what = f"{kind.path.replace('<process>', process)} cannot be read, so that nothing is tried"
            yield Finding(process=process, what=what, fix="turnkeeper up writes it anew")


def _of_all(home: Home, now: float) -> Iterator[Finding]:
    if read_marker(markers.PROCESSING.at(home)) is not None:
        yield Finding(process="", what="a planned restart of agent-runtime is under way", degraded=False)
    for path in found(home, markers.ESCALATION):
        what = f"an escalation has not gone out: {_said(read_marker(path), 'text')}"
        yield Finding(process="", what=what, fix="set [watchdog] command or webhook; then turnkeeper up")
    for path in found(home, markers.QUIET):
        epoch = path.name.removeprefix("quiet-until-")
        if not (epoch.isascii() and epoch.isdigit()):
            what = f"{path.name} names no second, so that hangs go unnoticed"
            yield Finding(process="", what=what, fix="turnkeeper quiet --clear")
        elif int(epoch) > now:
            until = rfc3339(datetime.fromtimestamp(int(epoch), UTC))
            yield Finding(process="", what=f"quiet until {until}: hangs go unnoticed", degraded=False)


def _said(says: dict[str, Any] | Unreadable | None, key: str) -> str:
    if isinstance(says, dict):
        return str(says.get(key) or "")[:500]
    return "the marker cannot be read" if says is not None else ""
