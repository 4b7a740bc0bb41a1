"""Planned restarts, as the watchdog sees them: a request that one tick claims, and a child that outlives its starter.

While the child lives, the watchdog leaves agent-runtime to it. A child that died is started again and continues from
what is on disk.
"""

import os
from collections.abc import Mapping
from typing import Any

from constellation.supervisor import markers
from constellation.supervisor.daemons import Daemon, process_with, spawn
from constellation.supervisor.escalation import escalate
from turnkeeper.config.home import Home
from turnkeeper.event_log import EventLog
from turnkeeper.storage.locking import is_held

RESTARTER = Daemon(name="restart", package="constellation.restart", command=())
MOST_TRIES = 3
RESTARTED = "agent-runtime"


class Planned:
    """Claims requests and keeps a child at work on the claimed one."""

    def __init__(self, home: Home, *, log: EventLog, environ: Mapping[str, str], child: Daemon = RESTARTER) -> None:
        self._home = home
        self._log = log
        self._environ = environ
        self._child = child

    def under_way(self, now: float) -> bool:
        """Claim a request, or look after the claimed one; True while a child sees to agent-runtime."""
        path = markers.PROCESSING.at(self._home)
        says = markers.read_marker(path)
        if says is None:
            request = markers.REQUEST.at(self._home)
            if not os.path.lexists(request):
                return False
            request.rename(path)
            says = markers.read_marker(path)
        if not isinstance(says, dict) or not isinstance(says.get("id"), str):
            self._give_up(f"unreadable-{now:.0f}", "a restart request cannot be read", now)
            return False
        if is_held(self._home, self._child.name) or self._lives(says):
            return True
        tries = _tries(says)
        if tries >= MOST_TRIES:
            self._give_up(says["id"], f"a planned restart did not end in {tries} tries", now)
            return False
        says = says | {"tries": tries + 1, "pid": None}
        markers.write_marker(path, says)
        pid = spawn(self._home, self._child, self._environ)
        markers.write_marker(path, says | {"pid": pid})
        self._log.emit("restart.begun", id=says["id"], child=pid, tries=tries + 1)
        return True

    def _lives(self, says: Mapping[str, Any]) -> bool:
        pid = says.get("pid")
        return isinstance(pid, int) and process_with(pid, self._child) is not None

    def _give_up(self, id_: str, reason: str, now: float) -> None:
        self._log.emit("restart.given_up", durable=True, id=id_, reason=reason)
        escalate(self._home, RESTARTED, f"{now:.0f}", reason)
        failed = {"id": id_, "process": RESTARTED, "phase": "failed", "error": reason}
        markers.write_marker(markers.FAILED_REVIVE.at(self._home, process=RESTARTED), failed)
        set_aside(self._home, id_)


def set_aside(home: Home, id_: str) -> None:
    """End a claimed request: it goes to the archive."""
    archive = markers.ARCHIVE.at(home, id=f"{id_}-request")
    archive.parent.mkdir(mode=0o700, exist_ok=True)
    markers.PROCESSING.at(home).rename(archive)
    markers.sync(archive.parent)
    markers.sync(home.run.parent)


def is_under_way(home: Home) -> bool:
    """Tell whether a restart is asked for or under way."""
    return any(os.path.lexists(kind.at(home)) for kind in (markers.REQUEST, markers.PROCESSING))


def _tries(says: Mapping[str, Any]) -> int:
    try:
        return int(markers.number(says.get("tries", 0)))
    except ValueError:
        return MOST_TRIES
