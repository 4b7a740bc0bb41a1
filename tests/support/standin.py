"""A minimal daemon: it takes its lock, reports progress, and ends on SIGTERM. It starts very fast.

`python -m tests.support.standin NAME HOME`. Files in the home change what it does. With `NAME.fails`, it prints an
error and exits with 1. With `NAME.waits`, it reports that a server does not answer, and exits with 5. With `NAME.raises`, it
dies of an error with the file's content. With `NAME.still`, it serves without progress. With `NAME.deaf` at its start,
it ignores SIGTERM.
"""

import os
import signal
import sys
from pathlib import Path

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import Daemon
from turnkeeper.errors import EXIT_UNREACHABLE
from turnkeeper.rpc.process import Progress
from turnkeeper.storage.locking import ProcessLock

STANDINS = tuple(
    Daemon(name=name, package="tests.support.standin", command=(name,)) for name in ("agent-runtime", "task-runner")
)


def main(name: str, root: str) -> None:
    home, clock = Home(root=Path(root)), SystemClock()
    if (home.root / f"{name}.fails").exists():
        sys.exit(f"some output with a secret in it\nerror: {name} was told to fail")
    if (home.root / f"{name}.waits").exists():
        sys.stderr.write("error: the database does not answer\n")
        sys.exit(EXIT_UNREACHABLE)
    if (raises := home.root / f"{name}.raises").exists():
        raise ConnectionError(raises.read_text())
    with ProcessLock(home, name):
        is_deaf = (home.root / f"{name}.deaf").exists()
        signal.signal(signal.SIGTERM, signal.SIG_IGN if is_deaf else lambda *_: sys.exit(0))
        progress = Progress(home, name, os.getpid())
        progress.beat()
        while True:
            clock.block(0.05)
            if not (home.root / f"{name}.still").exists():
                progress.beat()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
