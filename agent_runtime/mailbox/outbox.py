"""Messages of agents in terminals: taken from a folder that only the agent writes to, which identifies the sender.

::

outbox/ ──take (rename)──► taken/ ──deliver, as from the folder's owner──► removed
                              └──────refuse──► refused/ (with the reason beside it)

A file proves no identity, but its folder does. A hostile program may write anything in these folders. So each folder
and file is opened by its name in the folder above, never through a link, and without blocking.

A message is delivered once. A file in `taken/` keeps its name until it is removed. The message's key comes from its id,
or else from that name, so that a process that finds the file after a crash delivers the same key.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from agent_runtime.model.trigger import FIRST_AGENT
from turnkeeper.bus.envelope import Envelope, encode, parse_instant, parse_object
from turnkeeper.bus.folders import REASON
from turnkeeper.bus.inbox import OUTGOING
from turnkeeper.bus.letters import LONGEST_MESSAGE, MOST_HOPS, letter_key, put_letter
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Exhausted, InvalidInput, TurnkeeperError
from turnkeeper.storage.files import machine_errors
from turnkeeper.times import rfc3339

LARGEST_FILE = 1 << 20  # bytes of a message as JSON, in which each character may be escaped
MOST_LISTED = 1000  # most names read in one pass
MOST_UNSETTLED = 16  # most incomplete files in one pass
MOST_REFUSED = 1000  # files kept for the author; the agent's outbox is blocked until they are removed
_SENT = frozenset({"message", "ack"})
_TEXTS = ("id", "from", "to", "kind", "thread", "swarm", "idempotency_key", "text", "body", "ts")
_FIELDS = frozenset({"v", "requires_ack", "meta", *_TEXTS})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EACCES}  # links, sockets: not a fault of the machine
_PLAIN = re.compile(r"[^A-Za-z0-9._-]")


def read_letter(data: bytes, sender: str, *, name: str, at: datetime) -> Envelope:
    """Return the complete message in a file of an agent's outbox, with that agent as its sender. Pure.

    Missing fields are filled in: `body` may replace `text`; the version is the current one, `to` is agent0, the kind is
    message, the time is `at`, and the id is made from `name`. The sender in the file is ignored.

    Raises:
        InvalidInput: the file is not a message, or is one that this agent may not send; `where` names the field.
    """
    fields = parse_object(data, where="envelope")
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown or fields.get("v", 1) != 1 or isinstance(fields.get("v"), bool):
        raise InvalidInput("unknown schema", where=ascii(min(unknown, default="v"))[1:-1][:40])
    texts = {key: fields.get(key, "") for key in _TEXTS}
    wrong = next((key for key, value in texts.items() if not isinstance(value, str)), None)
    if wrong or not isinstance(fields.get("requires_ack", False), bool):
        raise InvalidInput("has the wrong type", where=wrong or "requires_ack")
    if texts["text"] and texts["body"]:
        raise InvalidInput("cannot be combined with text", where="body")
    return _checked(
        Envelope(
            id=texts["id"] or name,
            sender=sender,
            to=texts["to"] or FIRST_AGENT,
            kind=texts["kind"] or "message",
            text=texts["text"] or texts["body"],
            at=parse_instant(texts["ts"]) if texts["ts"] else at,
            thread=texts["thread"],
            swarm=texts["swarm"],
            idempotency_key=letter_key(sender, texts["idempotency_key"] or texts["id"], name),
            requires_ack=fields.get("requires_ack", False),
            meta=_meta(fields.get("meta", {}), texts["kind"]),
        )
    )


def _checked(letter: Envelope) -> Envelope:
    letter.checked()
    if letter.kind not in _SENT:
        raise InvalidInput(f"an agent in a terminal may send only messages and acks, not {letter.kind}", where="kind")
    if letter.to != FIRST_AGENT:
        raise InvalidInput(f"agents in terminals may write only to {FIRST_AGENT}, not to {letter.to}", where="to")
    size = len(letter.text.encode())
    if letter.kind == "message" and (not letter.text.strip() or size > LONGEST_MESSAGE):
        raise InvalidInput(f"a message has 1 to {LONGEST_MESSAGE} bytes", where="text")
    if letter.kind == "ack" and size:
        raise InvalidInput("an ack has no text", where="text")
    return letter


def _meta(given: object, kind: str) -> dict[str, Any]:
    """Return the checked `meta` of a letter.

    The `meta` of an ack names its envelope. The `meta` of a message may name the turn whose message it answers, and the
    number of messages before it in the exchange. The runtime sets all other fields.
    """
    if not given:
        return {}
    known = {"envelope"} if kind == "ack" else {"answers", "hops"}
    if not isinstance(given, dict) or not given.keys() <= known:
        raise InvalidInput("is set by the runtime; omit it", where="meta")
    hops = given.get("hops", 0)
    if not all(isinstance(value, str) for key, value in given.items() if key != "hops"):
        raise InvalidInput("has the wrong type", where="meta")
    if isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops < MOST_HOPS:
        what = f"the limit of {MOST_HOPS} messages in one exchange is reached"
        raise InvalidInput(what if isinstance(hops, int) and hops >= MOST_HOPS else "has the wrong type", where="hops")
    return dict(given)


def send(home: Home, envelope: Envelope, *, clock: Clock, entropy: Entropy) -> str:
    """Put an envelope into the outbox of its sender, whole and synced; return its name. Needs no daemon and no key.

    Raises:
        InvalidInput: the runtime would refuse the envelope; nothing was written.
        Exhausted: there is no room.
    """
    read_letter(encode(envelope), envelope.sender, name=envelope.id, at=envelope.at)
    return put_letter(home, envelope, clock=clock, entropy=entropy)


@dataclass
class Outbox:
    """One agent's outgoing folders. Only the calling process takes files from them."""

    folder: Path
    clock: Clock
    entropy: Entropy
    _unsettled: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def take(self, most: int) -> list[str]:
        """Move up to `most` files to `taken/`, oldest first; return all names there, including those of earlier calls.

        An incomplete file is left until a second check finds the file unchanged.

        Raises:
            InvalidInput: one of the folders is not this user's own folder.
            Exhausted: there is no room, or the author must first check refused messages.
        """
        with self._opened() as places:
            if len(os.listdir(places["refused"])) >= 2 * MOST_REFUSED:
                hint = "check them with: turnkeeper inbox quarantine; then remove them"
                raise Exhausted(f"holds {MOST_REFUSED} refused messages", where=str(self.folder / "refused"), hint=hint)
            lying = sorted(name for name in os.listdir(places["taken"]) if not name.startswith("."))
            ready = self._ready(places["outbox"], most - len(lying))
            for name in ready:
                taken = f"{self.entropy.hex(16)}-{_PLAIN.sub('_', name)[:100]}"
                with contextlib.suppress(FileNotFoundError):
                    os.rename(name, taken, src_dir_fd=places["outbox"], dst_dir_fd=places["taken"])
                    lying.append(taken)
            if ready:  # sync, so that a file without an id does not reappear under its old name after a power loss
                os.fsync(places["taken"])
            return lying[:most]

    def read(self, name: str) -> bytes:
        """Return the bytes of a taken file. Raises InvalidInput unless the file is a plain file of this user."""
        with self._opened() as places:
            return _read(name, places["taken"])

    def finish(self, name: str) -> None:
        """Remove a taken file durably, after its message was delivered."""
        with self._opened() as places:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=places["taken"])
            os.fsync(places["taken"])

    def refuse(self, name: str, reason: str) -> None:
        """Move a taken file to `refused/`, with the reason beside it."""
        note = json.dumps({"name": name, "reason": reason, "at": rfc3339(self.clock.now())}).encode()
        with self._opened() as places, contextlib.suppress(FileNotFoundError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(f"{name}{REASON}", flags, 0o600, dir_fd=places["refused"])
            try:
                os.write(descriptor, note)
            finally:
                os.close(descriptor)
            os.rename(name, name, src_dir_fd=places["taken"], dst_dir_fd=places["refused"])
            os.fsync(places["refused"])

    def _ready(self, outbox: int, most: int) -> list[str]:
        """Return up to `most` names to take, oldest first; remember files that may be incomplete."""
        ready: list[str] = []
        unsettled: dict[str, tuple[int, ...]] = {}
        for mark, name in sorted(_marks(outbox)):
            if len(ready) >= most or len(unsettled) >= MOST_UNSETTLED:
                break
            if self._unsettled.get(name) == mark or _whole(name, outbox):
                ready.append(name)
            else:
                unsettled[name] = mark
        self._unsettled = unsettled
        return ready

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Mapping[str, int]]:
        """Open the folders by their names in the agent's folder; make missing ones."""
        with contextlib.ExitStack() as opened, machine_errors(self.folder):
            above = _open_folder(str(self.folder), None, opened)
            for name in OUTGOING:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=above)
            yield {name: _open_folder(name, above, opened) for name in OUTGOING}


def _open_folder(name: str, above: int | None, opened: contextlib.ExitStack) -> int:
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise InvalidInput("is not a folder", where=name, hint="remove it: the runtime makes the folder") from error
        raise
    opened.callback(os.close, descriptor)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise InvalidInput("other users can write to it", where=name, hint="run: chmod 700 on it")
    return descriptor


def _marks(outbox: int) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield each file's name after values that change with the file, beginning with its time."""
    with os.scandir(outbox) as entries:
        names = [entry.name for entry in islice(entries, MOST_LISTED) if not entry.name.startswith(".")]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            seen = os.stat(name, dir_fd=outbox, follow_symlinks=False)
            yield (seen.st_mtime_ns, seen.st_ino, seen.st_size, seen.st_nlink), name


def _whole(name: str, folder: int) -> bool:
    """Return whether a file is complete JSON, because a writer may still be writing it."""
    with contextlib.suppress(TurnkeeperError, FileNotFoundError):
        parse_object(_read(name, folder), where="envelope")
        return True
    return False


def _read(name: str, folder: int) -> bytes:
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise InvalidInput(f"cannot be opened: {error.strerror}", where="file") from error
        raise
    try:
        _refuse_odd(os.fstat(descriptor))
        chunks: list[bytes] = []
        while len(chunks) <= LARGEST_FILE >> 16 and (chunk := os.read(descriptor, 1 << 16)):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def _refuse_odd(found: os.stat_result) -> None:
    for wrong, what in (
        (not stat.S_ISREG(found.st_mode), "is not a plain file"),
        (found.st_uid != os.geteuid(), "belongs to another user"),
        (found.st_nlink != 1, "has another name elsewhere, because it is a hard link"),
        (found.st_size > LARGEST_FILE, f"is larger than {LARGEST_FILE} bytes"),
    ):
        if wrong:
            raise InvalidInput(what, where="file")
