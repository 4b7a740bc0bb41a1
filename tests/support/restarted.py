"""A restart child over a stand-in: `python -m tests.support.restarted HOME`."""

import sys

from constellation.daemons import Daemon
from constellation.restarter import main
from tests.support.standin import STANDINS

RESTARTER = Daemon(name="restart", package="tests.support.restarted", command=())

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STANDINS[0]))
