"""`agent-runtime serve`."""

import os
import sys

from agent_runtime.cli.client import PROCESS
from turnkeeper.console import home
from turnkeeper.errors import Conflict
from turnkeeper.storage.locking import is_held


def serve() -> None:
    """Run the daemon in the foreground. On SIGTERM or Ctrl-C, running turns reach their next checkpoint and it ends.

    `turnkeeper up` starts it in the background, with the task runner. Use `serve` for service managers and debugging.

    Example: agent-runtime serve --home ~/.turnkeeper
    """
    place = home()
    place.check()
    if is_held(place, PROCESS):
        raise Conflict(f"{PROCESS} already runs on this home", where=str(place.root), hint="stop it: turnkeeper down")
    sys.stdout.flush()
    # A fresh process image: the daemon sets LangGraph's environment before its first import.
    os.execv(  # noqa: S606  our own interpreter and module
        sys.executable, [sys.executable, "-P", "-m", "agent_runtime.daemon", "--home", str(place.root)]
    )
