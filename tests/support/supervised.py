"""A supervisor over stand-ins: `python -m tests.support.supervised HOME`."""

import os
import sys
from pathlib import Path

from tests.support.restarted import RESTARTER
from tests.support.standin import STANDINS
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.__main__ import Supervisor
from turnkeeper.constellation.supervisor.daemons import Daemon
from turnkeeper.storage.locking import ProcessLock

SUPERVISED = Daemon(name="supervisor", package="tests.support.supervised", command=())

if __name__ == "__main__":
    home = Home(root=Path(sys.argv[1]))
    with ProcessLock(home, SUPERVISED.name) as lock:
        Supervisor(
            home, clock=SystemClock(), environ=os.environ, daemons=STANDINS, child=RESTARTER, keep=lock.keep
        ).run()
