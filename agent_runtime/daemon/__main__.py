"""The daemon: `python -m agent_runtime.daemon --home DIR`, which `agent-runtime serve` executes.

LangGraph reads its environment on first import, so this module sets the environment before it imports any module that
imports LangGraph. `agent_runtime/daemon/assembly.py` contains the server.
"""

import argparse
import asyncio
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from turnkeeper.config.home import locate
from turnkeeper.errors import exit_code_of
from turnkeeper.rpc.process import loading
from turnkeeper.storage.locking import ProcessLock

PROCESS = "agent-runtime"
ENVIRONMENT = {
    "LANGGRAPH_STRICT_MSGPACK": "true",  # checkpoints may contain only known types
    "LANGSMITH_TRACING": "false",  # no data of a turn leaves the machine unless enabled
    "LANGCHAIN_TRACING_V2": "false",
}


def main(argv: list[str]) -> int:
    """Serve until SIGTERM or SIGINT, or with --check only report whether a start would work; return the exit code."""
    parser = argparse.ArgumentParser(prog="agent-runtime serve")
    parser.add_argument("--home", type=Path, default=None)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(argv)
    home = locate(given.home, os.environ)

    def serve() -> None:
        home.check()
        home.check_taken_over()
        home.check_keys()
        if given.check:
            os.environ.update(ENVIRONMENT)
            asyncio.run(_assembly().check(home))
            return
        home.create()
        home.check_sockets()
        os.chdir(home.root)  # so tools and graphs find their files wherever the daemon was started
        with ProcessLock(home, PROCESS) as lock:
            os.environ.update(ENVIRONMENT)
            import_module("turnkeeper.config.started").write_start(home, PROCESS)
            asyncio.run(_assembly().serve(home, lock))

    return exit_code_of(serve)


def _assembly() -> Any:
    with loading():  # this saves a quarter of the start-up time
        return import_module("agent_runtime.daemon.assembly")


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)  # a normal exit would wait for every thread, and a graph's thread may hang
