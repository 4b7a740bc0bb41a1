"""How much an inbox takes, and what a sender is told when there is no room."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.errors import Exhausted

_COUNT_AGAIN = 1024  # puts between two looks at the folder, which other processes fill and empty too


@dataclass(frozen=True, kw_only=True)
class Quota:
    """What may wait in one inbox. Several writing processes may together pass it by a thousand envelopes each.

    Attributes:
        most_waiting: envelopes.
        most_bytes: their bytes together.
    """

    most_waiting: int = 100_000
    most_bytes: int = 1 << 30


class Room:
    """Counts down what an inbox still takes, and looks again when that is used up."""

    def __init__(self, folder: Path, quota: Quota) -> None:
        self._folder = folder
        self._quota = quota
        self._left = self._left_bytes = self._until_look = 0
        self._unwritten = self._unwritten_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Take room for one envelope. Raises Exhausted: the sender is to wait until the agent has caught up."""
        if self._left < 1 or self._left_bytes < size_bytes or self._until_look < 1:
            self._look()
        if self._left < 1:
            raise self._full(f"{self._quota.most_waiting} envelopes")
        if self._left_bytes < size_bytes:
            raise self._full(f"{self._quota.most_bytes} bytes")
        self._left -= 1
        self._left_bytes -= size_bytes
        self._until_look -= 1
        self._unwritten += 1
        self._unwritten_bytes += size_bytes

    def settle(self) -> None:
        """Say that what took room has been written, or will not be: the folder tells of it from now on."""
        self._unwritten = self._unwritten_bytes = 0

    def _look(self) -> None:
        with os.scandir(self._folder) as entries:
            sizes = [_size(entry) for entry in entries if not entry.name.startswith(".")]
        self._left = self._quota.most_waiting - len(sizes) - self._unwritten
        self._left_bytes = self._quota.most_bytes - sum(sizes) - self._unwritten_bytes
        self._until_look = _COUNT_AGAIN

    def _full(self, what: str) -> Exhausted:
        return Exhausted(f"the inbox holds {what}", where=str(self._folder), hint="let the agent catch up")


@contextlib.contextmanager
def machine_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into Exhausted; one that says a name exists or is gone passes as it is."""
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        raise Exhausted(
            f"cannot be written: {error.strerror}", where=str(path), hint="free room, then try again"
        ) from (error)


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0  # claimed meanwhile
