"""The interface for all access to our own files. The order of these operations makes each protocol durable.

A simulation passes one that loses unsynced bytes and names at a crash. Tests pass one that fails or counts.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from turnkeeper import errors
from turnkeeper.config.home import Home

T = TypeVar("T")

_PROBE = b"\0" * (64 << 10)


Place = Path | str  # to construct a Path costs more than many file operations


class Files(Protocol):
    """Operations on plain files in private directories. Each may raise OSError, or Exhausted if the disk is full."""

    def write_synced(self, path: Place, data: bytes) -> None:
        """Create `path`, mode 0600, with `data`, and sync the file. Raises FileExistsError."""

    def write_group(self, items: Sequence[tuple[str, bytes]]) -> list[errors.TurnkeeperError | None]:
        """Create the files as :meth:`write_synced` does. Return each file's error; a failed write leaves no file."""

    def link(self, source: Place, target: Place) -> None:
        """Give `source` the second name `target`. Raise FileExistsError if `target` exists."""

    def rename(self, source: Place, target: Place) -> None:
        """Move a name. Overwrites `target`."""

    def unlink(self, path: Place) -> None:
        """Remove a name. Ignore a missing name."""

    def sync_folder(self, folder: Path) -> None:
        """Sync the names in a folder to disk."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted."""

    def read(self, path: Place, largest: int) -> bytes:
        """Return a plain file's bytes.

        Raises FileNotFoundError; Corrupt for a link, a folder or too large a file; MachineTrouble if the machine has no
        free descriptor or its disk fails, although the file may be valid.
        """


class SystemFiles:
    """The machine's file system."""

    def write_synced(self, path: Place, data: bytes) -> None:
        """Create `path` with `data` and sync it. Leave no partial file after a failure."""
        try:
            create(path, data, sync=True)
        except OSError as error:
            raise _typed(error, path) from error

    def write_group(self, items: Sequence[tuple[str, bytes]]) -> list[errors.TurnkeeperError | None]:
        """Create the files, and sync each one separately."""
        return [attempt(path, self.write_synced, path, data) for path, data in items]

    def link(self, source: Place, target: Place) -> None:
        try:
            os.link(source, target)
        except OSError as error:
            raise _typed(error, target) from error

    def rename(self, source: Place, target: Place) -> None:
        os.rename(source, target)  # noqa: PTH104  it accepts str, too

    def unlink(self, path: Place) -> None:
        _unlink(path)

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def read(self, path: Place, largest: int) -> bytes:
        """Return a plain file's bytes."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise errors.machine_trouble(error) or errors.Corrupt(
                f"cannot be opened: {error.strerror}", where=str(path)
            ) from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise errors.Corrupt("is not a plain file", where=str(path))
            if found.st_size > largest:
                raise errors.Corrupt(f"is larger than {largest} bytes", where=str(path))
            return _read_all(descriptor)
        except OSError as error:
            raise errors.machine_trouble(error, str(path)) or error from error
        finally:
            os.close(descriptor)


def _unlink(path: Place) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108  it accepts str, too


def create(path: Place, data: bytes, *, sync: bool) -> None:
    """Create `path`, mode 0600, with `data`. Leave no partial file after a failure. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        if sync:
            os.fsync(descriptor)
    except OSError:
        _unlink(path)
        raise
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write a new file, mode 0600. Raises Conflict if a file of that name exists, and InvalidInput."""
    try:
        create(path, data, sync=False)
    except FileExistsError as error:
        raise errors.Conflict("is there already", where=str(path)) from error
    except OSError as error:
        raise errors.InvalidInput(f"cannot be written: {error.strerror}", where=str(path)) from error


def replace_whole(path: Path, data: bytes) -> None:
    """Replace a file: write and sync a temporary file, rename it, and sync the folder. Raises Exhausted."""
    fresh = path.with_name(f".{path.name}.tmp")
    with machine_errors(path):
        fresh.unlink(missing_ok=True)
        create(fresh, data, sync=True)
        fresh.replace(path)
        SystemFiles().sync_folder(path.parent)


def append_synced(path: Path, line: bytes) -> None:
    """Append a line to a file, mode 0600, and sync it. First end a line that a crash cut short. Raises Exhausted."""
    with machine_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, b"\n" + line if torn else line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def machine_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into Exhausted. Let FileExistsError and FileNotFoundError pass.

    A fault of the machine becomes MachineTrouble, a kind of Exhausted.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        raise no_room(error, path) from error


def attempt(path: Place, work: Callable[..., None], *arguments: Any) -> errors.TurnkeeperError | None:
    """Do work on a file without raising. Return the error for the caller, or None if there is none."""
    try:
        work(*arguments)
    except errors.Exhausted as error:
        return error
    except (FileExistsError, FileNotFoundError) as error:  # the name is in use, or the temporary file was removed
        return errors.Exhausted(f"was not written: {error.strerror}", where=str(path), hint="try again")
    except OSError as error:
        return no_room(error, path)
    return None


def _read_all(descriptor: int) -> bytes:
    chunks = []
    while chunk := os.read(descriptor, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def why_unwritable(folder: Path) -> errors.MachineTrouble | None:
    """Return why a folder cannot be written. None if the folder can be written. The check leaves no file behind."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # If a file system has no unnamed files, another error occurs. Then check at least the permission.
        denied = None if os.access(folder, os.W_OK | os.X_OK) else OSError(errno.EACCES, os.strerror(errno.EACCES))
        return errors.machine_trouble(
            denied if denied and error.errno != errno.EROFS else error, str(folder), ours=True
        )
    try:
        os.write(descriptor, _PROBE[os.write(descriptor, _PROBE) :] or b"\0")
    except OSError as error:
        return errors.machine_trouble(error, str(folder), ours=True)
    finally:
        os.close(descriptor)
    return None


def _typed(error: OSError, path: Place) -> Exception:
    return errors.machine_trouble(error, str(path), ours=True) or error


def no_room(error: OSError, path: Place) -> errors.Exhausted:
    """Return the error for the caller if the machine is at fault, and neither the caller nor the file."""
    trouble = errors.machine_trouble(error, str(path), ours=True)
    return trouble or errors.MachineTrouble(f"cannot be written: {error.strerror}", where=str(path), hint="try again")


class Entries(Generic[T]):
    """Named entries in a file of `state/`. One command at a time changes the entries, and replaces the whole file."""

    def __init__(self, name: str, noun: str, command: str, form: Any) -> None:
        """Keep the entries in `NAME.json`, in a pydantic form. Errors call an entry `noun`, and name the command."""
        self._name, self._noun, self._command, self._form = name, noun, command, form

    def read(self, home: Home) -> dict[str, T]:
        """Return the entries by name. Raises Corrupt."""
        try:
            found: dict[str, T] = self._form.validate_json((home.root / "state" / f"{self._name}.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise errors.Corrupt(f"is not a list of {self._noun}s", where=f"state/{self._name}.json") from error
        return found

    def one(self, home: Home, name: str) -> T:
        known = self.read(home)
        if name not in known:
            raise errors.NotFound(f"no {self._noun} has this name", where=name, hint=errors.misspelt(name, known))
        return known[name]

    def add(self, home: Home, name: str, entry: T) -> None:
        """Add an entry. Raises Conflict if the name is taken."""
        with self.changing(home) as known:
            if name in known:
                hint = f"delete it: {self._command} delete {name}"
                raise errors.Conflict(f"a {self._noun} has this name", where=name, hint=hint)
            known[name] = entry

    def remove(self, home: Home, name: str) -> None:
        with self.changing(home) as known:
            self.one(home, name)
            del known[name]

    @contextlib.contextmanager
    def changing(self, home: Home) -> Iterator[dict[str, T]]:
        """Yield the entries while no other command changes them. Write the entries at the end of the block."""
        lock = os.open(home.run / f"{self._name}-entries.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield (known := self.read(home))
            said = self._form.dump_json(known, indent=1, exclude_defaults=True)
            replace_whole(home.root / "state" / f"{self._name}.json", said)
        finally:
            os.close(lock)
