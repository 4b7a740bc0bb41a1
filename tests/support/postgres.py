"""A throw-away PostgreSQL server, for tests that run on each database.

Its text order is not that of bytes: a list that does not say its order comes out otherwise than from SQLite.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "40",
    "shared_buffers": "32MB",
    "fsync": "off",
    "synchronous_commit": "on",  # a daemon refuses less; without fsync it costs next to nothing
    "full_page_writes": "off",
    "autovacuum": "off",
    "log_checkpoints": "off",
    "log_min_messages": "log",  # the errors that a test provokes are the test's
}


def find_binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest version's; None if it is not installed."""
    if (found := shutil.which("postgres")) is not None:
        return Path(found).parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in installed), key=lambda folder: int(folder.parent.name), default=None)


class Server:
    """A server on a socket in a folder of its own; it ends with :meth:`stop`, or with the process that started it."""

    def __init__(self, binaries: Path, changes: Mapping[str, str] = SETTINGS) -> None:
        """Start it, with other settings than a test's where `changes` says so."""
        self._folder = Path(tempfile.mkdtemp(prefix="tk-pg-"))
        self._user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        self._as_user: list[str] = []
        self._made = 0
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self._folder, self._user)
            self._as_user = ["--reuid", self._user, "--regid", self._user, "--init-groups"]
        data = str(self._folder / "data")
        init = ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]
        order = ["--locale-provider=icu", "--icu-locale=und"]
        self._run(binaries / "initdb", "-D", data, *init, *order)
        import psycopg  # a process that is forked from a test has not imported it

        settings = SETTINGS | dict(changes) | {"unix_socket_directories": str(self._folder)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            self._command(binaries / "postgres", "-D", data, *options), stderr=subprocess.PIPE, text=True
        )
        self._wait_until_ready()
        self._connection = psycopg.connect(host=str(self._folder), user="postgres", dbname="postgres", autocommit=True)

    def create(self, template: str = "template0") -> str:
        """Make a database, empty or as a copy of another, and return its URL."""
        self._made += 1
        name = f"test_{self._made}"
        self._connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY wal_log'.encode())
        return f"postgresql://postgres@/{name}?host={quote(str(self._folder), safe='')}"

    def drop(self, url: str) -> None:
        """Delete a database, even if a test has left it open."""
        name = urlsplit(url).path[1:]
        self._connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())

    def stop(self) -> None:
        """End the server and delete its files."""
        self._connection.close()
        self._process.terminate()
        self._process.wait()
        self._draining.join()
        assert self._process.stderr
        self._process.stderr.close()
        shutil.rmtree(self._folder)

    def _command(self, *words: str | Path) -> list[str]:
        return ["setpriv", *self._as_user, "--pdeathsig", "QUIT", *map(str, words)]

    def _run(self, *words: str | Path) -> None:
        done = subprocess.run(self._command(*words), cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _wait_until_ready(self) -> None:
        assert self._process.stderr
        said = []
        for line in self._process.stderr:
            said.append(line)
            if "ready to accept connections" in line:
                self._draining = threading.Thread(target=deque, args=(self._process.stderr, 0), daemon=True)
                self._draining.start()
                return
        raise AssertionError("".join(said))


class Places:
    """Where the stores of a test are: in files, or, with a server, each in a database of its own."""

    def __init__(self, server: Server | None) -> None:
        self._server = server
        self._urls: dict[Path, str] = {}

    def __call__(self, path: Path) -> Path | str:
        """Return what `Database` opens in place of the file `path`: the same for the same file."""
        if self._server is None:
            return path
        if path not in self._urls:
            self._urls[path] = self._server.create()
        return self._urls[path]

    def forget(self) -> None:
        """Delete the databases that a test has made."""
        for url in self._urls.values():
            assert self._server
            self._server.drop(url)
        self._urls.clear()
