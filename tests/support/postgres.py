"""A throw-away PostgreSQL server, for tests that run on each database.

Its text order is not that of bytes, so a list without an explicit order differs from SQLite's.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from examples.demo import postgres
from examples.demo.postgres import find_binaries

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

    def dump_tables(self) -> None:
        """Prepare the tables of new stores (`templates.py`), which otherwise takes most of a short test."""
        pg_dump = (self._binaries / "postgres").resolve().with_name("pg_dump")
        if pg_dump.exists():
            url = self.create()
            import_module("tests.support.templates").dump_tables(url, pg_dump, self.folder)
            self.drop(url)


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


__all__ = ["Places", "Server", "find_binaries"]
