"""The daemon: `python -m agent_runtime.daemon --home DIR`, which is what `agent-runtime serve` becomes.

LangGraph reads its environment when it is first imported, so this module sets that up before it imports anything that
imports LangGraph: the serving itself stands in `agent_runtime/daemon/assembly.py`.
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
    "LANGGRAPH_STRICT_MSGPACK": "true",  # checkpoints name only known types
    "LANGSMITH_TRACING": "false",  # nothing of a turn leaves the machine unasked
    "LANGCHAIN_TRACING_V2": "false",
}


def main(argv: list[str]) -> int:
    """Serve until SIGTERM or SIGINT, or with --check only say whether it could; return the exit code."""
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
        with ProcessLock(home, PROCESS) as lock:
            os.environ.update(ENVIRONMENT)
            import_module("turnkeeper.config.started").write_start(home, PROCESS)
            asyncio.run(_assembly().serve(home, lock))

    return exit_code_of(serve)


def _assembly() -> Any:
    with loading():  # a quarter of the time until it serves, otherwise
        return import_module("agent_runtime.daemon.assembly")


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)  # the interpreter's own way out waits for every thread, and one of a graph's may hang
