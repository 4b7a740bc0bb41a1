"""The home's keys. `keys/` has one file for each purpose, which only the owner can read, outside `channels/`.

A file contains the key in use, and then the retired keys that are still needed. Under a lock, a command replaces the
whole file, so a reader sees either the old or the new keys. A second file in `state/` records that a key was made. If
that file exists without the key, the key was lost. No program then makes a new key silently.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from turnkeeper.config.home import Home, make_private
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Corrupt
from turnkeeper.storage.files import SystemFiles, create, machine_errors, replace_whole
from turnkeeper.times import parse_rfc3339, rfc3339

ENVELOPES, CALLS, AUDIT = "envelopes", "calls", "audit"
PURPOSES = (ENVELOPES, CALLS, AUDIT)
VERSION = 1
SECRET_DIGITS = 64  # hexadecimal: 256 bits
GRACE_S = 60.0  # longer than the time between the read of a key and the put of an envelope that is sealed with it
_ID_DIGITS = 12
_LARGEST_BYTES = 1 << 16
_LOST = "restore it from a backup, or make another: turnkeeper keys rotate {} --lost"


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    Attributes:
        id: the name of the key, which does not reveal it.
        secret: 64 hexadecimal digits.
        created_at: RFC 3339.
        retired_at: the time when another key replaced it, RFC 3339; empty for the key in use.
    """

    id: str
    secret: str
    created_at: str
    retired_at: str = ""

    def __repr__(self) -> str:
        return f"Key({self.id})"


class KeyFile:
    """The keys of one purpose."""

    def __init__(self, home: Home, purpose: str = ENVELOPES) -> None:
        self.purpose = purpose
        self.path = home.keys / f"{purpose}.json"
        self._made = home.keys_made(purpose)
        self._folder = home.keys
        self._draft = home.keys / f".{purpose}.draft"
        self._read_at: tuple[int, ...] = ()
        self._keys: tuple[Key, ...] = ()
        self._by_id: dict[str, Key] = {}

    def read(self) -> tuple[Key, ...]:
        """Return the keys, with the key in use first. Return no keys if none was ever made.

        If the file disappears while the process runs, return the keys that were read earlier.

        Raises:
            Corrupt: the file is lost, cannot be read, or can be read by other users.
        """
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            if not self._keys and os.path.lexists(self._made):
                raise self._lost() from None
            return self._keys
        read_at = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid)
        if read_at != self._read_at:
            self._take(_parsed(self.path))
            self._read_at = read_at
        return self._keys

    def get(self, key_id: str) -> Key | None:
        self.read()
        return self._by_id.get(key_id)

    def create(self, at: datetime, entropy: Entropy, before: Callable[[Key], None]) -> bool:
        """Make the first key, once. Return True if this call made it. Raises Corrupt, Exhausted.

        `before` is called with the key before any process can use it. After a crash in `before`, the next start calls
        it again with the same key.
        """
        with self.locked():
            if fresh := not self.path.exists():
                if os.path.lexists(self._made):
                    raise self._lost()
                if not self._draft.exists():
                    self._write((_new(at, entropy),), self._draft)
                before(_parsed(self._draft)[0])
                with machine_errors(self.path):
                    self._draft.replace(self.path)
                    SystemFiles().sync_folder(self._folder)
            self.read()
            self._note_made()
        return fresh

    def rotate(self, at: datetime, entropy: Entropy, *, lost: bool = False) -> Key:
        """Put a new key into use and retire the old key. Return the new key.

        Raises:
            Conflict: no key was made yet, or `lost` is given and the key exists.
            Corrupt: the key was lost, and `lost` is not given.
        """
        with self.locked():
            present = self.path.exists()
            if lost and (present or not os.path.lexists(self._made)):
                raise Conflict("the key is not lost" if present else "no key was made yet", where=str(self.path))
            known = () if lost else self.read()
            if not known and not lost:
                hint = "the daemons make it at their first start: turnkeeper up"
                raise Conflict("no key was made yet", where=str(self.path), hint=hint)
            retired = [key if key.retired_at else replace(key, retired_at=rfc3339(at)) for key in known]
            fresh = _new(at, entropy)
            self._write((fresh, *retired), self.path)
            self._note_made()
        return fresh

    def drop_retired(self, at: datetime) -> list[Key]:
        """Remove the keys that were retired at least a minute ago. Return them. Do nothing if the file is locked.

        Call this only if no remaining envelope was sealed with one of these keys.
        """
        with contextlib.suppress(BlockingIOError), self.locked(wait=False):
            latest = at - timedelta(seconds=GRACE_S)
            known = self.read()
            over = [key for key in known if key.retired_at and parse_rfc3339(key.retired_at) <= latest]
            if over:
                self._write(tuple(key for key in known if key not in over), self.path)
            return over
        return []

    @contextlib.contextmanager
    def locked(self, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Hold the lock for changing the keys. With `shared`, only prevent changes. Raises BlockingIOError."""
        make_private(self._folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with machine_errors(self._folder):
            descriptor = os.open(self._folder / ".lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(descriptor)

    def _take(self, keys: tuple[Key, ...]) -> None:
        self._keys, self._by_id = keys, {key.id: key for key in keys}

    def _write(self, keys: tuple[Key, ...], path: Path) -> None:
        text = json.dumps({"v": VERSION, "purpose": self.purpose, "keys": [asdict(key) for key in keys]}, indent=1)
        replace_whole(path, text.encode())
        if path == self.path:
            self._read_at = ()
            self.read()

    def _note_made(self) -> None:
        if not os.path.lexists(self._made):
            make_private(self._made.parent)
            with machine_errors(self._made), contextlib.suppress(FileExistsError):
                create(self._made, b"", sync=True)

    def _lost(self) -> Corrupt:
        what = f"the key for {self.purpose} is missing"
        return Corrupt(what, where=str(self.path), hint=_LOST.format(self.purpose))


def permission_faults(home: Home) -> Iterator[tuple[Path, int]]:
    """Yield each path in `keys/` that other users can read or write, with the correct permission bits."""
    inside = sorted(home.keys.iterdir()) if home.keys.is_dir() else []
    for path in (home.keys, *inside) if inside else ():
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            yield path, 0o700 if path == home.keys else 0o600


def _new(at: datetime, entropy: Entropy) -> Key:
    return Key(id=entropy.hex(_ID_DIGITS), secret=entropy.hex(SECRET_DIGITS), created_at=rfc3339(at))


def _parsed(path: Path) -> tuple[Key, ...]:
    data = SystemFiles().read(path, _LARGEST_BYTES)
    if stat.S_IMODE(path.lstat().st_mode) & 0o077:
        raise Corrupt("can be read by other users", where=str(path), hint=f"run: chmod 600 {path}")
    try:
        says = json.loads(data)
        keys = tuple(Key(**item) for item in says["keys"])
        good = says["v"] == VERSION and all(len(bytes.fromhex(key.secret)) >= SECRET_DIGITS // 2 for key in keys)
    except (ValueError, KeyError, TypeError):
        keys, good = (), False
    if not (keys and good):
        raise Corrupt("is not a key file of this version", where=str(path), hint="restore it from a backup")
    return keys
