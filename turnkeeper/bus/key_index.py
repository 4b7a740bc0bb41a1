"""Which envelope owns an idempotency key, for an agent without a database that would say so.

When an envelope with a key is claimed, the claimer links it exclusively as `delivered/.key-<digest>`: the envelope
whose file that is owns the key, and any other with the same key is dropped. The name lies beside the delivered
envelopes, so that the sync that makes an archive durable makes it durable too. It can be made anew from them, and
ends with them when they are pruned.

From the same files, whoever put envelopes with keys learns where each of them is.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from turnkeeper.bus.envelope import LARGEST_BYTES, decode
from turnkeeper.errors import Corrupt, InvalidInput
from turnkeeper.storage.files import Files

PREFIX = ".key-"
_TRIES = 16


class KeyLinks:
    """The key links of one agent."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._claimed = folder / "claimed"
        self._delivered = folder / "delivered"
        self._files = files

    def is_taken(self, key: str) -> bool:
        """Tell whether an envelope with this key was claimed within retention."""
        with contextlib.suppress(FileNotFoundError):
            return self._link(key).stat().st_nlink > 1
        return False

    def settle(self, key: str, name: str) -> bool:
        """Take the key for the claimed envelope `name`; False if another one owns it."""
        mine, link = self._claimed / name, self._link(key)
        for _ in range(_TRIES):
            try:
                self._files.link(mine, link)
            except FileExistsError:
                pass
            else:
                return True
            with contextlib.suppress(FileNotFoundError):  # pruned between the two looks
                found = link.stat()
                if found.st_ino == mine.stat().st_ino:
                    return True
                if found.st_nlink > 1:
                    return False
                self._forget_orphan(link)
        return False

    def name_of(self, key: str) -> str:
        """Return the name of the envelope that owns a key; empty if it is being moved."""
        with contextlib.suppress(FileNotFoundError):
            owner = self._link(key).stat().st_ino
            for folder in (self._claimed, self._delivered):
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.inode() == owner and not entry.name.startswith("."):
                            return entry.name
        return ""

    def inode_of(self, key: str) -> int | None:
        """Return the file of the envelope that owns a key; None where none was claimed, or its file is gone."""
        with contextlib.suppress(FileNotFoundError):
            found = self._link(key).stat()
            return found.st_ino if found.st_nlink > 1 else None
        return None

    def by_inode(self) -> dict[int, str]:
        """Return the names of all key links by the file they are a name of."""
        with os.scandir(self._delivered) as entries:
            return {entry.inode(): entry.name for entry in entries if entry.name.startswith(PREFIX)}

    def rebuild(self) -> None:
        """Make the links that are missing, as after a restore that copied the files. Only while nobody claims."""
        for name in self.by_inode().values():
            if (self._delivered / name).stat().st_nlink == 1:
                self._forget_orphan(self._delivered / name)
        linked = self.by_inode()
        for folder in (self._delivered, self._claimed):
            for name, inode in _visible(folder):
                if inode not in linked:
                    self._link_again(folder / name)

    def _link_again(self, path: Path) -> None:
        with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError, FileExistsError):
            key = decode(self._files.read(path, LARGEST_BYTES)).idempotency_key
            if key:
                self._files.link(path, self._link(key))

    def _forget_orphan(self, link: Path) -> None:
        """Remove a key link that is the last name of its file. Two claimers never do it to each other's."""
        descriptor = os.open(self._delivered, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if link.stat().st_nlink == 1:
                self._files.unlink(link)
        except FileNotFoundError:
            pass
        finally:
            os.close(descriptor)

    def _link(self, key: str) -> Path:
        return self._delivered / f"{PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def _visible(folder: Path) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.inode()) for entry in entries if not entry.name.startswith(".")]
    yield from sorted(found)


class EnvelopeState(StrEnum):
    """Where an envelope is, as whoever put it sees it."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    QUARANTINED = "quarantined"
    GONE = "gone"  # pruned after its delivery, or removed by hand


def envelope_states(folder: Path, wanted: Mapping[str, str], files: Files) -> dict[str, EnvelopeState]:
    """Return where envelopes are, by key; `wanted` holds the name under which each was put.

    An envelope moves on while we look, so the places are read in the order in which it passes them: it is found in one
    that it has left a moment ago, or in the next, and never seen further than it is.
    """
    waiting = set(files.names(folder / "inbox"))
    claimed = set(files.names(folder / "claimed"))
    found = {key: EnvelopeState.WAITING for key, name in wanted.items() if name in waiting}
    found |= {key: EnvelopeState.CLAIMED for key, name in wanted.items() if name in claimed and key not in found}
    left = {key: name for key, name in wanted.items() if key not in found}
    return found | (_further(folder, left, _inodes(folder / "claimed", claimed), files) if left else {})


def _further(
    folder: Path, left: Mapping[str, str], claimed_inodes: Mapping[int, str], files: Files
) -> dict[str, EnvelopeState]:
    """Return where those are that neither wait nor are claimed under their own names."""
    links = KeyLinks(folder, files)
    owners = {key: links.inode_of(key) for key in left}
    delivered, set_aside = set(files.names(folder / "delivered")), set(files.names(folder / "quarantine"))
    found = {}
    for key, name in left.items():
        if owners[key] in claimed_inodes:  # claimed under another name, or again by the reader that adopted it
            found[key] = EnvelopeState.CLAIMED
        elif owners[key] is not None or name in delivered:
            found[key] = EnvelopeState.DELIVERED
        else:
            found[key] = EnvelopeState.QUARANTINED if name in set_aside else EnvelopeState.GONE
    return found


def _inodes(folder: Path, names: set[str]) -> dict[int, str]:
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # archived meanwhile
            found[(folder / name).lstat().st_ino] = name
    return found
