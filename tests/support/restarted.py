"""A restart child over a stand-in: `python -m tests.support.restarted HOME`."""

import sys

from constellation.restart import main
from constellation.supervisor.daemons import Daemon
from tests.support.standin import STANDINS

RESTARTER = Daemon(name="restart", package="tests.support.restarted", command=())

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STANDINS[0]))
