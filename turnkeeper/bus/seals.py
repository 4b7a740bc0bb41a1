"""Seals on envelopes. Agents that the runtime hosts accept only envelopes that programs of this home put.

A seal is an HMAC-SHA-256 with the home's key over the bytes from `encode`, and so over every field. The seal is the
last member of `meta`, at the end of the file. A reader that does not know seals ignores this member. The seal is
removed before the rest is read, so digests and the delivered envelope are the same with and without a seal.

Every envelope is sealed when it is put, even if its agent is not hosted. Only readers of hosted agents require this.
"""

import hmac
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.bus.envelope import Envelope, decode, encode
from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Corrupt, Exhausted, InvalidInput
from turnkeeper.storage.files import SystemFiles, replace_whole
from turnkeeper.storage.keys import Key, KeyFile

LARGEST_FILE = LARGEST_BYTES + 256  # an envelope with its seal
_CONTEXT = b"turnkeeper envelope 1\0"  # separates these signatures from other uses of the same key
_EMPTY = b'"meta":{}}'
_SEAL = re.compile(rb',?"seal":"([0-9a-f]{1,32}):([0-9a-f]{64})"\}\}\Z')
_WORKER = re.compile(r"agent[0-9]+", re.ASCII)
_LONGEST = 128  # bytes of a seal in its file
REQUEUE = "if you trust it: turnkeeper inbox requeue AGENT NAME --seal"


def seal(data: bytes, key: Key) -> bytes:
    comma = b"" if data.endswith(_EMPTY) else b","
    return b'%s%s"seal":"%s:%s"}}' % (data[:-2], comma, key.id.encode(), _mac(data, key).encode())


def unsealed(data: bytes) -> bytes:
    """Return the bytes of an envelope without the seal. The seal is not verified."""
    found = _SEAL.search(data, max(0, len(data) - _LONGEST))
    return data[: found.start()] + b"}}" if found else data


def key_id_of(data: bytes) -> str:
    """Return the id of the key that a seal names. Return an empty string if there is no seal."""
    found = _SEAL.search(data, max(0, len(data) - _LONGEST))
    return found[1].decode() if found else ""


def _mac(data: bytes, key: Key) -> str:
    return hmac.digest(bytes.fromhex(key.secret), _CONTEXT + data, "sha256").hex()


class Damaged(InvalidInput):
    """The error for an envelope whose seal names a key of this home but does not match the content."""

    def __init__(self, content: bytes) -> None:
        super().__init__("does not belong to this content: the envelope was changed", where="seal")
        self.content = content


class Seals:
    """The sealer and verifier of the envelopes of one inbox."""

    def __init__(self, home: Home, agent: str, *, required: bool, keys: KeyFile | None = None) -> None:
        """Bind the seals to an inbox's agent. With `required`, open only envelopes that were sealed for that agent."""
        self._agent = agent
        self._required = required
        self._keys = keys or KeyFile(home)

    @contextmanager
    def sealing(self) -> Iterator[Callable[[bytes], bytes]]:
        """Yield the sealing function. Put the sealed bytes before the block ends. Raises Corrupt if the key is lost.

        Until the home has its first key, nothing is sealed. The process that makes the first key waits until these puts
        end, then seals their envelopes.
        """
        keys = self._keys.read()
        if keys:
            yield lambda data: seal(data, keys[0])
            return
        with self._keys.locked(shared=True):
            made = self._keys.read()
            yield lambda data: seal(data, made[0]) if made else data

    def opened(self, data: bytes) -> Envelope:
        """Return the envelope in the bytes of a file.

        Raises:
            InvalidInput: the bytes are not an envelope, or the seal is invalid; Damaged if the content was changed.
            Exhausted: the key cannot be read at the moment; the envelope may be valid.
        """
        content = unsealed(data)
        if self._required:
            self._check(data, content)
        envelope = decode(content)
        if self._required:
            self._check_recipient(envelope)
        return envelope

    def seal_file(self, path: Path) -> None:
        """Seal an envelope that is already in a file. Raises InvalidInput, Corrupt, Exhausted."""
        with suppress(IndexError):  # the home has no key yet, so nothing is sealed
            _seal_file(path, self._keys.read()[0])

    def _check(self, data: bytes, content: bytes) -> None:
        key_id = key_id_of(data)
        try:
            key = self._keys.get(key_id)
            if not key_id and not self._keys.read():
                return  # the home has no key yet; the process that makes the first key seals this file
        except Corrupt as error:
            raise Exhausted(error.what, where=error.where, hint=error.hint) from error
        if not key_id:
            raise InvalidInput("is missing: no program of this home put it here", where="seal", hint=REQUEUE)
        if key is None:
            raise InvalidInput("was made with a key that this home does not have", where="seal", hint=REQUEUE)
        if not hmac.compare_digest(seal(content, key), data):
            raise Damaged(content)

    def _check_recipient(self, envelope: Envelope) -> None:
        if envelope.to != self._agent:
            raise InvalidInput(f"is sealed for {envelope.to} but was found in the inbox of {self._agent}", where="to")


def make_first_key(home: Home, *, at: datetime, entropy: Entropy) -> bool:
    """Make the home's key for envelopes if the home has none. Return True if a key was made.

    With the new key, seal the envelopes that a version without seals put into the inboxes of workers, even of workers
    that are not hosted yet. Only the process that reads these inboxes may call this, before it reads them.

    Raises:
        Corrupt: the key was lost.
        Exhausted: there is no room; call again.
    """
    workers = [path for path in home.inbox("agent0").parent.glob("agent*") if _WORKER.fullmatch(path.name)]
    folders = [worker / place for worker in sorted(workers) for place in ("inbox", "claimed")]

    def seal_all(key: Key) -> None:
        for folder in folders:
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                if not name.startswith("."):
                    with suppress(InvalidInput, Corrupt, FileNotFoundError):  # the claim of the file quarantines it
                        _seal_file(folder / name, key)

    return KeyFile(home).create(at, entropy, seal_all)


def _seal_file(path: Path, key: Key) -> None:
    envelope = decode(unsealed(SystemFiles().read(path, LARGEST_FILE)))
    replace_whole(path, seal(encode(envelope), key))
