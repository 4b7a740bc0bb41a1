"""`agent-runtime serve`."""

import os
import sys

from agent_runtime.cli.client import PROCESS
from turnkeeper.console import home
from turnkeeper.errors import Conflict
from turnkeeper.storage.locking import is_held


def serve() -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C lets running turns reach their next checkpoint.

    `turnkeeper up` starts it detached, together with the task runner; this is for service managers and for watching it.

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
