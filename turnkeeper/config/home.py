"""The state directory: the path of each file, and the check that the directory is safe.

Layout (`docs/contract.md` documents it for people and scripts)::

    config.toml  .env  categories/*.toml  tasks/*.toml
    state/schedules.db  state/agent.db  state/checkpoints.db
    state/run/{task-runner,agent-runtime}.{sock,http,lock,pid}  state/workers
    keys/envelopes.json, keys/calls.json
    channels/agent/<agent>/{inbox,claimed,delivered,quarantine}/  channels/agent/<agent>/{outbox,taken,refused}/
    logs/events-<process>-<date>.jsonl
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from turnkeeper.errors import Conflict, InvalidInput

VARIABLE = "TURNKEEPER_HOME"
RESTORED = "this home was restored from a backup whose original may still run"
TAKE_OVER = "make sure that the original home runs nowhere, then run: turnkeeper up --takeover"
MIGRATED = "its tasks and turns were moved into a database, which config.toml no longer names"
GO_BACK = "write url below [store] again; or, to run with the files as they were at the move: turnkeeper up --takeover"
LONGEST_SOCKET_PATH = 107  # bytes; the length of sun_path in unix(7) without its terminator
# An agent's name; `agent0@NAME` is the first agent of the peer NAME.
AGENT = re.compile(r"[a-z][a-z0-9-]{0,31}|agent0@[a-z][a-z0-9-]{0,31}", re.ASCII)
MOVED = "moved to: "  # the first line of the file that `turnkeeper move` leaves in a home's old place
_LONGEST_WORD = 1 << 14  # largest size of such a file, in bytes
_MOST_MOVES = 16  # most redirections in a row
NO_HOME = "name it: --home DIR, or export TURNKEEPER_HOME=DIR; or create it: turnkeeper init"


@dataclass(frozen=True, kw_only=True)
class Home:
    """A state directory and the paths in it.

    Attributes:
        root: the directory, absolute.
    """

    root: Path

    @property
    def config(self) -> Path:
        """The author's settings; the file may be missing."""
        return self.root / "config.toml"

    @property
    def environment(self) -> Path:
        """Keys for model providers, mode 0600; the file may be missing."""
        return self.root / ".env"

    @property
    def categories(self) -> Path:
        """The author's categories, which override shipped ones of the same name."""
        return self.root / "categories"

    @property
    def tasks(self) -> Path:
        """Task files that `turnkeeper task apply` reads if no file is given."""
        return self.root / "tasks"

    @property
    def schedules_db(self) -> Path:
        """The runner's store."""
        return self.root / "state" / "schedules.db"

    @property
    def agent_db(self) -> Path:
        """The runtime's store: turns, conversation, workspace."""
        return self.root / "state" / "agent.db"

    @property
    def checkpoints_db(self) -> Path:
        """LangGraph's checkpoints."""
        return self.root / "state" / "checkpoints.db"

    @property
    def run(self) -> Path:
        """Sockets, locks and pid files, mode 0700."""
        return self.root / "state" / "run"

    @property
    def cordon(self) -> Path:
        """When this machine was cordoned, so that it takes no new turns; absent if it is not cordoned."""
        return self.root / "state" / "cordoned"

    @property
    def cordoned(self) -> Path:
        """The cordon and the pid of the runtime that confirmed it, when no turn ran; it may be outdated."""
        return self.run / "cordoned"

    @property
    def workers(self) -> Path:
        """The number of workers from the last `turnkeeper up N`; missing before that."""
        return self.root / "state" / "workers"

    @property
    def keys(self) -> Path:
        """The home's own keys, mode 0700; outside `channels/`."""
        return self.root / "keys"

    def keys_made(self, purpose: str) -> Path:
        """Return the file that records that a key for this purpose was made, so that a loss is noticed."""
        return self.root / "state" / f"key-made-{purpose}"

    def store_made(self, name: str) -> Path:
        """Return the file that records which store with this name the home used, so that a loss is noticed."""
        return self.root / "state" / f"store-made-{name.removesuffix('.db')}"

    def time_seen(self, process: str) -> Path:
        """Return the file with the time that a process last saw. The time decides which history is old."""
        return self.root / "state" / f"time-{process}.json"

    @property
    def audit_heads(self) -> Path:
        """The signed heads of the chains of records, one on each line, oldest first."""
        return self.root / "state" / "audit-heads.jsonl"

    def audit_seen(self, process: str) -> Path:
        """Return the file with the heads that a process read from the chains of a shared database."""
        return self.root / "state" / f"audit-seen-{process}.json"

    @property
    def restored(self) -> Path:
        """The marker of a restored home. It prevents the start of daemons until a takeover."""
        return self.root / "state" / "restored"

    @property
    def original(self) -> str:
        """The home of which this home is a copy. Empty if that is unknown, and after a takeover."""
        try:
            says = json.loads(self.restored.read_bytes())
            return str(says.get("original") or "")
        except (OSError, ValueError, AttributeError):
            return ""

    @property
    def named_original(self) -> str:
        """The text that names the original of a restored home."""
        return f" in {self.original}" if self.original else " somewhere"

    @property
    def migrated(self) -> Path:
        """The marker of stores that were moved into a database. No daemon starts without it until a takeover."""
        return self.root / "state" / "migrated"

    @property
    def logs(self) -> Path:
        """Event logs and the daemons' own output."""
        return self.root / "logs"

    def socket(self, process: str) -> Path:
        """Return the socket of `task-runner` or `agent-runtime`."""
        return self.run / f"{process}.sock"

    def http(self, process: str) -> Path:
        """Return the socket that serves `/metrics`, `/healthz` and `/readyz`."""
        return self.run / f"{process}.http"

    def lock(self, process: str) -> Path:
        """Return the lock file of a process, which is never unlinked."""
        return self.run / f"{process}.lock"

    def pid(self, process: str) -> Path:
        """Return the file with the pid of the process while it runs."""
        return self.run / f"{process}.pid"

    def inbox(self, agent: str) -> Path:
        """Return the folder with an agent's inbox, claimed, delivered and quarantine folders."""
        return self.root / "channels" / "agent" / check_agent(agent)

    def create(self) -> None:
        """Make the directory and its fixed folders, mode 0700, without changing existing ones. Raises InvalidInput."""
        make_private(self.root)
        for folder in (self.categories, self.tasks, self.run.parent, self.run, self.logs):
            make_private(folder)

    def check(self) -> None:
        """Raise InvalidInput unless the directory exists and only its owner can write to it."""
        if not self.root.is_dir() and not self.root.is_symlink():
            raise InvalidInput("no such state directory", where=str(self.root), hint=NO_HOME)
        _refuse_untrusted(self.root)

    def check_taken_over(self) -> None:
        """Raise Conflict if the home waits for a takeover."""
        if why := self.waits_for_takeover():
            raise Conflict(f"{why[0]}, and nothing runs until it is taken over", where=str(self.root), hint=why[1])

    def waits_for_takeover(self) -> tuple[str, str] | None:
        """Return why no daemon can start before a takeover, and the remedy. None if daemons can start."""
        if os.path.lexists(self.restored):
            return f"{RESTORED}{self.named_original}", TAKE_OVER
        if os.path.lexists(self.migrated) and not import_module("turnkeeper.config.toml_file").shared_url_in(
            self.config
        ):
            return MIGRATED, GO_BACK
        return None

    def check_keys(self) -> None:
        """Raise InvalidInput if other users can read the keys of model providers, as ssh does for its own keys."""
        path = self.environment
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise InvalidInput("can be read by others", where=str(path), hint=f"run: chmod 600 {path}")

    def check_sockets(self) -> None:
        """Raise InvalidInput if a socket's path would be longer than the system allows."""
        longest = max(len(os.fsencode(self.socket(name))) for name in ("task-runner", "agent-runtime"))
        if longest > LONGEST_SOCKET_PATH:
            raise InvalidInput(
                f"socket paths here would be {longest} bytes, the system allows {LONGEST_SOCKET_PATH}",
                where=str(self.root),
                hint="choose a shorter state directory with --home",
            )


def locate(option: Path | None, environ: Mapping[str, str]) -> Home:
    """Return the home in `--home`, or else in the environment, or else `~/.turnkeeper`. Changes nothing.

    If the home was moved, follow the file in its old place. Raises InvalidInput if the new place is missing, or if
    another user could have written the file.
    """
    place, *passed = places(option, environ)
    if passed and not place.is_dir():
        hint = f"mount it; or name its new place: turnkeeper move DIR; or, to start over, remove {passed[0]}"
        raise InvalidInput(f"the home was moved to {place}, but is not there", where=str(passed[0]), hint=hint)
    return Home(root=place)


def places(option: Path | None, environ: Mapping[str, str]) -> list[Path]:
    """Return the home's path, which may not exist, then the files that redirect to it, the last one first."""
    named = option or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    root = named if named is not None else Path(environ.get("HOME", "~")).expanduser() / ".turnkeeper"
    found = [Path(os.path.abspath(root.expanduser()))]  # noqa: PTH100  resolve() would follow a symlink
    while (then := moved_to(found[0])) is not None:
        if then in found or len(found) > _MOST_MOVES:
            raise InvalidInput("leads in a circle", where=str(found[0]), hint="remove it, and name the home by --home")
        found.insert(0, then)
    return found


def moved_to(path: Path) -> Path | None:
    """Return the new place of the home that was at `path`, from its pointer file. None if there is no such file.

    Raises:
        InvalidInput: another user could have written the file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # the file is missing or cannot be read
        return None
    try:
        found = os.fstat(descriptor)
        text = os.read(descriptor, _LONGEST_WORD).decode("utf-8", "replace") if stat.S_ISREG(found.st_mode) else ""
    finally:
        os.close(descriptor)
    if not text.startswith(MOVED):
        return None
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise InvalidInput("belongs to another user, or can be written by others", where=str(path))
    there = text.removeprefix(MOVED).partition("\n")[0]
    return Path(os.path.abspath(there)) if there.startswith("/") else None  # noqa: PTH100


def make_private(folder: Path) -> None:
    """Make a directory with mode 0700, or accept an existing one. Raises InvalidInput if other users can write it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_untrusted(folder)


def check_agent(name: str) -> str:
    """Return the valid name of an agent (a letter, then up to 31 of `a-z0-9-`) or of a peer's. Raises InvalidInput."""
    if not AGENT.fullmatch(name):
        raise InvalidInput(f"{name[:40]!r} is not an agent's name", where="agent", hint="use a-z, 0-9 and -")
    return name


def _refuse_untrusted(folder: Path) -> None:
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise InvalidInput("is a symbolic link", where=str(folder), hint="name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidInput("is not a directory", where=str(folder))
    if found.st_uid != os.geteuid():
        raise InvalidInput("belongs to another user", where=str(folder), hint="choose a directory of your own")
    if found.st_mode & 0o022:
        raise InvalidInput("can be written by other users", where=str(folder), hint=f"run: chmod 700 {folder}")
