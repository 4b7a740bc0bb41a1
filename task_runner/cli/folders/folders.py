"""Watched folders: their names in `state/folders.json`, the known state of their files, and the watch in the runner.

The runner checks the folders with each heartbeat. A file counts after two checks found it unchanged, so that no
half-written file counts. The runner emits the file's event before it records the file as known. After `kill -9`, it
emits the event again under the same id, which has no effect. It follows no link and opens only regular files.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter

from task_runner.model.events import check_emitted_name
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.files import Entries, replace_whole
from turnkeeper.v1 import schedules_pb2 as wire

MOST_FILES, DEEPEST, LARGEST = 10_000, 20, 1 << 30
LONGEST_NAME = 32
MOST_AT_ONCE = 100  # events of one check
SEEN = "state/folders-seen.json"
_CHUNK = 1 << 20
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")  # characters of a name
_CHANGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})  # the file was deleted or replaced
_GONE = "the folder cannot be read"
_FULL = f"the folder has more than {MOST_FILES} files; the others are not watched"


class Watched(BaseModel):
    """A folder, and the name of the event that its files emit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    event: str


class Stamp(NamedTuple):
    """The size, time and inode of a file, which differ after the file changed."""

    size: int
    mtime_ns: int
    inode: int


class Known(NamedTuple):
    """A file whose event was emitted, or that was there before. The digest is empty if it was not read."""

    stamp: Stamp
    digest: str


FILE = Entries[Watched]("folders", "watched folder", "turnkeeper folders", TypeAdapter(dict[str, Watched]))
Seen = dict[str, dict[str, Known]]


def begin(home: Home, name: str, entry: Watched, known: Mapping[str, Stamp]) -> None:
    """Add a folder. Its present files emit no event. Raises InvalidInput or Conflict."""
    if not name[:1].isalpha() or len(name) > LONGEST_NAME or not _LETTERS.issuperset(name):
        raise InvalidInput(f"{name[:40]!r} is not a folder's name", where="NAME", hint="use a-z, 0-9 and -")
    check_emitted_name(entry.event)
    with _writing(home) as seen:
        if name not in FILE.read(home):  # otherwise `FILE.add` refuses the name
            write_seen(home, seen | {name: {path: Known(one, "") for path, one in known.items()}})
        FILE.add(home, name, entry)


def scan(entry: Watched) -> tuple[dict[str, Stamp], str]:
    """Return the regular files of a folder by their paths in it, and why some files are missing; empty if none is."""
    found: dict[str, Stamp] = {}
    try:
        for path, stamp in _walk(entry.path):
            if len(found) == MOST_FILES:
                return found, _FULL
            found[path] = stamp
    except OSError as error:
        return {}, f"{_GONE}: {error.strerror}"
    return found, ""


def digest_of(entry: Watched, path: str, stamp: Stamp) -> str:
    """Return the SHA-256 of a file. Empty if the file is not regular, is too large, or differs from its stamp.

    Each folder of its path is opened without following a link, so that another program cannot redirect the path.
    """
    *folders, name = path.split("/")
    opened = [os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)]
    try:
        for folder in folders:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened.append(os.open(folder, flags, dir_fd=opened[-1]))
        opened.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened[-1]))
        about, digest = os.fstat(opened[-1]), hashlib.sha256()
        if not stat.S_ISREG(about.st_mode) or _stamp(about) != stamp or stamp.size > LARGEST:
            return ""
        while data := os.read(opened[-1], _CHUNK):
            digest.update(data)
        return digest.hexdigest() if _stamp(os.fstat(opened[-1])) == stamp else ""
    finally:
        for descriptor in opened:
            os.close(descriptor)


def event_of(name: str, entry: Watched, path: str, known: Known) -> wire.EmitEventRequest:
    """Return the event of a file. Its id is the same each time for the same folder, path, content and change."""
    key = hashlib.sha256(f"{name}\0{path}\0{known.digest}\0{known.stamp.mtime_ns}".encode("utf-8", "surrogateescape"))
    data = {"path": f"{entry.path}/{path}", "name": path, "size": known.stamp.size, "sha256": known.digest}
    return wire.EmitEventRequest(
        name=entry.event, data_json=json.dumps(data | {"folder": name}), event_id=f"{name}-{key.hexdigest()[:30]}"
    )


def read_seen(home: Home) -> Seen:
    """Return the known files of all folders. Empty if none is recorded."""
    try:
        said = json.loads((home.root / SEEN).read_bytes())
        return {
            name: {path: Known(Stamp(*map(int, one[:3])), str(one[3])) for path, one in files.items()}
            for name, files in said.items()
        }
    except (OSError, ValueError, TypeError, IndexError, AttributeError):
        return {}


def write_seen(home: Home, seen: Seen) -> None:
    said = {name: {path: (*one.stamp, one.digest) for path, one in files.items()} for name, files in seen.items()}
    replace_whole(home.root / SEEN, json.dumps(said).encode())


def forget(known: dict[str, Known], present: Collection[str]) -> None:
    """Remove the deleted files, if more files are known than a folder may have.

    Until then they stay known, so that a file that returns with the same content emits no event.
    """
    if len(known) > MOST_FILES:
        for path in [path for path in known if path not in present]:
            del known[path]


@contextlib.contextmanager
def _writing(home: Home) -> Iterator[Seen]:
    """Yield the known files, and keep other processes from writing them meanwhile."""
    lock = os.open(home.run / "folders-seen.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read_seen(home)
    finally:
        os.close(lock)


def keep_seen(home: Home, before: Seen, looked: Seen) -> None:
    """Write the result of a check, except for folders whose known files another process wrote since the check began."""
    with _writing(home) as now:
        found = {name: looked if now.get(name) == before.get(name) else now for name in FILE.read(home)}
        write_seen(home, {name: of[name] for name, of in found.items() if name in of})


class Watch:
    """An observer that the runner calls with each heartbeat to check the folders."""

    def __init__(self, home: Home, runner: Any, _settings: object, _clock: object) -> None:
        self._home, self._runner, self._failpoints = home, runner, Failpoints(os.environ)
        self._settling = dict[tuple[str, str], Stamp]()
        self._skipped = dict[tuple[str, str], Stamp]()  # unreadable files, each of which is logged once
        self._problems = dict[str, str]()

    async def look(self) -> None:
        """Emit the events of new and changed files, then record the files as known."""
        if not self._runner.works or not (watched := FILE.read(self._home)):
            return
        before = await asyncio.to_thread(read_seen, self._home)
        seen = {name: dict(files) for name, files in before.items()}
        fresh = await asyncio.to_thread(self._fresh, watched, seen)
        for name, path, known in fresh:
            if known.digest != seen[name].get(path, known._replace(digest="")).digest:
                await self._emit(name, watched[name], path, known)
            seen[name][path] = known
        if seen != before or seen.keys() - watched.keys():
            await asyncio.to_thread(keep_seen, self._home, before, seen)

    async def _emit(self, name: str, entry: Watched, path: str, known: Known) -> None:
        """Emit the event of a file. If the event is refused, log the refusal; the file counts as known."""
        try:
            await self._runner.service.emit_event(event_of(name, entry, path, known))
        except InvalidInput as error:
            self._skip(name, path, str(error))
        self._failpoints.reach("runner.file_emitted")

    def _fresh(self, watched: Mapping[str, Watched], seen: Seen) -> list[tuple[str, str, Known]]:
        """Return the files that changed since they were recorded and stayed unchanged since the last check."""
        fresh = list[tuple[str, str, Known]]()
        settling, skipped = dict[tuple[str, str], Stamp](), dict[tuple[str, str], Stamp]()
        for name, entry in watched.items():
            present, problem = scan(entry)
            self._report(name, problem)
            _remember(seen, name, present, problem)
            for path, stamp in present.items():
                if path in seen[name] and seen[name][path].stamp == stamp:
                    continue
                if self._settling.get((name, path)) != stamp or len(fresh) == MOST_AT_ONCE:
                    settling[name, path] = stamp
                    continue
                digest, why = _digest(entry, path, stamp)
                if digest:
                    fresh.append((name, path, Known(stamp, digest)))
                elif why:
                    settling[name, path] = skipped[name, path] = stamp
                    if self._skipped.get((name, path)) != stamp:
                        self._skip(name, path, why)
        self._settling, self._skipped = settling, skipped
        return fresh

    def _skip(self, name: str, path: str, why: str) -> None:
        self._runner.log.emit("folder.unreadable", name=name, reason=f"{path[-40:]!r}: {why}"[:300])

    def _report(self, name: str, problem: str) -> None:
        """Log the beginning of a folder's problem once, and its end."""
        if self._problems.get(name, "") != problem:
            self._problems[name] = problem
            self._runner.log.emit(
                "folder.unreadable" if problem else "folder.readable", name=name, reason=problem[:300]
            )


def _remember(seen: Seen, name: str, present: Mapping[str, Stamp], problem: str) -> None:
    """If the known files of a folder were lost, record its present files as known. Forget deleted files."""
    if name not in seen and (present or not problem):
        seen[name] = {path: Known(stamp, "") for path, stamp in present.items()}
    if not problem:
        forget(seen[name], present)


def _digest(entry: Watched, path: str, stamp: Stamp) -> tuple[str, str]:
    """Return the digest of a file, and why the file cannot be read; both are empty if the file is being changed."""
    if stamp.size > LARGEST:
        return "", f"is larger than {LARGEST} bytes"
    try:
        return digest_of(entry, path, stamp), ""
    except OSError as error:
        return "", "" if error.errno in _CHANGED else f"cannot be read: {error.strerror}"


def _walk(top: str) -> Iterator[tuple[str, Stamp]]:
    """Yield the regular files below a folder. Leave out hidden names; follow no link."""
    os.close(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))  # raises if it is not a folder
    for at, folders, names, place in os.fwalk(top, follow_symlinks=False):
        inner = os.path.relpath(at, top)
        is_deep = inner.count("/") >= DEEPEST
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not is_deep)
        for name in sorted(name for name in names if not name.startswith(".")):
            try:
                about = os.stat(name, dir_fd=place, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode):
                yield name if inner == "." else f"{inner}/{name}", _stamp(about)


def _stamp(about: os.stat_result) -> Stamp:
    return Stamp(about.st_size, about.st_mtime_ns, about.st_ino)
