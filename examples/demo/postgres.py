"""A temporary PostgreSQL server on a socket in a separate folder, for the demonstration and for tests.

It ends with the process that started it. When it is stopped, all its files are deleted.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from turnkeeper.clock import SystemClock
from turnkeeper.errors import TurnkeeperError

SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "32MB",
    "fsync": "off",  # data survives a crash of the server's processes, but not a power cut
    "full_page_writes": "off",
    "log_checkpoints": "off",
}


def find_binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs, of the newest version. None if PostgreSQL is not installed."""
    if (found := shutil.which("postgres")) is not None:
        return Path(found).parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((path.parent for path in installed), key=lambda folder: int(folder.parent.name), default=None)


class Server:
    """A server on a socket in a separate folder. It ends with :meth:`stop`, or with the process that started it."""

    def __init__(self, binaries: Path, changes: Mapping[str, str] = SETTINGS) -> None:
        """Create the server and start it, with the settings in `changes`."""
        self._make_folder(binaries)
        init = ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]
        order = ["--locale-provider=icu", "--icu-locale=und"]
        self._run(binaries / "initdb", "-D", str(self.folder / "data"), *init, *order)
        self._start_with(changes)

    def _make_folder(self, binaries: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tk-pg-"))
        self._binaries, self._said = binaries, self.folder / "said"
        self._as_user: list[str] = []
        self._made = 0
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self.folder, "postgres")
            self._as_user = ["--reuid", "postgres", "--regid", "postgres", "--init-groups"]

    def _start_with(self, changes: Mapping[str, str]) -> None:
        settings = SETTINGS | dict(changes) | {"unix_socket_directories": str(self.folder)}
        self._options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._start()

    def create(self, template: str = "template0") -> str:
        """Create a database that is empty or a copy of another one. Return its URL."""
        self._made += 1
        name = f"test_{self._made}"
        self._connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY wal_log'.encode())
        return f"postgresql://postgres@/{name}?host={quote(str(self.folder), safe='')}"

    def drop(self, url: str) -> None:
        """Delete a database, even if a connection to it is open."""
        name = urlsplit(url).path[1:]
        self._connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())

    def restart(self, *, immediate: bool) -> None:
        """Stop the server, cleanly or as if its machine had crashed, and start it again."""
        self._end(signal.SIGQUIT if immediate else signal.SIGINT)
        self._start()

    def stop(self) -> None:
        """End the server and delete its files."""
        self._end(signal.SIGINT)
        shutil.rmtree(self.folder)

    def _start(self) -> None:
        """Start the server. The thread that starts the server must outlive it."""
        command = self._command(self._binaries / "postgres", "-D", str(self.folder / "data"), *self._options)
        with self._said.open("a") as said:
            self._process = subprocess.Popen(command, stderr=said)  # noqa: S603
        while not self._connects():
            if self._process.poll() is not None:
                raise TurnkeeperError(self._said.read_text(), where="postgres")

    def _connects(self) -> bool:
        import psycopg  # noqa: PLC0415  a process that is forked from a test has not imported it

        how = {"host": str(self.folder), "user": "postgres", "dbname": "postgres"}
        try:
            self._connection = psycopg.connect(**how, autocommit=True)  # type: ignore[arg-type]
        except psycopg.OperationalError:
            SystemClock().block(0.02)
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        self._connection.close()
        self._process.send_signal(number)
        self._process.wait()

    def _command(self, *words: str | Path) -> list[str]:
        return ["setpriv", *self._as_user, "--pdeathsig", "QUIT", *map(str, words)]

    def _run(self, *words: str | Path) -> None:
        done = subprocess.run(self._command(*words), cwd="/", capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise TurnkeeperError(done.stderr.strip(), where=str(words[0]))
