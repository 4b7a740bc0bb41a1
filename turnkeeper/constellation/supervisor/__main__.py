"""The supervisor: a small process that runs a tick of the watchdog when a daemon dies, and at regular intervals.

If it is killed, no state is lost. The daemons run in separate sessions and survive it. The next supervisor finds them
by their locks. It imports neither gRPC nor the settings. It sleeps until the kernel reports that a daemon ended, a
signal arrives, or the next tick is due.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path

from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.build import write_build
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.daemons import SUPERVISOR, Daemon, process_of, serves
from turnkeeper.constellation.supervisor.systemd import Notifier, for_daemons
from turnkeeper.constellation.supervisor.watchdog import RESTARTER, Watchdog
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import exit_code_of
from turnkeeper.storage.locking import ProcessLock

_SHORTEST_S = 0.05
_TROUBLE_WAIT_S = 2.0
_BLIND_S = 1.0  # seconds between checks if the kernel cannot report the end of a process


class Supervisor:
    """The loop of ticks, which runs until a signal ends it or no process should run."""

    def __init__(
        self,
        home: Home,
        *,
        clock: Clock,
        environ: Mapping[str, str],
        daemons: Sequence[Daemon] | None = None,
        child: Daemon = RESTARTER,
        keep: Callable[[], object] = list,
    ) -> None:
        """Supervise `daemons`, by default the daemons in the orders.

        `keep` is called before each tick and restores the files of the supervisor's lock.
        """
        self._keep = keep
        self._home = home
        self._systemd = Notifier(environ)
        ours, entropy = for_daemons(environ), SystemEntropy()
        self._watchdog = Watchdog(home, clock=clock, entropy=entropy, environ=ours, daemons=daemons, child=child)
        self._told = False
        self._wake, self._ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        """Supervise. SIGTERM and SIGINT end this process and leave the daemons running; SIGHUP forces a tick."""
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        for number in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        while not self._told:
            try:
                if not self._look():
                    return
            except OSError as error:  # there is no free descriptor, or a disk fails: the next tick tries again
                if not self._watchdog.alert_to(error):
                    raise
                self._wait({}, _TROUBLE_WAIT_S)

    def _look(self) -> bool:
        """Run one tick, and sleep. Return False if no process should run."""
        with ExitStack() as opened:
            # Do this before the tick, so that the poll also wakes if a daemon ends after the tick has seen it.
            watched = self._watch(opened, {})
            self._reap()
            with suppress(OSError):
                self._keep()
            pause_s = self._watchdog.tick()
            if pause_s is None:
                return False
            self._systemd.notify(ready=self._settled())
            pause_s = min(pause_s, self._systemd.longest_pause_s)
            self._wait(self._watch(opened, watched), max(pause_s, _SHORTEST_S))
            return True

    def _settled(self) -> bool:
        """Return True if every daemon serves, waits for a server, or was given up."""
        return all(
            daemon.name in self._watchdog.waiting
            or os.path.lexists(markers.CRASH_LOOP.at(self._home, process=daemon.name))
            or serves(self._home, daemon)
            for daemon in self._watchdog.watched
        )

    def _end(self) -> None:
        self._told = True

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self._watchdog.reaped(pid, status)

    def _watch(self, opened: ExitStack, watched: dict[str, int]) -> dict[str, int]:
        """Open a pidfd for each daemon that has none, because no signal reports the end of an adopted daemon."""
        for daemon in self._watchdog.watched:
            process = process_of(self._home, daemon) if daemon.name not in watched else None
            if process is None or not hasattr(os, "pidfd_open"):
                continue
            with suppress(ProcessLookupError):
                watched[daemon.name] = os.pidfd_open(process.pid)
                opened.callback(os.close, watched[daemon.name])
        return watched

    def _wait(self, watched: Mapping[str, int], pause_s: float) -> None:
        """Sleep until a daemon ends, a signal arrives or the pause is over."""
        poll = select.poll()
        for descriptor in (self._wake, *watched.values()):
            poll.register(descriptor, select.POLLIN)
        blind = not hasattr(os, "pidfd_open")
        poll.poll((min(pause_s, _BLIND_S) if blind else pause_s) * 1000)
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)


def main(argv: list[str]) -> int:
    """Supervise the home in `argv`. Return the exit code."""
    home, foreground = Home(root=Path(argv[0])), "--foreground" in argv[1:]

    def serve() -> None:
        home.check()
        signal.signal(signal.SIGHUP, lambda *_: None)  # another `up` sends this signal to the lock's holder
        with ProcessLock(home, SUPERVISOR.name) as lock:
            write_build(home, SUPERVISOR.name, {})
            Supervisor(home, clock=SystemClock(), environ=os.environ, keep=lock.keep).run()
        if foreground:  # a signal to this process is meant for the whole constellation
            import_module("turnkeeper.constellation.supervisor.up_down").bring_down(home, supervisor=False)

    return exit_code_of(serve)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
