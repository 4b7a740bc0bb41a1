"""Processes forked from a prepared template process, which is faster than new interpreters.

`Template` starts the template process. `python tests/support/forked.py PATH ARG...` represents a fork of it: it passes
its standard streams, its arguments, its folder and its variables to the fork, and ends with it. This module is also run
by its path, so it imports nothing of ours, and what only a template needs is imported there.
"""

import json
import os
import socket
import sys

STREAMS = 3
_kept: list[int] = []  # the end of a fork closes it, which tells the process that represents the fork


class Asked:
    """What the process that represents a fork was started with.

    Attributes:
        argv: its arguments.
        folder: its current folder.
        environ: its variables.
        path: the socket at which another fork can be requested.
    """

    def __init__(self, argv: list[str], folder: str, environ: dict[str, str], path: str) -> None:
        self.argv, self.folder, self.environ, self.path = argv, folder, environ, path

    def end(self, code: int) -> None:
        """End this fork; the process that represents it ends with the same exit code."""
        os.write(_kept[0], b"%d" % code)
        os._exit(code)


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
        import atexit
        import tempfile

        self._folder, self._owner = tempfile.mkdtemp(prefix="tk-"), os.getpid()
        atexit.register(self._remove)
        path = f"{self._folder}/fork.sock"
        self.fork = command(path)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen()
            os.set_inheritable(at := listening.fileno(), True)
            program = [sys.executable, "-m", module, *argv, str(at)]
            stdin, self._stdin = os.pipe()
            streams = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
            self._pid = os.posix_spawn(sys.executable, program, os.environ, file_actions=streams)
            os.close(stdin)

    def close(self) -> None:
        """End the process once all its forks have ended."""
        os.close(self._stdin)
        os.waitpid(self._pid, 0)

    def _remove(self) -> None:
        import shutil

        if os.getpid() == self._owner:  # one of its forks ends earlier
            shutil.rmtree(self._folder)


def command(path: str) -> list[str]:
    """Return the command line of a process that represents a fork, without arguments for the fork."""
    return [sys.executable, "-S", "-E", __file__, path]


def serve(at: int) -> Asked:
    """Fork for each request, until standard input ends. Return only in the forks, with the requester's streams."""
    import gc
    import select
    import signal

    gc.freeze()
    forks: set[int] = set()
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # its forks notice it, and end by themselves
    with socket.socket(fileno=at) as listening:
        path = str(listening.getsockname())
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            asked, _ = listening.accept()
            _, streams, _, _ = socket.recv_fds(asked, 1, STREAMS)
            pid = os.fork()
            if pid == 0:
                _kept.append(asked.detach())
                for target, stream in enumerate(streams):
                    os.dup2(stream, target)
                signal.signal(signal.SIGINT, interrupted)
            for stream in streams:
                os.close(stream)
            if _kept:
                with open(_kept[0], closefd=False) as said:
                    return Asked(*json.loads(said.readline()), path=path)
            asked.close()
            forks = {one for one in {*forks, pid} if not os.waitpid(one, os.WNOHANG)[0]}
    for one in forks:
        os.waitpid(one, 0)
    sys.exit()


def open_streams() -> None:
    """Open the standard streams of a fork as a new interpreter does."""
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  as long as the fork
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def ask(path: str, *argv: str) -> int:
    """Request a fork that uses the standard streams of this process. Return its exit code when it has ended."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        socket.send_fds(asking, [b"\0"], range(STREAMS))
        said = json.dumps([argv, os.getcwd(), dict(os.environ)])  # noqa: PTH109  pathlib takes longer to load than the rest
        asking.sendall(f"{said}\n".encode())
        return int(asking.recv(STREAMS) or 1)


if __name__ == "__main__":
    sys.exit(ask(*sys.argv[1:]))
