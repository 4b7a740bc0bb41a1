"""Detection of damage in SQLite files: at a daemon's start, in the background, or at an error of SQLite.

At its start, a daemon reads a small store completely, and a large store for a limited time. A thread reads the rest in
the background. If SQLite calls a file malformed, the file is read again, because a failing disk causes the same error.
If the damage is confirmed, the process ends at once, as after kill -9. No acknowledged work is lost. A note beside the
file, `<file>.damaged`, makes the next start read the whole file before the store is used.

If the file of a store is removed while it is in use, the process restores the file from the open descriptor and ends.
"""

import os
import sqlite3
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from turnkeeper.clock import Clock, SystemClock
from turnkeeper.errors import EXIT_FAILURE, Corrupt, TurnkeeperError, unopened

START_S = 2.0  # seconds that a start reads one store
HINT = "restore a backup: turnkeeper down && turnkeeper restore DIR"
_MALFORMED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
LOOK_AGAIN_S = 5.0
_AGAIN_S = 0.01
_MOST_COPIES = 5
_PAGE_BYTES = 4096
_PAGE_SIZES = {1 << power for power in range(9, 17)}
_BIG_ENDIAN = 0x377F0683  # The first number of a log whose checksums read words in this byte order.
_LOG_HEADER, _FRAME_HEADER, _LARGEST_LOG = 32, 24, 64 << 20  # bytes
_FAILED_READ = "error code="  # the result of the check if the disk did not return a page


def damage_of(path: Path, *, within_s: float | None = None, indexes: bool = False) -> str | None:
    """Read a store. Return the first fault of a SQLite file, or an empty string if the file has no fault.

    Args:
        path: the file. A missing or empty file has no damage.
        within_s: the longest time to read; None for no limit.
        indexes: also compare every index with its table, which takes several times as long.

    Returns:
        the fault, or None if the time was too short.

    Raises:
        sqlite3.Error: the machine cannot read the file at present.
    """
    log = path.with_name(f"{path.name}-wal")
    found = _read(path, log, within_s, indexes=indexes)
    if not found:
        return found
    for file in (path, log):
        _check_readable(file)
    return _read(path, log, within_s, indexes=indexes)


def _check_readable(file: Path) -> None:
    """Raise sqlite3.OperationalError if the disk does not return every byte of a file.

    SQLite reports a page as malformed if the disk fails with EIO, although the page may be valid.
    """
    try:
        with ExitStack() as opened:
            if (identity := _identity(file)) is None:
                return
            try:
                held = _held(identity)  # closing another descriptor would drop SQLite's locks on the file
            except LookupError:
                held = opened.enter_context(file.open("rb")).fileno()
            place = 0
            while chunk := os.pread(held, _PAGE_BYTES, place):
                place += len(chunk)
    except OSError as error:
        raise sqlite3.OperationalError(f"disk I/O error: {error.strerror}") from error


def _read(path: Path, log: Path, within_s: float | None, *, indexes: bool) -> str | None:
    check = "integrity_check" if indexes else "quick_check"
    # Without a log, no process has the file open. `immutable` prevents SQLite from making a log.
    how = "mode=ro" if log.exists() else "immutable=1"
    try:
        store = sqlite3.connect(f"file:{path}?{how}", uri=True, timeout=10, check_same_thread=False)
        with closing(store), _limited(store, within_s):
            (said,) = store.execute(f"PRAGMA {check}(1)").fetchone()
    except sqlite3.Error as error:
        if is_malformed(error):
            return str(error)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_INTERRUPT:
            return None
        raise
    if _FAILED_READ in said:
        raise sqlite3.OperationalError(said)
    return "" if said == "ok" else str(said).splitlines()[-1]


@contextmanager
def _limited(store: sqlite3.Connection, within_s: float | None) -> Iterator[None]:
    """Interrupt the store's statements in the block after `within_s` seconds, or never if `within_s` is None."""
    over = threading.Event()

    def interrupt() -> None:
        over.wait(within_s)
        while not over.wait(_AGAIN_S):  # an interrupt has no effect before the statement has begun
            store.interrupt()

    if within_s is None:
        yield
        return
    limit = threading.Thread(target=interrupt, name="store-check-limit", daemon=True)
    limit.start()
    try:
        yield
    finally:
        over.set()
        limit.join()


def commits_behind_damage(path: Path) -> int | None:
    """Return the number of whole commits behind a damaged frame of a write-ahead log.

    Return None if the log has no such frame. SQLite reads the log up to the damaged frame, and drops the commits behind
    the frame. A frame also counts as damaged if a crash cut its commit short, or a later commit overwrote half of a
    rolled-back one. In both cases, at most one commit follows the frame. No process may have the store open.
    """
    log = path.with_name(f"{path.name}-wal")
    if not log.exists():
        return None
    with log.open("rb") as file:
        data = file.read(_LARGEST_LOG)
    if len(data) < _LOG_HEADER:
        return None
    magic, _, page_bytes = struct.unpack(">III", data[:12])
    order, page_bytes = ">" if magic == _BIG_ENDIAN else "<", page_bytes if page_bytes in _PAGE_SIZES else _PAGE_BYTES
    before = struct.unpack(">II", data[24:_LOG_HEADER])
    damaged_at = None if _checksum(data[:24], (0, 0), order) == before else -1
    salts = data[16:24] if damaged_at is None else data[_LOG_HEADER + 8 : _LOG_HEADER + 16]
    commits, is_ours, size = 0, False, _FRAME_HEADER + page_bytes
    for number, start in enumerate(range(_LOG_HEADER, len(data) - size + 1, size)):
        header, page = data[start : start + _FRAME_HEADER], data[start + _FRAME_HEADER : start + size]
        of_log = header[8:16] == salts  # the other frames are older than the last restart of the log
        expected = _checksum(page, _checksum(header[:8], before, order), order)
        before = struct.unpack(">II", header[16:])
        if of_log and expected == before:
            commits += damaged_at is not None and header[4:8] != bytes(4)
        elif damaged_at is None or number == damaged_at + 1:  # a frame's checksum includes the previous frame's
            damaged_at = number if damaged_at is None else damaged_at
            is_ours |= of_log
        else:
            break
    return commits if commits or is_ours else None


def _checksum(data: bytes, before: tuple[int, ...], order: str) -> tuple[int, int]:
    """Return SQLite's checksum of a log up to the end of `data`, given the checksum of the part before `data`."""
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def trouble_of(path: Path, *, within_s: float | None = None) -> TurnkeeperError | None:
    """Return the error for a store that is damaged or temporarily unreadable. Return None if the store has no fault."""
    try:
        found = damage_of(path, within_s=within_s)
    except sqlite3.Error as error:
        return unopened(error, str(path), "a store")
    return corrupt(path, found) if found else None


def is_malformed(error: object) -> bool:
    """Return True if an error, from SQLite or wrapped by SQLAlchemy, says that a file is damaged."""
    return _code(error) in _MALFORMED


def _code(error: object) -> int:
    """Return the SQLite code of an error, even if SQLAlchemy wraps the error. Return 0 for any other error."""
    found = getattr(error, "orig", error)
    return getattr(found, "sqlite_errorcode", 0) & 0xFF if isinstance(found, sqlite3.Error) else 0


def corrupt(path: Path, what: str) -> Corrupt:
    """Return the error that names a damaged store and the remedy."""
    return Corrupt(f"cannot be read as a store: {what}", where=str(path), hint=HINT)


def refuse_damaged(path: Path, within_s: float = START_S) -> bool:
    """Read a store before a program uses it. Return True if the whole store was read.

    If there is a note beside the store, read the whole store without a limit. Remove the note if all is well.

    Raises:
        Corrupt: the store is damaged.
    """
    note = _note(path)
    if not path.exists() or not path.stat().st_size:
        note.unlink(missing_ok=True)
        return True
    found = None
    with suppress(sqlite3.Error):  # the program that opens the store reports the fault of the machine
        found = damage_of(path, within_s=None if note.exists() else within_s)
    if found:
        raise corrupt(path, found)
    if found == "":
        note.unlink(missing_ok=True)
    return found is not None


class StoreWatch:
    """The guard of a daemon's stores. The guard refuses damaged stores. If damage appears later, it ends the process.

    Attributes:
        active: the process's only watch; None if no watch is entered.

    Args:
        report: called with the damage before the process ends, on any thread.
        end: ends the process; the default acts as kill -9. Tests pass another function.
        clock: the default is the machine's clock. Tests pass another clock.
    """

    active: "StoreWatch | None" = None

    def __init__(
        self,
        *paths: Path,
        report: Callable[[Corrupt], None],
        end: Callable[[Corrupt], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._paths = paths
        self._report = report
        self._end = end or _end_process
        self._once = threading.Lock()
        self._clock = clock or SystemClock()
        self._looked_at: float | None = None
        self._made_room_at: float | None = None
        self._opened: dict[Path, tuple[int, int] | None] = {}

    def __enter__(self) -> Self:
        """Read each store for a short while, and read the rest in the background. Raises Corrupt."""
        unread = [path for path in self._paths if not refuse_damaged(path)]
        StoreWatch.active = self
        if unread:
            threading.Thread(target=self._read_on, args=(unread,), name="store-check", daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        StoreWatch.active = None

    def _read_on(self, paths: list[Path]) -> None:
        for path in paths:
            with suppress(sqlite3.Error):
                if found := damage_of(path):
                    self._stop(path, found)

    def look(self) -> None:
        """Check the stores after SQLite called one of them malformed. If one is damaged, end the process.

        Check at most once in a few seconds, because a failing disk repeats the error.
        """
        with self._once:
            now = self._clock.monotonic()
            if self._looked_at is not None and now - self._looked_at < LOOK_AGAIN_S:
                return
            self._looked_at = now
            for path in self._paths:
                with suppress(sqlite3.Error):
                    if path.exists() and (found := damage_of(path, indexes=True)):
                        self._stop(path, found)

    def keep(self) -> None:
        """End the process if a store's files were removed or replaced, because its writes would be lost.

        First write the content of the open files under the store's name, or beside the new file. If that fails, raise
        OSError; the process then continues, and the next call tries again.
        """
        lost = [path for path in self._paths if self._is_lost(path)]
        saved = {path: _save(path, self._opened) for path in lost}  # save all stores before the process ends
        for path, error in saved.items():
            self._tell(path, error, "was removed")
        for error in saved.values():
            self._end(error)

    def _is_lost(self, path: Path) -> bool:
        lost = False
        for file in (path, path.with_name(f"{path.name}-wal")):
            found = _identity(file)
            if self._opened.setdefault(file, found) is None:
                self._opened[file] = found  # the first write makes the log
            lost |= found != self._opened[file]
        return lost

    def make_room(self) -> None:
        """Move the content of the stores' logs into the stores, and empty the logs, which may hold 4 MiB each.

        If a store must grow, it can use the space that the log of another store frees.
        """
        with self._once:
            now = self._clock.monotonic()
            if self._made_room_at is not None and now - self._made_room_at < LOOK_AGAIN_S:
                return
            self._made_room_at = now
            for path in (*self._paths, *self._paths):
                with suppress(sqlite3.Error), closing(_writing(path)) as store:
                    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _stop(self, path: Path, found: str) -> None:
        error = corrupt(path, found)
        self._tell(path, error, found)
        self._end(error)

    def _tell(self, path: Path, error: Corrupt, found: str) -> None:
        with suppress(OSError):  # without the note, the next start would read the store only briefly
            _note(path).write_text(f"{found}\n", encoding="utf-8")
        with suppress(OSError):
            self._report(error)


def _writing(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=_AGAIN_S, isolation_level=None)


def _save(path: Path, opened: Mapping[Path, tuple[int, int] | None]) -> Corrupt:
    """Write the content of an open store under the store's name, or beside the new file. Return the error to report.

    Raises OSError if there is no disk space; the caller tries again later.
    """
    log = path.with_name(f"{path.name}-wal")
    open_ = {file: identity for file in (path, log) if (identity := opened.get(file))}
    lost = [file for file in (log, path) if file in open_ and _identity(file) != open_[file]]
    replaced = any(file.exists() for file in lost)
    try:
        _copy_all(open_)
        for file in open_:
            if file in lost and not replaced:
                _saved(file).rename(file)
            elif not replaced:
                _saved(file).unlink()
        if replaced and path in lost and log not in lost:
            log.unlink(missing_ok=True)  # the log belongs to the old file, and would damage the new one
    except (FileNotFoundError, LookupError) as error:
        return Corrupt(f"was removed while it was in use, and cannot be restored: {error}", where=str(path), hint=HINT)
    if replaced:
        hint = f"the new file is used from now on; the old content is in {_saved(path)}"
        return Corrupt("was replaced while it was in use", where=str(path), hint=hint)
    hint = "it was restored from the open file; nothing needs to be done"
    return Corrupt("was removed while it was in use", where=str(path), hint=hint)


def _saved(file: Path) -> Path:
    return file.with_name(f"{file.name}.saved")


def _copy_all(opened: Mapping[Path, tuple[int, int]]) -> None:
    """Copy open files. If a file changes during the copy, copy all again. Raises LookupError if a file is not open."""
    held = {file: _held(identity) for file, identity in opened.items()}
    for _ in range(_MOST_COPIES):
        before = [_state(number) for number in held.values()]
        for file, number in held.items():
            _copy(number, _saved(file))
        if before == [_state(number) for number in held.values()]:
            return


def _held(wanted: tuple[int, int]) -> int:
    """Return the process's open descriptor of a file, even if the file was renamed or removed. Raises LookupError."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found = os.fstat(int(name))
            if (found.st_dev, found.st_ino) == wanted:
                return int(name)
    raise LookupError("it is not open")


def _state(held: int) -> tuple[int, int]:
    found = os.fstat(held)
    return (found.st_size, found.st_mtime_ns)


def _copy(held: int, target: Path) -> None:
    """Copy an open file without opening it again, because to close a second descriptor would drop SQLite's locks."""
    with target.open("wb") as file:
        while chunk := os.pread(held, 1 << 20, file.tell()):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino)


def judged(error: BaseException, where: str) -> BaseException:
    """Check whether an error comes from damage of the file `where`. Return the error for the caller.

    If the file is damaged, end the process if it has a watch, or else return Corrupt. Return any other error unchanged.
    If the error says that the disk is full, first let the watch empty the stores' logs.
    """
    if _code(error) == sqlite3.SQLITE_FULL and StoreWatch.active is not None:
        StoreWatch.active.make_room()
    if not is_malformed(error):
        return error
    if StoreWatch.active is not None:
        StoreWatch.active.look()
    elif where:
        with suppress(sqlite3.Error):
            if found := damage_of(Path(where)):
                return corrupt(Path(where), found)
    return error


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")


def _end_process(error: Corrupt) -> None:
    with suppress(OSError):
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
    os._exit(EXIT_FAILURE)
