"""A restart child over a stand-in: `python -m tests.support.restarted HOME`."""

import sys

from tests.support.standin import STANDINS
from turnkeeper.constellation.restart import main
from turnkeeper.constellation.supervisor.daemons import Daemon

RESTARTER = Daemon(name="restart", package="tests.support.restarted", command=())

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STANDINS[0]))
