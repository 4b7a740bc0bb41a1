"""One database, the runners of which are processes with homes of their own, and no runtime but a row that says one lives."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg

from agent_runtime.store.database import open_database
from tests.support.forked_daemons import RUNNER, RUNTIME, Forked
from tests.support.program import PEERS
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.storage.server.url import in_schema

PATIENCE_S = 60.0


class Ended(NamedTuple):
    """A runner that ended by itself, and what it said."""

    said: str


class Cluster:
    """Runners that share a database.

    Attributes:
        url: the database.
        sql: a connection to it, each statement a transaction.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.sql = psycopg.connect(url, autocommit=True)
        self.make_runtime()
        self._folder = Path(tempfile.mkdtemp(prefix="tk-"))
        self._processes: list[Forked] = []

    @property
    def name(self) -> str:
        """The database's name."""
        return urlsplit(self.url).path[1:]

    def make_runtime(self) -> None:
        """Make a runtime's tables, and the row that says that one lives."""
        open_database(in_schema(self.url, "runtime")).close()
        self.sql.execute("INSERT INTO runtime.owners VALUES ('stands-in', 9000000000000000)")

    def home(self, number: int) -> Home:
        """Return a made home that uses the database."""
        home = Home(root=self._folder / f"h{number}")
        home.create()
        home.config.write_text(f'[store]\nurl = "{self.url}"\n[node]\nname = "machine-{number}"\n')
        return home

    def start(self, home: Home, **environ: str) -> Forked:
        """Start the runner of a home."""
        return self._start(home, RUNNER, environ)

    def start_runtime(self, home: Home) -> Forked:
        """Start the runtime of a home, with the model that needs no network."""
        return self._start(home, RUNTIME, {})

    def start_peers(self, home: Home) -> Forked:
        """Start the process of a home that speaks with peers."""
        return self._start(home, PEERS.name, {})

    def _start(self, home: Home, which: str, environ: dict[str, str]) -> Forked:
        process = Forked(home, which, home.root / "stderr", os.environ | environ)
        self._processes.append(process)
        return process

    def forget(self, process: Forked) -> None:
        """Expect no more of a process that was to end by itself."""
        self._processes.remove(process)

    def rows(self, query: str, *values: Any) -> list[Any]:
        return self.sql.execute(query.encode(), values).fetchall()

    def value(self, query: str, *values: Any) -> Any:
        return self.rows(query, *values)[0][0]

    def until(self, probe: Callable[[], Any]) -> Any:
        """Return the first truthy answer; look often, and fail after a minute."""
        answer = SystemClock().poll(lambda: probe() or self._ended(), timeout_s=PATIENCE_S, every_s=0.02)
        assert answer, "".join(path.read_text() for path in self._folder.glob("h[1-9]*/logs/*"))[-3000:]
        assert not isinstance(answer, Ended), answer.said
        return answer

    def _ended(self) -> "Ended | None":
        """Return what a runner said that ended by itself."""
        for process in self._processes:
            if process.poll() not in {None, -signal.SIGKILL}:
                return Ended("".join(path.read_text() for path in self._folder.glob("*/stderr")))
        return None

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.sql.close()
        shutil.rmtree(self._folder)
