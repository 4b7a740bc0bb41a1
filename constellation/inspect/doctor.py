"""The doctor: looks at everything that could be wrong with a home, and says for each finding what to do."""

import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from constellation.inspect.condition import Finding, findings
from constellation.restart.preflight import preflight
from constellation.supervisor.daemons import DAEMONS, SUPERVISOR, process_of
from constellation.supervisor.watchdog import read_orders
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        findings: what is wrong with it; empty when it is well.
    """

    name: str
    findings: tuple[Finding, ...]


def examine(home: Home, now: float) -> Iterator[Check]:
    """Look at one thing after the other. Reads only; whole stores are read through, which takes time for large ones."""
    looks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("can start", lambda: _preflight(home)),
        ("runs", lambda: _runs(home)),
        ("markers", lambda: iter(findings(home, now))),
        ("stores", lambda: _stores(home)),
        ("keys", lambda: _keys(home)),
        ("inboxes", lambda: _inboxes(home)),
    )
    for name, find in looks:
        yield Check(name=name, findings=tuple(find()))


def _preflight(home: Home) -> Iterator[Finding]:
    for error in preflight(home):
        yield _finding(error)


def _finding(error: TurnkeeperError) -> Finding:
    return Finding(process="", what=f"{error.where}: {error.what}" if error.where else error.what, fix=error.hint)


def _runs(home: Home) -> Iterator[Finding]:
    if read_orders(home) is None:
        yield Finding(process="", what="nothing is meant to run", fix="turnkeeper up", degraded=False)
        return
    for daemon in (SUPERVISOR, *DAEMONS):
        if process_of(home, daemon) is None:
            yield Finding(process=daemon.name, what="does not run", fix="turnkeeper up")


def _stores(home: Home) -> Iterator[Finding]:
    for path in (home.schedules_db, home.agent_db, home.checkpoints_db):
        if path.exists() and (trouble := damage(path)):
            yield Finding(process="", what=f"{path}: {trouble}", fix="turnkeeper down, then turnkeeper restore DIR")


def _keys(home: Home) -> Iterator[Finding]:
    if home.environment.exists() and stat.S_IMODE(home.environment.stat().st_mode) & 0o077:
        what = f"{home.environment}: others can read your keys"
        yield Finding(process="", what=what, fix=f"chmod 600 {home.environment}")


def _inboxes(home: Home) -> Iterator[Finding]:
    folder = home.root / "channels" / "agent"
    for agent in sorted(folder.iterdir()) if folder.is_dir() else ():
        aside = [path for path in (agent / "quarantine").glob("*.json") if not path.name.startswith(".")]
        if aside:
            what = f"{len(aside)} envelopes of {agent.name} are quarantined"
            yield Finding(process="", what=what, fix=f"agent-runtime inbox list {agent.name}", degraded=False)


def damage(path: Path) -> str:
    """Read a store through; return the first thing that is wrong with it, or nothing."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return "" if said == "ok" else str(said).splitlines()[0]
