"""Starts of a daemon, each cut off from the database at another of its steps: `… URL HOME MODULE FIRST STEP [ANEW]`.

A step is a round trip to the server, or a new connection. A process that has imported the daemon is forked for each
start. At the chosen step, the server ends the connection or refuses new ones; the daemon does the rest. Each start
prints a line of JSON: its step, its number of steps, its exit code (0 if it served), and its output. With ANEW, each
start finds a database without tables.
"""

import gc
import itertools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support.forked_daemons import make_tools
from turnkeeper.bus.event_log import EventLog
from turnkeeper.storage.server.url import in_schema


class Cut:
    """A counter of this process's steps, which cuts the process off at one of them."""

    def __init__(self, url: str, at: int) -> None:
        self._database, self._at, self.count = conninfo_to_dict(in_schema(url, "")), at, 0
        self._lock, self._admin, self._make = threading.RLock(), False, psycopg.Connection.connect

    def install(self) -> None:
        """Count the steps of all connections from now on."""
        for kind in (psycopg.Connection, psycopg.AsyncConnection):
            waits = kind.wait
            kind.wait = lambda c, *given, waits=waits, **how: (self._end(c), waits(c, *given, **how))[1]  # type: ignore[assignment]
        psycopg.connect = psycopg.Connection.connect = self._connect  # type: ignore[method-assign, assignment]

    def _connect(self, *given: Any, **how: Any) -> Any:
        if not self._is_next():
            return self._make(*given, **how)
        self.let_in("false")
        try:
            return self._make(*given, **how)
        finally:
            self.let_in("true")

    def _end(self, connection: Any) -> None:
        if self._is_next():
            self.ask(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)")

    def _is_next(self) -> bool:
        with self._lock:
            self.count += not self._admin
            return not self._admin and self.count == self._at

    def let_in(self, anybody: str) -> None:
        self.ask(f'ALTER DATABASE "{self._database["dbname"]}" ALLOW_CONNECTIONS {anybody}')

    def ask(self, statement: str) -> None:
        """Run a statement as an administrator."""
        with self._lock:
            self._admin = True
            try:
                with self._make(**{**self._database, "dbname": "postgres"}, autocommit=True) as admin:  # type: ignore[arg-type]
                    admin.execute(statement.encode())
            finally:
                self._admin = False


def start(main: Callable[[list[str]], int], argv: list[str], cut: Cut) -> dict[str, Any]:
    """Start a daemon in a child process, until it serves or ends. Return the result."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as counted:
        if (pid := os.fork()) == 0:
            os.dup2(said.fileno(), 2)
            emit, code = EventLog.emit, 70

            def end(code: int) -> None:
                os.write(counted.fileno(), str(cut.count).encode())
                os._exit(code)

            def heard(log: EventLog, event: str, **how: Any) -> Any:
                emit(log, event, **how)
                if event == "process.started":
                    end(0)

            EventLog.emit = heard  # type: ignore[method-assign]
            cut.install()
            try:
                code = main(argv)
            finally:
                if sys.exc_info()[0]:
                    sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
                end(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        counted.seek(0)
        return {"code": code, "count": int(counted.read()), "said": said.read().decode()}


def walk(url: str, home: str, module: str, first: str, step: str, anew: str = "") -> None:
    """Start repeatedly, each time cut off at a later step, until a start is not cut off."""
    main = import_module(module).main
    if module.startswith("agent_runtime"):
        os.environ.update(import_module(module).ENVIRONMENT)
        import_module("agent_runtime.daemon.assembly")
        make_tools()
    gc.freeze()
    argv = ["--home", home] if module.startswith("agent_runtime") else [home]
    for at in itertools.count(int(first), int(step)):
        if anew:
            with psycopg.connect(url, autocommit=True) as sql:
                sql.execute("DROP SCHEMA IF EXISTS runner, runtime CASCADE")
        done = start(main, argv, Cut(url, at))
        sys.stdout.write(json.dumps({"at": at, **done}) + "\n")
        sys.stdout.flush()
        if done["count"] < at:
            return


if __name__ == "__main__":
    os.umask(0o077)
    walk(*sys.argv[1:])
