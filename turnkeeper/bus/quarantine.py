"""What was set aside: each file whole, its reason beside it, until a person queues it again or removes it.

A reason is written before its envelope is moved, and removed after it has been moved back.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from turnkeeper.bus.envelope import LARGEST_BYTES, decode
from turnkeeper.bus.limits import REASON
from turnkeeper.clock import Clock
from turnkeeper.errors import Conflict, Corrupt, Exhausted, InvalidInput, NotFound
from turnkeeper.storage.files import Files, machine_errors
from turnkeeper.times import parse_rfc3339, rfc3339

_LARGEST_REASON = 1 << 16
_MOST_OF_A_NAME = 1000
_LONGEST_NAME = 240  # bytes; with the suffix it stays under the 255 of the usual file systems


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """What was set aside, whole.

    Attributes:
        name: its name in quarantine; :meth:`Quarantine.release` takes it.
        reason: why, in one line.
        at: when it was set aside; None where the reason is lost.
    """

    name: str
    reason: str
    at: datetime | None


class Quarantine:
    """One agent's quarantine."""

    def __init__(self, folder: Path, *, files: Files, clock: Clock) -> None:
        self._agent = folder
        self._folder = folder / "quarantine"
        self._files = files
        self._clock = clock

    def put(self, name: str, reason: str) -> None:
        """Move a claimed file here, whole. Raises Exhausted; nothing is lost then."""
        note = {"name": name, "reason": reason, "at": rfc3339(self._clock.now())}
        target = self._free_name(name)
        with machine_errors(self._folder):
            with contextlib.suppress(FileExistsError):  # a crash came before the move: the first reason stands
                self._files.write_synced(self._folder / f"{target}{REASON}", json.dumps(note).encode())
            self._files.rename(self._agent / "claimed" / name, self._folder / target)
            self._files.sync_folder(self._folder)

    def items(self) -> list[Quarantined]:
        """Return what lies here, in order."""
        names = [name for name in self._files.names(self._folder) if not name.startswith(".")]
        return [self._item(name) for name in names if not name.endswith(REASON) or f"{name}{REASON}" in names]

    def checked(self, name: str) -> bytes:
        """Return the bytes of a valid envelope that lies here. Raises NotFound or InvalidInput."""
        if not name or "/" in name or name.startswith(".") or not os.path.lexists(self._folder / name):
            raise NotFound("no such quarantined envelope", where=name[:80], hint="list them: inbox quarantine")
        try:
            data = self._files.read(self._folder / name, LARGEST_BYTES)
        except Corrupt as error:
            raise InvalidInput(error.what, where=name) from error
        decode(data)
        return data

    def release(self, name: str) -> str:
        """Move an envelope back into the inbox and remove its reason; return its name there."""
        target = self._agent / "inbox" / name
        if os.path.lexists(target):
            raise Conflict("an envelope of this name waits already", where=name)
        with machine_errors(self._folder):
            self._files.rename(self._folder / name, target)
            self._files.sync_folder(target.parent)
            self._files.sync_folder(self._folder)
            self._files.unlink(self._folder / f"{name}{REASON}")
        return name

    def _item(self, name: str) -> Quarantined:
        try:
            note = json.loads(self._files.read(self._folder / f"{name}{REASON}", _LARGEST_REASON))
            return Quarantined(name=name, reason=str(note["reason"]), at=parse_rfc3339(note["at"]))
        except (FileNotFoundError, Corrupt, ValueError, KeyError, TypeError):
            return Quarantined(name=name, reason="unknown: its reason is lost", at=None)

    def _free_name(self, name: str) -> str:
        """Return a name for it here: its own if that is short enough and free, as a rename overwrites."""
        raw = os.fsencode(name)
        short = name if len(raw) <= _LONGEST_NAME else f"{hashlib.sha256(raw).hexdigest()[:32]}.json"
        for place in range(_MOST_OF_A_NAME):
            if not os.path.lexists(self._folder / _numbered(short, place)):
                return _numbered(short, place)
        raise Exhausted(f"{_MOST_OF_A_NAME} of this name lie in quarantine", where=short, hint="look at them")


def _numbered(name: str, place: int) -> str:
    return f"{name}~{place}" if place else name
