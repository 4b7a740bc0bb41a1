"""The restart child: a process in a new session, so that it survives its parent.

If the restart could not succeed, the child refuses it and leaves everything running. Otherwise it writes the draft of
the handoff, stops agent-runtime (never the supervisor or the runner), starts it, waits until it reports that it serves,
and delivers the handoff. Each step checks the files for the work of an earlier child, so the next child can continue
after a kill at any step.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.inspect.condition import preflight
from turnkeeper.constellation.supervisor import daemons, markers, up_down
from turnkeeper.constellation.supervisor.handoff import Deliverer, Draft, write_draft
from turnkeeper.constellation.supervisor.markers import Revive, recall, remember
from turnkeeper.constellation.supervisor.policy import Limits
from turnkeeper.constellation.supervisor.watchdog import RESTARTER, between_ticks, read_orders, set_aside, write_status
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_FAILURE, TurnkeeperError
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.locking import ProcessLock, is_held
from turnkeeper.times import rfc3339


class Restarter:
    """A planned restart."""

    def __init__(
        self, home: Home, request: Mapping[str, Any], *, environ: Mapping[str, str], daemon: daemons.Daemon
    ) -> None:
        self._home = home
        self._id = str(request["id"])
        self._text = str(request.get("text", ""))
        self._environ = environ
        self._daemon = daemon
        self._clock = SystemClock()
        self._failpoints = Failpoints(environ)
        self._log = EventLog(home.logs, "watchdog", self._clock)
        self._status = markers.STATUS.at(home, id=self._id)

    def run(self) -> bool:
        """Do the remaining steps. Return False if the restart was refused. Raises TurnkeeperError if a step fails."""
        found = markers.read_marker(self._status)
        done: dict[str, Any] = found if isinstance(found, dict) else {}
        self._failpoints.reach("restart.begun")
        if not done and (why := self._refusal()):
            done = self._phase("refused", error=why)
            self._failpoints.reach("restart.refused")
        if done.get("phase") == "refused":  # an earlier child may have refused the restart, and a refusal is final
            set_aside(self._home, self._id)
            return False
        if not done:
            process = daemons.process_of(self._home, self._daemon)
            done = self._phase("stopping", stopped=process.pid if process else None)
        self._failpoints.reach("restart.refused_or_not")
        write_draft(self._home, Draft(id=self._id, kind="planned", text=self._text, at=rfc3339(self._clock.now())))
        self._failpoints.reach("restart.drafted")
        running = daemons.process_of(self._home, self._daemon)
        if running is not None and running.pid == done.get("stopped"):
            daemons.stop(self._home, self._daemon)
            self._failpoints.reach("restart.stopped")
        self._start()
        self._failpoints.reach("restart.started")
        self._await()
        self._failpoints.reach("restart.serves")
        self._phase("up-detected")
        self._failpoints.reach("restart.up")
        with between_ticks(self._home):
            Deliverer(self._home, clock=self._clock, entropy=SystemEntropy(), failpoints=self._failpoints).deliver_all()
            self._failpoints.reach("restart.delivered")
            set_aside(self._home, self._id)
        self._failpoints.reach("restart.over")
        return True

    def _refusal(self) -> str:
        """Return why the daemon could not start again. Return an empty string if it could."""
        errors = preflight(self._home)
        try:
            up_down.check_places(self._home, self._daemon)
        except TurnkeeperError as error:
            errors.append(error)
        return str(errors[0]) if errors else daemons.refusal(self._home, self._daemon, self._environ)

    def _start(self) -> None:
        """Start the daemon, unless an earlier child did. First record the start on disk."""
        with between_ticks(self._home):
            before = recall(self._home, self._daemon.name)
            ours = isinstance(before.revive, Revive) and before.revive.id == self._id  # not of the stopped process
            started = before.revive.pid if ours and isinstance(before.revive, Revive) else None
            starting = started is not None and daemons.process_with(started, self._daemon) is not None
            if is_held(self._home, self._daemon.name) or starting:
                return
            begun = replace(before, revive=Revive(id=self._id, at=self._clock.now().timestamp()))
            remember(self._home, self._daemon.name, before, begun)
            self._failpoints.reach("restart.remembered")
            pid = daemons.spawn(self._home, self._daemon, self._environ)
            self._failpoints.reach("restart.spawned")
            known = replace(begun, revive=Revive(id=self._id, at=self._clock.now().timestamp(), pid=pid))
            remember(self._home, self._daemon.name, begun, known)
        self._phase("spawned", pid=pid)

    def _await(self) -> None:
        orders = read_orders(self._home)
        limit_s = (orders.limits if orders else Limits()).start_timeout_s
        if not self._clock.poll(self._serves, timeout_s=limit_s, every_s=daemons.POLL_S):
            raise TurnkeeperError(f"{self._daemon.name} did not serve within {limit_s:.0f}s", where=str(self._status))

    def _serves(self) -> bool:
        if daemons.serves(self._home, self._daemon):
            return True
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        revive = recall(self._home, self._daemon.name).revive
        pid = revive.pid if isinstance(revive, Revive) else None
        alive = pid is not None and daemons.process_with(pid, self._daemon) is not None
        if not alive and not is_held(self._home, self._daemon.name):
            raise TurnkeeperError(f"{self._daemon.name} ended while it started", where=str(self._status))
        return False

    def _phase(self, phase: str, **more: Any) -> dict[str, Any]:
        says = write_status(self._home, self._id, self._daemon.name, phase, self._clock.now(), **more)
        self._log.emit("restart.phase", id=self._id, phase=phase)
        return says


def main(argv: Sequence[str], daemon: daemons.Daemon = daemons.AGENT_RUNTIME) -> int:
    """Carry out the claimed restart of the home in `argv`. Return the exit code."""
    home = Home(root=Path(argv[0]))
    try:
        with ProcessLock(home, RESTARTER.name):
            request = markers.read_marker(markers.PROCESSING.at(home))
            if not isinstance(request, dict):
                return EXIT_FAILURE
            done = Restarter(home, request, environ=os.environ, daemon=daemon).run()
            return 0 if done else EXIT_FAILURE
    except TurnkeeperError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
