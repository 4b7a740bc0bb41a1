"""An agent's inbox of files: durable put, claim, archive, adoption after a crash, and quarantine of malformed files.

::

    put ──► inbox/ ──claim (rename)──► claimed/ ──archive (link, sync, unlink)──► delivered/
              ▲                           └──malformed──► quarantine/ (with the reason beside it)
              └───────────────────────────requeue─────────────┘

A put writes a temporary file, syncs it, links it into `inbox/` (which fails if the name exists), removes the temporary
name and syncs the folder. Then it returns. Delivery is at least once: the agent's next process adopts envelopes that a
crash left in `claimed/`. The idempotency key prevents a second effect: through the unique row that the agent writes or,
for an agent without a database, through `settles_keys` (`turnkeeper/bus/folders.py`). The keys in memory are only an
optimization: they save a second file if one process puts an envelope twice.
"""

import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from turnkeeper.bus.durable_writes import Names, link_all
from turnkeeper.bus.envelope import Encoded, Envelope, decode, encoded
from turnkeeper.bus.folders import REASON, Capacity, KeyLinks, Quota, Retention, prune, sweep
from turnkeeper.bus.seals import LARGEST_FILE, Damaged, Seals, unsealed
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home, make_private
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Corrupt, Exhausted, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.storage.files import Files, machine_errors, no_room
from turnkeeper.storage.keys import KeyFile
from turnkeeper.times import parse_rfc3339, rfc3339

__all__ = ["FOLDERS", "MOST_WAITING", "OUTGOING", "Claimed", "Inbox", "Put", "Quota", "Retention"]

FOLDERS = ("inbox", "claimed", "delivered", "quarantine")
OUTGOING = ("outbox", "taken", "refused")  # folders of an agent in a terminal, in the order of a message's moves
MOST_WAITING = Quota().most_waiting
_MOST_HINTS = 2 * MOST_WAITING
_PRUNE_EVERY = 1024  # archived envelopes between two removals of old ones
_MOST_STUCK = 100  # the most names that one claim skips because they cannot be moved
_LARGEST_REASON = 1 << 16
_MOST_OF_A_NAME = 1000
_LONGEST_NAME = 240  # bytes; with the suffix, a name stays under 255 bytes, the limit of common file systems


@dataclass(frozen=True, kw_only=True)
class Put:
    """The result of a put.

    Attributes:
        name: the envelope's name on the bus; for a duplicate, the name of the earlier envelope.
        fresh: False if the inbox already had an envelope with this key, so nothing was written.
    """

    name: str
    fresh: bool


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """An envelope that this process has taken and must archive or quarantine.

    Attributes:
        fault: why the reader must not process a readable envelope that was changed after its put; otherwise empty.
    """

    name: str
    envelope: Envelope
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A file in quarantine, unchanged.

    Attributes:
        name: the file's name in quarantine; the argument of :meth:`Quarantine.release`.
        at: when the file was quarantined; None if the reason file is lost.
    """

    name: str
    reason: str
    at: datetime | None


class Inbox:
    """One agent's four folders. Any number of processes may put. Only processes of that agent claim.

    After its put has returned, an envelope is in exactly one of four states: waiting, claimed, delivered or
    quarantined. It is handed out at least once, with the same bytes that were put, in the order in which the puts
    returned. If several envelopes share a key, at most one of them is handed out. The files or a unique row of the
    reading agent decide which one. `tests/conformance/bus/` tests this contract. Use an inbox in one thread only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        files: Files,
        clock: Clock,
        entropy: Entropy,
        settles_keys: bool = False,
        seals: Seals | None = None,
        quota: Quota | None = None,
        retention: Retention | None = None,
    ) -> None:
        """Create missing folders.

        Args:
            folder: the agent's folder, as :meth:`turnkeeper.config.home.Home.inbox` names it.
            clock: provides the times in names and the age of files.
            settles_keys: True if the reader has no unique row for keys, so that the files decide which envelope owns a
                key. Every process that claims from this folder must pass the same value.
            seals: seals each put and checks the seal at each read; None if envelopes are neither sealed nor checked.
            quota: how many envelopes may wait in this inbox.
            retention: how long delivered envelopes are kept.
        """
        self.folder = folder
        self._files = files
        self._clock = clock
        self._retention = retention or Retention()
        self._places = {name: folder / name for name in FOLDERS}
        self._paths = {name: str(place) for name, place in self._places.items()}
        for place in self._places.values():
            make_private(place)
        self._names = Names(folder, clock=clock, entropy=entropy)
        self._capacity = Capacity(folder / "inbox", quota or Quota())
        self._links = KeyLinks(folder, files) if settles_keys else None
        self._seals = seals
        self._quarantine = Quarantine(folder, files=files, clock=clock)
        self._hints: dict[str, str] | None = None
        self._listed: deque[str] = deque()
        self._unread: deque[str] = deque()
        self._archived = 0
        self.set_aside: list[tuple[str, str]] = []  # files that a claim quarantined; the reader empties this list

    def waiting(self) -> int:
        return len(self._visible("inbox"))

    def known(self, key: str) -> Envelope | None:
        """Return the waiting or claimed envelope with this key, or None if this process does not know one."""
        name = self._hinted(key)
        for folder in ("inbox", "claimed") if name else ():
            with contextlib.suppress(FileNotFoundError, InvalidInput, Corrupt):
                return self.read(folder, name)
        return None

    def read(self, place: str, name: str) -> Envelope:
        """Return the envelope with this name in one of the four folders.

        Raises FileNotFoundError; InvalidInput or Corrupt for a malformed file or an invalid seal; Exhausted.
        """
        return self._opened(self._files.read(f"{self._paths[place]}/{name}", LARGEST_FILE))

    def _opened(self, data: bytes) -> Envelope:
        return self._seals.opened(data) if self._seals is not None else decode(unsealed(data))

    def put(self, envelope: Envelope) -> Put:
        """Put one envelope. When the method returns, the envelope is on disk.

        Raises:
            InvalidInput: the envelope is malformed. Nothing was written.
            Exhausted: there is no room. The caller may put the envelope again under its key.
        """
        (answer,) = self.put_each([envelope])
        if isinstance(answer, Put):
            return answer
        raise answer

    def put_each(self, envelopes: Sequence[Envelope]) -> list[Put | TurnkeeperError]:
        """Put many envelopes. Return the result or the error of each, in order."""
        given = [_encoded(envelope) for envelope in envelopes]
        answers = iter(self.put_encoded([item for item in given if not isinstance(item, InvalidInput)]))
        return [item if isinstance(item, InvalidInput) else next(answers) for item in given]

    def claim(self, limit: int) -> list[Claimed]:
        """Claim up to `limit` waiting envelopes, in the order in which they were written. Quarantine malformed ones.

        Raises Exhausted if the machine has no room to claim even one. Nothing is lost, and a later claim continues.
        """
        self._check_folders()
        stale = bool(self._listed)
        taken = self._take(limit)
        if stale and not taken:
            taken = self._take(limit)  # another process took every envelope in the last listing
        return taken

    def adopt(self) -> list[Claimed]:
        """Return envelopes that earlier processes claimed and did not archive, in order.

        Remove the files of dead writers. Only the single process that claims may call this, because it also adopts
        envelopes that another process handles.
        """
        self._check_folders()
        sweep(self.folder, files=self._files, clock=self._clock)
        if self._links is not None:
            self._links.rebuild()
        self._prune()
        self._unread.clear()
        adopted = []
        for name in self._visible("claimed"):
            if _same_file(self._places["claimed"] / name, self._places["delivered"] / name):
                self._deliver([name])  # a crash occurred between link and unlink: the envelope was archived
            else:
                adopted += self._read_claimed(name)
        return adopted

    def archive(self, claimed: Claimed) -> None:
        """Move a claimed envelope to `delivered/`, durably. A second call changes nothing."""
        self.archive_all([claimed])

    def archive_all(self, claimed: Sequence[Claimed]) -> None:
        """Move many envelopes to `delivered/` with one sync. After Exhausted, nothing is lost: call again."""
        self._deliver([item.name for item in claimed])
        if self._hints is not None:
            for item in claimed:
                self._hints.pop(item.envelope.idempotency_key, None)

    def withdraw(self, name: str, *, claimed: bool = False) -> bool:
        """Archive a waiting envelope without handing it out. Return False if a reader has claimed it. Raises Exhausted.

        With `claimed`, also archive a claimed envelope; only the process that has handled the envelope may do this.
        """
        target = self._free_name("claimed", name)
        try:
            with machine_errors(self.folder):
                self._files.rename(self._places["inbox"] / name, self._places["claimed"] / target)
        except FileNotFoundError:
            if not claimed:
                return False
            target = name
        self._deliver([target])
        return True

    def quarantine(self, name: str, reason: str) -> None:
        """Move a claimed file to quarantine, unchanged, and write the reason beside it."""
        self._quarantine.put(name, reason)

    def quarantined(self) -> list[Quarantined]:
        return self._quarantine.items()

    def requeue(self, name: str, *, vouched: bool = False) -> Put:
        """Queue a quarantined envelope again if it is valid. Raises NotFound, InvalidInput or Exhausted.

        Refuse an envelope with a missing or invalid seal, unless the author vouched for it. In that case, seal it.
        """
        data = self._quarantine.read(name)
        decode(unsealed(data))
        if vouched and self._seals is not None:
            self._seals.seal_file(self._quarantine.path(name))
        else:
            self._opened(data)
        with machine_errors(self.folder):
            self._capacity.reserve(len(data))
        released = Put(name=self._quarantine.release(name), fresh=True)
        self._capacity.settle()
        return released

    def put_encoded(self, items: Sequence[Encoded]) -> list[Put | TurnkeeperError]:
        """Put many encoded envelopes. Return the same results as :meth:`put_each`."""
        decided: list[Put | TurnkeeperError | int] = []
        fresh: list[Encoded] = []
        first: dict[str, int] = {}
        for item in items:
            key = item.key
            place = first.get(key) if key else None
            if place is None:
                answer = self._repeat_or_refuse(key, len(item.data))
                if answer is not None:
                    decided.append(answer)
                    continue
                place = len(fresh)
                fresh.append(item)
                if key:
                    first[key] = place
            decided.append(place)
        written = self._write_or_refuse(fresh) if fresh else []
        self._capacity.settle()
        answered: set[int] = set()
        return [item if not isinstance(item, int) else _once(written[item], item, answered) for item in decided]

    def _repeat_or_refuse(self, key: str, size_bytes: int) -> Put | TurnkeeperError | None:
        """Return the earlier put of this key, or the error for a full inbox. None if it must be written."""
        try:
            earlier = self._earlier(key) if key else None
            if earlier is None:
                self._capacity.reserve(size_bytes)
        except Exhausted as error:
            return error
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            return no_room(error, self.folder)
        return earlier

    def _earlier(self, key: str) -> Put | None:
        name = self._hinted(key)
        if name and any(os.path.lexists(f"{self._paths[place]}/{name}") for place in ("inbox", "claimed")):
            # Another process may have linked the file without a sync yet. A put returns only after the file is on disk.
            self._files.sync_folder(self._places["inbox"])
            return Put(name=name, fresh=False)
        if self._hints is not None:
            self._hints.pop(key, None)
        if self._links is not None and self._links.inode_of(key) is not None:
            return Put(name=self._links.name_of(key), fresh=False)
        return None

    def _write_or_refuse(self, fresh: Sequence[Encoded]) -> list[Put | TurnkeeperError]:
        try:
            return self._write(fresh)
        except TurnkeeperError as error:  # the disk is full, or the sealing key cannot be read
            return [error] * len(fresh)

    def _write(self, fresh: Sequence[Encoded]) -> list[Put | TurnkeeperError]:
        self._check_folders()
        with machine_errors(self.folder):
            names = self._names.draw([item.sender for item in fresh], lying=self._lying())
        with self._seals.sealing() if self._seals is not None else contextlib.nullcontext(bytes) as sealed:
            written = [(name, sealed(item.data)) for name, item in zip(names, fresh, strict=True)]
            failures = link_all(self._files, self._places["inbox"], written)
        for name, item, failure in zip(names, fresh, failures, strict=True):
            if failure is None and item.key:
                self._hint(item.key, name)
        return [failure or Put(name=name, fresh=True) for name, failure in zip(names, failures, strict=True)]

    def _take(self, limit: int) -> list[Claimed]:
        taken: list[Claimed] = []
        stuck: list[Exhausted] = []
        if not self._listed:
            self._listed.extend(self._visible("inbox"))
        while len(taken) < limit and len(stuck) < _MOST_STUCK and (self._unread or self._listed):
            try:
                if not self._unread:
                    self._move_to_claimed(self._listed.popleft())
                if self._unread:
                    taken += self._read_claimed(self._unread[0])
                    self._unread.popleft()
            except Exhausted as error:  # a name that cannot be moved must not block later names
                stuck.append(error)
                if self._unread:
                    break
        if stuck and not taken:
            raise stuck[0]
        return taken

    def _move_to_claimed(self, name: str) -> None:
        target = self._free_name("claimed", name)
        with machine_errors(self.folder), contextlib.suppress(FileNotFoundError):  # another process claimed it first
            self._files.rename(f"{self._paths['inbox']}/{name}", f"{self._paths['claimed']}/{target}")
            self._unread.append(target)

    def _read_claimed(self, name: str) -> list[Claimed]:
        try:
            with machine_errors(self.folder):  # an error that the file did not cause must not quarantine the file
                envelope = self.read("claimed", name)
        except FileNotFoundError:
            return []
        except (InvalidInput, Corrupt) as error:
            # The reader may know the turn of the envelope, and records the end of the turn before the envelope is
            # quarantined.
            with contextlib.suppress(InvalidInput):
                if isinstance(error, Damaged):
                    return [Claimed(name=name, envelope=decode(error.content), fault=str(error))]
            self._quarantine.put(name, str(error))
            self.set_aside.append((name, str(error)))
            return []
        key = envelope.idempotency_key
        with machine_errors(self.folder):
            if self._links is not None and key and not self._links.settle(key, name):
                self._deliver([name])  # dropped, because another envelope with this key was handed out
                return []
        return [Claimed(name=name, envelope=envelope)]

    def _deliver(self, names: Sequence[str]) -> None:
        claimed, delivered = self._paths["claimed"], self._places["delivered"]
        done = []
        with machine_errors(delivered):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # already archived
                    self._link_delivered(name)
                    done.append(name)
            if done:
                self._files.sync_folder(delivered)
            for name in done:
                self._files.unlink(f"{claimed}/{name}")
        self._archived += len(done)
        if self._archived >= _PRUNE_EVERY:
            self._prune()

    def _link_delivered(self, name: str) -> None:
        source, target = f"{self._paths['claimed']}/{name}", f"{self._paths['delivered']}/{name}"
        try:
            self._files.link(source, target)
        except FileExistsError:
            if not _same_file(Path(source), Path(target)):  # another program used a name twice
                self._files.link(source, self._places["delivered"] / self._free_name("delivered", name))

    def _check_folders(self) -> None:
        """Raise InvalidInput if an agent that can write to its own folders replaced one of them by a link."""
        for place in self._places.values() if self._links is not None else ():
            make_private(place)

    def _prune(self) -> None:
        self._check_folders()
        self._archived = 0
        prune(self.folder, files=self._files, clock=self._clock, retention=self._retention)

    def _free_name(self, folder: str, name: str) -> str:
        """Return `name`, or a similar name if another program already used it, because a rename overwrites."""
        if not os.path.lexists(f"{self._paths[folder]}/{name}"):
            return name
        stem, dot, suffix = name.rpartition(".")
        return f"{stem}~{self._names.tag()}{dot}{suffix}"

    def _visible(self, folder: str) -> list[str]:
        with machine_errors(self.folder):
            return [name for name in self._files.names(self._places[folder]) if not name.startswith(".")]

    def _lying(self) -> Iterable[str]:
        for folder in FOLDERS:
            yield from self._files.names(self._places[folder])

    def _hinted(self, key: str) -> str:
        if self._hints is None:
            self._hints = {}
            for folder in ("claimed", "inbox"):
                for name in self._visible(folder):
                    # When a file that cannot be read is claimed, it is quarantined with the reason.
                    with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError):
                        envelope = self.read(folder, name)
                        if envelope.idempotency_key:
                            self._hint(envelope.idempotency_key, name)
        return self._hints.get(key, "")

    def _hint(self, key: str, name: str) -> None:
        if self._hints is None:
            self._hints = {}
        self._hints[key] = name
        if len(self._hints) > _MOST_HINTS:
            del self._hints[next(iter(self._hints))]


def open_inbox(
    home: Home, agent: str, *, hosted: bool, files: Files, clock: Clock, entropy: Entropy, keys: KeyFile | None = None
) -> Inbox:
    """Open an agent's inbox. A hosted agent's inbox accepts only sealed envelopes. Its reader has rows for keys."""
    seals, kept = Seals(home, agent, required=hosted, keys=keys), Retention(seen=home.time_seen("agent-runtime"))
    own: dict[str, Any] = {"settles_keys": not hosted, "seals": seals, "retention": kept}
    return Inbox(home.inbox(agent), files=files, clock=clock, entropy=entropy, **own)


def _encoded(envelope: Envelope) -> Encoded | InvalidInput:
    try:
        return encoded(envelope)
    except InvalidInput as error:
        return error


def _once(answer: Put | TurnkeeperError, place: int, answered: set[int]) -> Put | TurnkeeperError:
    """Return the answer for one item of a group. If two have the same key, the second is a duplicate of the first."""
    if place in answered and isinstance(answer, Put):
        return Put(name=answer.name, fresh=False)
    answered.add(place)
    return answer


def _same_file(one: Path, other: Path) -> bool:
    try:
        first, second = one.lstat(), other.lstat()
    except FileNotFoundError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


class Quarantine:
    """The quarantine of one agent or, with a different `place`, the read-only folder of refused outgoing envelopes."""

    def __init__(self, folder: Path, *, files: Files, clock: Clock, place: str = "quarantine") -> None:
        self._agent = folder
        self._folder = folder / place
        self._files = files
        self._clock = clock

    def put(self, name: str, reason: str) -> None:
        """Move a claimed file here, unchanged. Raises Exhausted, after which nothing is lost."""
        note = {"name": name, "reason": reason, "at": rfc3339(self._clock.now())}
        target = self._free_name(name)
        with machine_errors(self._folder):
            with contextlib.suppress(FileExistsError):  # after a crash before the move, the first reason is kept
                self._files.write_synced(self._folder / f"{target}{REASON}", json.dumps(note).encode())
            self._files.rename(self._agent / "claimed" / name, self._folder / target)
            self._files.sync_folder(self._folder)

    def items(self) -> list[Quarantined]:
        names = [name for name in self._files.names(self._folder) if not name.startswith(".")]
        return [self._item(name) for name in names if not name.endswith(REASON) or f"{name}{REASON}" in names]

    def read(self, name: str) -> bytes:
        """Return the bytes of a quarantined file. Raises NotFound or InvalidInput."""
        try:
            return self._files.read(self.path(name), LARGEST_FILE)
        except Corrupt as error:
            raise InvalidInput(error.what, where=name) from error

    def path(self, name: str) -> Path:
        """Return the path of a quarantined file. Raises NotFound."""
        if not name or "/" in name or name.startswith(".") or not os.path.lexists(self._folder / name):
            raise NotFound("no such quarantined envelope", where=name[:80], hint="list them: inbox quarantine")
        return self._folder / name

    def release(self, name: str) -> str:
        """Move an envelope back into the inbox and remove its reason. Return its name in the inbox."""
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
        """Return the file's name if it is short and unused, or else a similar name, because a rename overwrites."""
        raw = os.fsencode(name)
        short = name if len(raw) <= _LONGEST_NAME else f"{hashlib.sha256(raw).hexdigest()[:32]}.json"
        for place in range(_MOST_OF_A_NAME):
            if not os.path.lexists(self._folder / _numbered(short, place)):
                return _numbered(short, place)
        raise Exhausted(f"{_MOST_OF_A_NAME} of this name lie in quarantine", where=short, hint="look at them")


def _numbered(name: str, place: int) -> str:
    return f"{name}~{place}" if place else name
