"""A disk whose writes fail: under SQLite, and under the files of envelopes.

SQLite calls a layer of functions (a VFS) for its files. A second layer, registered over it, passes every call on; while
a fault is armed it refuses some writes and syncs. So the real SQLite meets an error code of the machine, at any write.
"""

import _sqlite3
import ctypes
import errno
import os
import random  # noqa: TID251  seeded, so that a run can be repeated
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.loop import NODE
from tests.simulation.points import point_of
from tests.simulation.power import Memory
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.files import Place, attempt, no_room

_LIBRARY = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
CALLS_OF_SQLITE = ("write", "sync")
_FULL, _WRITE, _SYNC = 13, 778, 1034  # SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC
_Read = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Size = CFUNCTYPE(c_int, c_void_p, POINTER(c_int64))
_Write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Sync = CFUNCTYPE(c_int, c_void_p, c_int)
_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)


class _Methods(ctypes.Structure):
    """The functions of an open file; those after `sync` are passed on as they are."""

    _fields_ = (
        ("version", c_int),
        ("close", c_void_p),
        ("read", _Read),
        ("write", _Write),
        ("truncate", c_void_p),
        ("sync", _Sync),
        ("size", _Size),
        *((f"other{number}", c_void_p) for number in range(12)),
    )


class _Layer(ctypes.Structure):
    """A VFS, with the functions that version 3 has."""

    _fields_ = (
        ("version", c_int),
        ("size", c_int),
        ("longest", c_int),
        ("following", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", _Open),
        *((f"other{number}", c_void_p) for number in range(15)),
    )


_LIBRARY.sqlite3_vfs_find.restype = POINTER(_Layer)
_LIBRARY.sqlite3_vfs_find.argtypes = (c_char_p,)
_LIBRARY.sqlite3_vfs_register.argtypes = (POINTER(_Layer), c_int)


@dataclass
class Failing:
    """A fault of the disk: every `every`-th write or sync of a process fails.

    Attributes:
        process: the name with which the node's name begins; empty for all.
        code: ENOSPC or EIO.
        only: the calls that fail; empty for all.
        most: the number of calls that fail at most; 0 for no limit.
        drawn: if given, each call fails with a chance of one in `every`.
    """

    process: str
    every: int
    code: int
    only: Collection[str] = ()
    most: int = 0
    drawn: random.Random | None = None
    seen: int = 0
    refused: int = 0

    def strikes(self) -> bool:
        """Return whether the next call fails."""
        self.seen += 1
        due = (self.seen - 1) % self.every == 0 if self.drawn is None else self.drawn.random() * self.every < 1
        due = due and (not self.most or self.refused < self.most)
        self.refused += due
        return due


class Disk:
    """The faults of the disk of a run.

    Attributes:
        failed: the number of calls that were refused.
        report: called with a few words for each.
        detail: called with each change of a file of envelopes.
    """

    def __init__(self, report: Callable[..., None], detail: Callable[..., None] = lambda *_what: None) -> None:
        self._armed: list[Failing] = []
        self._report = report
        self.detail = detail
        self.failed = 0
        self.memory = Memory()
        self.reach: Callable[[str], None] = lambda _point: None  # passes a point of the protocol

    @property
    def is_armed(self) -> bool:
        """True while some calls may fail."""
        return bool(self._armed)

    def arm(self, fault: Failing) -> None:
        """Arm a fault until all is healed."""
        self._armed.append(fault)

    def heal(self) -> None:
        """Disarm all faults."""
        self._armed.clear()

    @contextmanager
    def failing(self, fault: Failing) -> Iterator[None]:
        """Arm a fault for as long as the block takes."""
        self._armed.append(fault)
        try:
            yield
        finally:
            if fault in self._armed:
                self._armed.remove(fault)

    def refusal(self, call: str) -> int:
        """Return the error with which a call fails; 0 if it does not."""
        node = NODE.get()
        for fault in self._armed:
            concerned = node is not None and node.name.startswith(fault.process) and call in (fault.only or (call,))
            if node is not None and concerned and fault.strikes():
                self.failed += 1
                self._report("refused", call, errno.errorcode[fault.code], node.name)
                return fault.code
        return 0


class _Passing:
    """The layer over SQLite's own: one for the interpreter, as SQLite keeps its address."""

    def __init__(self) -> None:
        self.disk: Disk | None = None
        self._below = _LIBRARY.sqlite3_vfs_find(None)
        self._methods: dict[int, tuple[_Methods, Any]] = {}
        self._paths: dict[int, str] = {}  # by open file
        self._layer = _Layer.from_buffer_copy(self._below.contents)
        self._layer.name, self._layer.following = b"simulated", None
        self._open_below = self._below.contents.open
        self._layer.open = self._open = _Open(self._opened)

    def use(self, disk: Disk | None) -> None:
        """Make the layer SQLite's default, or with None the layer below."""
        self.disk = disk
        _LIBRARY.sqlite3_vfs_register(self._below if disk is None else ctypes.byref(self._layer), 1)

    def _opened(self, _layer: int, name: int, file: int, flags: int, out: int) -> int:
        path = c_char_p(name).value if name else None
        self._paths[file] = (path or b"").decode()
        if self.disk is not None:
            self.disk.memory.opens(self._paths[file])
        answer: int = self._open_below(ctypes.addressof(self._below.contents), name, file, flags, out)
        place = c_void_p.from_address(file)  # a file begins with the address of its functions
        if answer == 0 and place.value is not None:
            place.value = ctypes.addressof(self._over(place.value))
        return answer

    def _over(self, address: int) -> _Methods:
        if address not in self._methods:
            below = _Methods.from_address(address)
            made = _Methods.from_buffer_copy(below)
            write, sync = below.write, below.sync

            def written(file: int, data: int, size: int, at: int) -> int:
                if (disk := self.disk) is not None:
                    if disk.is_armed and (code := self._refused("write", _WRITE)):
                        return code
                    if disk.memory.stash is not None:
                        self._remember(below, file, size, at)
                return write(file, data, size, at)

            kept = (
                _Write(written),
                _Sync(lambda file, flags: self._refused("sync", _SYNC) or self._synced(file) or sync(file, flags)),
            )
            made.write, made.sync = kept
            self._methods[address] = (made, (kept, write, sync, below))
        return self._methods[address][0]

    def _remember(self, below: _Methods, file: int, size: int, at: int) -> None:
        """Keep what a write replaces, for a power cut."""
        if self.disk is None or not (path := self._paths.get(file, "")):
            return
        held = c_int64()
        below.size(file, ctypes.byref(held))
        count = max(0, min(size, held.value - at))
        before = ctypes.create_string_buffer(count) if count else None
        if before is not None:
            below.read(file, ctypes.addressof(before), count, at)
        self.disk.memory.writes(path, at, b"" if before is None else before.raw, held.value)

    def _synced(self, file: int) -> int:
        if self.disk is not None:
            self.disk.memory.syncs(self._paths.get(file, ""))
        return 0

    def _refused(self, call: str, failed: int) -> int:
        code = 0 if self.disk is None else self.disk.refusal(call)
        return {0: 0, errno.ENOSPC: _FULL if call == "write" else failed}.get(code, failed)


_PASSING = _Passing()


@contextmanager
def under_sqlite(disk: Disk) -> Iterator[None]:
    """Make SQLite open its files on `disk` within the block."""
    _PASSING.use(disk)
    try:
        yield
    finally:
        _PASSING.use(None)


class SimulatedFiles(GroupingFiles):
    """The machine's files, on a disk that may refuse to write them. A file can still be renamed, as on a full disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def _check(self, call: str, path: Place) -> None:
        if code := self._disk.refusal(call):
            raise no_room(OSError(code, os.strerror(code)), path)

    def write_synced(self, path: Place, data: bytes) -> None:
        self._check("create", path)
        self._disk.detail("writes", path, data)
        super().write_synced(path, data)
        self._disk.memory.wrote(path)
        self._disk.memory.made(path)

    def write_group(self, items: Sequence[tuple[str, bytes]]) -> list[TurnkeeperError | None]:
        return [attempt(path, self.write_synced, path, data) for path, data in items]

    def link(self, source: Place, target: Place) -> None:
        self._check("link", target)
        self._disk.detail("links", source, target)
        super().link(source, target)
        self._disk.memory.made(target)
        self._passed(target)

    def rename(self, source: Place, target: Place) -> None:
        self._disk.memory.going(source, to=target)
        self._disk.detail("renames", source, target)
        super().rename(source, target)
        self._passed(target)

    def unlink(self, path: Place) -> None:
        self._disk.memory.going(path)
        self._disk.detail("unlinks", path)
        super().unlink(path)

    def _passed(self, target: Place) -> None:
        if point := point_of(Path(target).parent.name):
            self._disk.reach(point)

    def sync_folder(self, folder: Path) -> None:
        if code := self._disk.refusal("sync folder"):
            raise OSError(code, os.strerror(code), str(folder))
        self._disk.detail("syncs", folder)
        super().sync_folder(folder)
        self._disk.memory.synced(folder)
