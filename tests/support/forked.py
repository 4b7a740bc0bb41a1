"""Processes forked from a prepared template process, which is faster than new interpreters.

`Template` starts the template process. `python tests/support/forked.py PATH` represents a fork of it: it passes its
standard streams to the fork and ends with it. This module is also run by its path, so it imports nothing of ours.
"""

import atexit
import gc
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

STREAMS = 3
_kept: list[int] = []  # the end of a fork closes it, which tells the process that represents the fork


class Template:
    """A process that is prepared once.

    Attributes:
        fork: the command line that forks a process from it, after waiting for the preparation.
    """

    def __init__(self, module: str, *argv: str) -> None:
        """Start a module, which calls `serve` once it is prepared.

        Args:
            module: its name.
            argv: its arguments, which precede the descriptor for `serve`.
        """
        self._folder, self._owner = tempfile.mkdtemp(prefix="tk-"), os.getpid()
        atexit.register(self._remove)
        path = Path(self._folder) / "fork.sock"
        self.fork = [sys.executable, "-S", "-E", __file__, str(path)]
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            os.set_inheritable(at := listening.fileno(), True)
            command = [sys.executable, "-m", module, *argv, str(at)]
            stdin, self._stdin = os.pipe()
            streams = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
            self._pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=streams)
            os.close(stdin)

    def close(self) -> None:
        """End the process once all its forks have ended."""
        os.close(self._stdin)
        os.waitpid(self._pid, 0)

    def _remove(self) -> None:
        if os.getpid() == self._owner:  # one of its forks ends earlier
            shutil.rmtree(self._folder)


def serve(at: int) -> None:
    """Fork for each request, until standard input ends. Return only in the forks, with the requester's streams."""
    gc.freeze()
    forks: list[int] = []
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # its forks notice it, and end by themselves
    with socket.socket(fileno=at) as listening:
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            asked, _ = listening.accept()
            _, streams, _, _ = socket.recv_fds(asked, 1, STREAMS)
            forks.append(os.fork())
            if forks[-1] == 0:
                _kept.append(asked.detach())
                for target, stream in enumerate(streams):
                    os.dup2(stream, target)
                signal.signal(signal.SIGINT, interrupted)
            for stream in streams:
                os.close(stream)
            if _kept:
                return
            asked.close()
    for pid in forks:
        os.waitpid(pid, 0)
    sys.exit()


def ask(path: str) -> None:
    """Request a fork that uses the standard streams of this process. Return when the fork has ended."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        socket.send_fds(asking, [b"\0"], range(STREAMS))
        asking.recv(1)


if __name__ == "__main__":
    ask(sys.argv[1])
