"""A throw-away PostgreSQL server, for tests that run on each database.

Its text order is not that of bytes, so a list without an explicit order differs from SQLite's.
"""

import signal
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from examples.demo import postgres
from examples.demo.postgres import find_binaries
from turnkeeper.clock import SystemClock

SETTINGS = {
    "max_connections": "40",
    "synchronous_commit": "on",  # a daemon refuses weaker settings; without fsync this one is cheap
    "autovacuum": "off",
    "log_min_messages": "log",  # the errors are provoked by tests
}


class Server(postgres.Server):
    """A server for tests, which may lose unsynced data."""

    def __init__(self, binaries: Path, changes: Mapping[str, str] = SETTINGS) -> None:
        super().__init__(binaries, SETTINGS | dict(changes))

    def asked(self, query: str, *values: Any) -> Any:
        """Return the first row of a query."""
        return self._connection.execute(query.encode(), values).fetchone()

    def pause(self) -> None:
        """Stop the server; a standby misses what the primary commits from now on."""
        self._end(signal.SIGINT)

    def resume(self) -> None:
        """Start the server again."""
        self._start()

    def dump_tables(self) -> None:
        """Prepare the tables of new stores (`templates.py`), which otherwise takes most of a short test."""
        pg_dump = (self._binaries / "postgres").resolve().with_name("pg_dump")
        if pg_dump.exists():
            url = self.create()
            import_module("tests.support.templates").dump_tables(url, pg_dump, self.folder)
            self.drop(url)


class Standby(Server):
    """An asynchronous standby of a server, which can be stopped, started again and promoted."""

    def __init__(self, binaries: Path, primary: Server) -> None:
        self._make_folder(binaries)
        copy = (binaries / "postgres").resolve().with_name("pg_basebackup")
        place = ["-D", str(self.folder / "data"), "-h", str(primary.folder), "-U", "postgres"]
        self._run(copy, *place, "-R", "--checkpoint=fast", "--no-sync")
        self._start_with(SETTINGS)

    def catch_up(self, primary: Server) -> None:
        """Wait until the standby has every commit of the primary."""
        (until,) = primary.asked("SELECT pg_current_wal_lsn()")
        behind = "SELECT pg_last_wal_replay_lsn() < %s"
        assert SystemClock().poll(lambda: self.asked(behind, until) == (False,), timeout_s=60, every_s=0.01)

    def promote(self) -> None:
        """Start the standby again, as the new primary."""
        self._start()
        self.asked("SELECT pg_promote()")


class Places:
    """The places of a test's stores: files or, with a server, a database for each."""

    def __init__(self, server: Server | None) -> None:
        self._server = server
        self._urls: dict[Path, str] = {}

    def __call__(self, path: Path) -> Path | str:
        """Return the argument for `Database` in place of the file `path`: the same for the same file."""
        if self._server is None:
            return path
        if path not in self._urls:
            self._urls[path] = self._server.create()
        return self._urls[path]

    def forget(self) -> None:
        """Delete the databases that a test created."""
        for url in self._urls.values():
            assert self._server
            self._server.drop(url)
        self._urls.clear()


__all__ = ["Places", "Server", "Standby", "find_binaries"]
