"""Credentials of the gateway: keys of clients, one-time login tokens for browsers, and the sessions after a login.

`keys/web.json` contains the secret that signs login tokens, and the name, scope and digest of each client's key. The
key itself is shown only once, when it is made. A token is signed. It is valid once, for a minute, and only for the
process that ran when it was made. Sessions survive the process: `state/run/web-sessions.json` contains the digest of
each session's cookie, so the file cannot log a browser in.
"""

import contextlib
import hashlib
import hmac
import json
import re
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import IntEnum
from pathlib import Path

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Corrupt, Exhausted, InvalidInput, NotFound
from turnkeeper.storage.files import SystemFiles, replace_whole
from turnkeeper.storage.keys import KeyFile
from turnkeeper.times import rfc3339

VERSION = 1
MOST_KEYS = 100
MOST_SESSIONS = 64
TOKEN_S = 60.0
SESSION_S = 86_400.0  # of a session without a request
SAVE_S = 600.0  # between two writes of the times of requests
PLAIN = "p"  # marks a token that is also valid at 127.0.0.1
_LARGEST_BYTES = 1 << 18
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
KEY = re.compile(r"tk-([0-9a-f]{12})-([0-9a-f]{64})")
_TOKEN = re.compile(r"([0-9]{1,17})\.([np])\.([0-9a-f]{32})\.([0-9a-f]{64})")


class Scope(IntEnum):
    """The permissions of a key; each scope includes the previous ones."""

    READ = 1  # view
    WORK = 2  # send messages, cancel turns, create and change tasks
    DECIDE = 3  # answer approvals and review what agents propose


@dataclass(frozen=True, kw_only=True)
class ClientKey:
    """A client's key, without its secret.

    Attributes:
        scope: read, work or decide.
        digest: SHA-256 of the key, in hexadecimal.
        created_at: RFC 3339.
    """

    id: str
    name: str
    scope: str
    digest: str
    created_at: str

    @property
    def allows(self) -> Scope:
        return Scope[self.scope.upper()]


@dataclass(frozen=True, kw_only=True)
class _File:
    login: str
    keys: tuple[ClientKey, ...] = ()


class Keys:
    """The gateway's key file, read again after each change."""

    def __init__(self, home: Home) -> None:
        self.path, self.sessions = home.keys / "web.json", home.run / "web-sessions.json"
        self._lock = KeyFile(home)
        self._read_at: tuple[int, ...] = ()
        self._held = _File(login="")

    def create(self, entropy: Entropy) -> None:
        """Create the file if it does not exist. Raises Corrupt, Exhausted."""
        with self._lock.locked():
            if not self.path.exists():
                self._write(_File(login=entropy.hex(64)))

    def login_secret(self) -> str:
        """Return the secret that signs login tokens. Raises NotFound if the gateway never ran; Corrupt."""
        return self._read().login

    def all(self) -> Sequence[ClientKey]:
        """Return the keys, oldest first. Return none if the gateway never ran. Raises Corrupt."""
        return self._read().keys if self.path.exists() else ()

    def find(self, text: str) -> ClientKey | None:
        """Return the key that matches a client's text; None if none does. Compare in constant time. Raises Corrupt."""
        found = KEY.fullmatch(text)
        digest = _digest(text)
        known = [key for key in self.all() if found and key.id == found[1]]
        return next((key for key in known if hmac.compare_digest(key.digest, digest)), None)

    def make(self, name: str, scope: str, at: datetime, entropy: Entropy) -> tuple[ClientKey, str]:
        """Make a key. Return it with its text, which the client sends and which is not stored.

        Raises:
            InvalidInput: the name or the scope is not valid.
            Conflict: a key with that name exists, or there are too many keys.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name[:40]!r} is not a client's name", where="NAME", hint="use A-Z, a-z, 0-9, . _ -")
        if scope.upper() not in Scope.__members__:
            raise InvalidInput(f"no scope {scope[:40]!r}", where="--scope", hint="use one of: read, work, decide")
        self.create(entropy)
        with self._lock.locked():
            held = self._read()
            if any(key.name == name for key in held.keys):
                raise Conflict(f"a key named {name} exists", hint=f"turnkeeper web keys revoke {name}")
            if len(held.keys) >= MOST_KEYS:
                raise Conflict(f"there are {MOST_KEYS} keys", hint="revoke one: turnkeeper web keys revoke NAME")
            id_ = entropy.hex(12)
            text = f"tk-{id_}-{entropy.hex(64)}"
            key = ClientKey(id=id_, name=name, scope=scope.lower(), digest=_digest(text), created_at=rfc3339(at))
            self._write(replace(held, keys=(*held.keys, key)))
        return key, text

    def revoke(self, name: str) -> ClientKey:
        """Remove the key with this name or id. From now on, its holder is refused. Raises NotFound, Corrupt."""
        with self._lock.locked():
            held = self._read()
            found = next((key for key in held.keys if name in {key.name, key.id}), None)
            if found is None:
                raise NotFound(f"no key {name[:60]!r}", hint="see: turnkeeper web keys list")
            self._write(replace(held, keys=tuple(key for key in held.keys if key != found)))
        return found

    def _read(self) -> _File:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            hint = "it is made when the gateway first starts: turnkeeper web serve"
            raise NotFound("there is no key file", where=str(self.path), hint=hint) from None
        read_at = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid)
        if read_at != self._read_at:
            self._held, self._read_at = _parsed(self.path), read_at
        return self._held

    def _write(self, file: _File) -> None:
        text = json.dumps({"v": VERSION, "login": file.login, "keys": [asdict(key) for key in file.keys]}, indent=1)
        replace_whole(self.path, text.encode())
        self._read_at = ()


def listed(home: Home) -> list[dict[str, str | None]]:
    """Return rows for `turnkeeper keys list`: the digest of the secret for logins, and the key of each client."""
    keys = Keys(home)
    login = [("web", _digest(keys.login_secret())[:12], None)] if keys.path.exists() else []
    found = [*login, *((f"web: {key.name}", key.id, key.created_at) for key in keys.all())]
    return [{"purpose": what, "key": id_, "created_at": at, "retired_at": None} for what, id_, at in found]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _parsed(path: Path) -> _File:
    data = SystemFiles().read(path, _LARGEST_BYTES)
    if stat.S_IMODE(path.lstat().st_mode) & 0o077:
        raise Corrupt("can be read by other users", where=str(path), hint=f"run: chmod 600 {path}")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        says = json.loads(data)
        file = _File(login=says["login"], keys=tuple(ClientKey(**item) for item in says["keys"]))
        if says["v"] == VERSION and len(bytes.fromhex(file.login)) == 32 and all(key.allows for key in file.keys):
            return file
    raise Corrupt("is not a key file of this version", where=str(path), hint="remove it, and make the keys again")


def login_page(home: Home) -> Path:
    """Return the path of the file that passes a token to a browser. The file exists from `web open` until the login."""
    return home.run / "web-login.html"


def sign_token(secret: str, at: datetime, entropy: Entropy, *, plain_host: bool = False) -> str:
    """Return a token that logs a browser in once, within a minute of `at`."""
    said = f"{int(at.timestamp() * 1000)}.{PLAIN if plain_host else 'n'}.{entropy.hex(32)}"
    return f"{said}.{_mac(secret, said)}"


def _mac(secret: str, said: str) -> str:
    return hmac.digest(bytes.fromhex(secret), b"turnkeeper login 1\0" + said.encode(), "sha256").hex()


@dataclass(kw_only=True)
class Note:
    """The result of a change, for the next page that is shown.

    Attributes:
        tone: good, warn, bad, or unsure if the daemon did not answer.
        path: the page to which the change leads, which shows the note; empty while every page shows it.
        until: when that page stops showing it, on the monotonic clock.
        undo: the path to which an undo button posts; empty if there is no such button.
        settle: finds out whether an unsure change was made, and updates the note; returns False while it is unknown.
    """

    tone: str
    text: str
    settle: "Settle | None" = None
    path: str = ""
    until: float = float("inf")
    undo: str = ""


Settle = Callable[[Note], Awaitable[bool]]


@dataclass(kw_only=True)
class Session:
    """A browser that is logged in.

    Attributes:
        id: the digest of its cookie.
        page_key: a secret that its pages send with every change, and that another site cannot know.
        seen_at: the time of its last request, in seconds since the epoch.
        note: the result of the last change, for its next page.
    """

    id: str
    page_key: str
    seen_at: float
    note: Note | None = None


class Sessions:
    def __init__(self, keys: Keys, clock: Clock, entropy: Entropy) -> None:
        self._keys, self._clock, self._entropy = keys, clock, entropy
        self._since_ms = int(clock.now().timestamp() * 1000)
        self._taken: dict[str, int] = {}
        self._open = {session.id: session for session in _kept(keys.sessions)}
        self._saved_at = 0.0

    def log_in(self, token: str, *, plain_host: bool) -> str | None:
        """Open a session for a token. Return its cookie. None if the token is invalid, used or for another host."""
        found = _TOKEN.fullmatch(token)
        if found is None or (plain_host and found[2] != PLAIN):
            return None
        said, now_ms = token.rpartition(".")[0], int(self._clock.now().timestamp() * 1000)
        if not hmac.compare_digest(_mac(self._keys.login_secret(), said), found[4]):
            return None
        at = int(found[1])
        if not (self._since_ms <= at <= now_ms + 1000 and now_ms - at <= TOKEN_S * 1000) or found[3] in self._taken:
            return None
        self._taken = {nonce: when for nonce, when in self._taken.items() if now_ms - when <= TOKEN_S * 2000}
        self._taken[found[3]] = at
        while len(self._open) >= MOST_SESSIONS:
            del self._open[min(self._open, key=lambda id_: self._open[id_].seen_at)]
        cookie, seen_at = self._entropy.hex(64), self._clock.now().timestamp()
        session = Session(id=_digest(cookie), page_key=self._entropy.hex(32), seen_at=seen_at)
        self._open[session.id] = session
        self._save()
        return cookie

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, or None if it is not open."""
        session = self._open.get(_digest(cookie))
        if session is None:
            return None
        now = self._clock.now().timestamp()
        if abs(now - session.seen_at) > SESSION_S:  # also if the clock was set back
            self.log_out(session)
            return None
        session.seen_at = now
        if abs(now - self._saved_at) > SAVE_S:
            self._save()
        return session

    def is_open(self, session: Session) -> bool:
        return session.id in self._open

    def log_out(self, session: Session) -> None:
        self._open.pop(session.id, None)
        self._save()

    def _save(self) -> None:
        """Store the sessions for the next process. If the disk is full, browsers must log in again after a restart."""
        self._saved_at = self._clock.now().timestamp()
        held = [[one.id, one.page_key, one.seen_at] for one in self._open.values()]
        with contextlib.suppress(Exhausted, OSError):
            replace_whole(self._keys.sessions, json.dumps({"v": VERSION, "sessions": held}).encode())


def _kept(path: Path) -> list[Session]:
    """Return the sessions that an earlier process stored. Return none if the file is missing or damaged."""
    with contextlib.suppress(FileNotFoundError, Corrupt, Exhausted, ValueError, KeyError, TypeError):
        said = json.loads(SystemFiles().read(path, _LARGEST_BYTES))
        return [Session(id=id_, page_key=page_key, seen_at=float(at)) for id_, page_key, at in said["sessions"]]
    return []
