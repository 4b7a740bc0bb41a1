"""`turnkeeper`, the program for people, for tests that run its commands in their own process; and the processes of surfaces."""

from turnkeeper import console
from turnkeeper.constellation.supervisor.daemons import OPTIONAL

app = console.program()
WEB, PEERS = (next(one for one in OPTIONAL if one.name == name) for name in ("web", "peers"))
