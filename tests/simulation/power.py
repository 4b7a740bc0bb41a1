"""A power cut: it loses unsynced names and bytes of files, and SQLite's writes since the last sync.

- Names: an operation on a folder can be lost until that folder is synced. A cut keeps the first of these operations and
  undoes the others, as a file system with a journal does.
- Bytes: a file that was not synced is empty.
- SQLite: the cut chooses one of the writes since the file's last sync, and undoes it and all later ones. The index in
  shared memory is lost.

Changed files get new inodes, so that dead processes cannot change them through open connections.
"""

import os
import random  # noqa: TID251  seeded, so that a run can be repeated
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from turnkeeper.bus.durable_writes import MARK
from turnkeeper.storage.files import Place

Undo = Callable[[], object]


@dataclass
class Memory:
    """Writes that are not yet synced.

    Attributes:
        stash: a folder for files whose names are gone; None while nothing is remembered.
        lost: the number of operations and writes that cuts undid.
    """

    stash: Path | None = None
    lost: int = 0
    _names: list[tuple[set[Path], Undo]] = field(default_factory=list)
    _unsynced: set[int] = field(default_factory=set)
    _synced: set[int] = field(default_factory=set)
    _pages: dict[str, list[tuple[int, bytes, int]]] = field(default_factory=lambda: defaultdict(list))
    _stashed: int = 0

    # Names and bytes of files

    def made(self, path: Place) -> None:
        """Remember a new name."""
        if self.stash is not None:
            self._names.append(({Path(path).parent}, lambda: Path(path).unlink(missing_ok=True)))

    def wrote(self, path: Place) -> None:
        """Remember that a new file has bytes, unless it was synced."""
        if self.stash is not None:
            inode = os.stat(path).st_ino  # noqa: PTH116  it accepts str, too
            if inode not in self._synced:
                self._unsynced.add(inode)
            self._synced.discard(inode)  # the system gives its number to another file later

    def going(self, path: Place, to: Place | None = None) -> None:
        """Remember a name before it is removed, or moved to another folder."""
        if self.stash is None or not os.path.lexists(path):
            return
        self._stashed += 1
        kept, folders = self.stash / str(self._stashed), {Path(path).parent}
        os.link(path, kept)

        def undo() -> None:
            if to is not None:
                Path(to).unlink(missing_ok=True)
            with suppress(FileExistsError):
                os.link(kept, path)

        self._names.append((folders if to is None else folders | {Path(to).parent}, undo))

    def synced(self, folder: Path) -> None:
        """Forget the operations on a folder, which are on disk now."""
        if self._names:
            self._names = [(folders, undo) for folders, undo in self._names if folder not in folders]

    # Files of SQLite

    def opens(self, path: str) -> None:
        """Forget the writes of a file that is not there any more."""
        if self.stash is not None and not Path(path).exists():
            self._pages.pop(path, None)

    def writes(self, path: str, at: int, before: bytes, size: int) -> None:
        """Remember the bytes that a write replaces, and the size of the file before."""
        self._pages[path].append((at, before, size))

    def syncs(self, path: str) -> None:
        """Forget the writes of a file, which are on disk now."""
        self._pages.pop(path, None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice which files are synced within the block."""
        sync = os.fsync

        def noticed(descriptor: int) -> None:
            sync(descriptor)
            self._synced.add(os.fstat(descriptor).st_ino)

        with patch.object(os, "fsync", noticed) if self.stash is not None else nullcontext():
            yield

    def cut(self, root: Path, drawn: random.Random) -> None:
        """Take away what is not on disk."""
        kept = drawn.randint(0, len(self._names))
        self.lost += len(self._names) - kept
        for _, undo in reversed(self._names[kept:]):
            undo()
        self._names.clear()
        for path in sorted(root.rglob("*.json")):
            if path.stat().st_ino in self._unsynced:
                os.truncate(path, 0)
        for mark in sorted(root.rglob(MARK)):
            mark.unlink()
        for store in sorted(root.rglob("*.db*")):
            if store.name.endswith("-shm"):
                store.unlink()
            elif store.is_file():
                self._undo_writes(store, drawn)
        self._pages.clear()

    def _undo_writes(self, store: Path, drawn: random.Random) -> None:
        writes = self._pages.get(str(store), [])
        kept = drawn.randint(0, len(writes))
        self.lost += len(writes) - kept
        content = bytearray(store.read_bytes())
        for at, before, size in reversed(writes[kept:]):
            content[at : at + len(before)] = before
            del content[size:]
        store.unlink()
        store.write_bytes(content)
        store.chmod(0o600)
