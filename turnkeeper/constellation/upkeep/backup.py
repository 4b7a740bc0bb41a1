"""Backup: a copy of a home that is taken while the daemons run, and in which nothing is lost or doubled.

The parts are copied in this order: the runner's store, the bus, then the runtime's two stores at one instant. So a fire
that the runner counts as accepted is in the copy of the bus, or its key is in the runtime's copy. A fire that only the
runtime knows is sent again and recognised as a duplicate. Each store is copied from a snapshot by SQLite.

Restore: a backup becomes the home. No process may run on the home, and the earlier home is moved aside, not removed.
"""

import hashlib
import json
import os
import re
import shutil
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from turnkeeper.bus.inbox import FOLDERS, OUTGOING
from turnkeeper.config.home import Home
from turnkeeper.constellation.inspect.condition import newer_stores
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.daemons import EVERY, SUPERVISOR
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, TurnkeeperError, machine_trouble
from turnkeeper.storage import identity, sqlite_files
from turnkeeper.storage.damage import trouble_of
from turnkeeper.storage.keys import KeyFile
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.times import rfc3339

VERSION = 1
MANIFEST = "manifest.json"
_PLAIN = (
    *("config.toml", ".env", "peers.toml", "state/workers", "state/audit-heads.jsonl", "state/peers.json"),
    *(
        "tools.json",
        "state/delivery.json",
        "state/hooks.json",
        "state/folders.json",
        "state/folders-seen.json",
        "state/calendar.json",
        "state/audit-seen-task-runner.json",
        "state/audit-seen-agent-runtime.json",
    ),
    *("state/store-made-schedules", "state/store-made-agent", "state/store-made-checkpoints"),
)
_TREES = (
    "categories",
    "tasks",
    "workspace",
    "keys",
    "state/peers",
    "state/notes",
    "state/crash-handoffs",
    "state/restart-archive",
)
_NAMED = re.compile(r"\d{8}T\d{6}Z", re.ASCII)


def back_up(home: Home, target: Path, at: datetime) -> dict[str, Any]:
    """Copy the home into `target`, which must be empty or missing. Return the manifest.

    The copy is complete as soon as `target` exists, because the backup is made beside `target` and then renamed.

    Raises:
        Conflict: `target` is not empty.
        Corrupt: the copy of a store cannot be read completely.
    """
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise Conflict("exists already", where=str(target), hint="name a new directory")
    fresh = target.with_name(f".{target.name}.partial-{os.getpid()}")
    _make_folder(fresh)
    try:
        copy = Home(root=fresh)
        (fresh / "state").mkdir(mode=0o700)
        # A key is removed after the last envelope that it sealed. The lock delays this until the keys and the bus are
        # copied.
        with KeyFile(home).locked(shared=True) if home.keys.is_dir() else nullcontext():
            _copy_files(home, fresh)
            _copy_stores(home, copy, home.schedules_db)
            _copy_bus(home, fresh)
        _copy_stores(home, copy, home.agent_db, home.checkpoints_db)
        manifest = {"version": VERSION, "at": rfc3339(at), "home": str(home.root), "files": digests(fresh)}
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _settle_tree(fresh)
        if target.is_dir():
            target.rmdir()
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return manifest


def _make_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Create a folder, mode 0700, and its parents. Raises InvalidInput or MachineTrouble."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=exist_ok)
    except OSError as error:
        place, hint = str(folder.parent), "name a directory elsewhere"
        what = f"no directory can be made in it: {error.strerror}"
        raise machine_trouble(error, place, ours=True) or InvalidInput(what, where=place, hint=hint) from error


def back_up_among(home: Home, folder: Path, at: datetime, *, keep: int) -> Path:
    """Make a backup in `folder` with the time as its name, and remove all backups except the newest `keep`.

    Return the backup. Keep entries with a name of a different form or without a manifest. Raises the same errors as
    :func:`back_up`.
    """
    _make_folder(folder, exist_ok=True)
    target = folder / at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    back_up(home, target, at)
    ours = [path for path in folder.iterdir() if _NAMED.fullmatch(path.name) and (path / MANIFEST).is_file()]
    for path in sorted(ours)[:-keep]:
        shutil.rmtree(path)
    return target


def check_backup(source: Path) -> dict[str, Any]:
    """Return the manifest of a backup if every file in the backup is unchanged.

    Raises:
        InvalidInput: it is not a backup, or was made by a newer version.
        Conflict: a store in it was written by a newer version.
        Corrupt: a file is missing, added or changed, or a store cannot be read completely.
    """
    try:
        manifest = json.loads((source / MANIFEST).read_bytes())
        version, files = manifest["version"], dict(manifest["files"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        hint = "name a directory that turnkeeper backup wrote"
        trouble = machine_trouble(error, str(source))
        raise trouble or InvalidInput("is not a backup", where=str(source), hint=hint) from error
    if version != VERSION:
        raise InvalidInput(f"is a backup of version {version}", where=str(source), hint="upgrade turnkeeper")
    found = digests(source)
    for name in sorted({*files, *found}):
        if files.get(name) != found.get(name):
            state = "missing" if name not in found else "not in the manifest" if name not in files else "changed"
            raise Corrupt(f"is {state}", where=str(source / name), hint="use another backup")
    for store in (source / "state").glob("*.db"):
        _refuse_unread(trouble_of(store), hint="use another backup")
    for newer in newer_stores(Home(root=source)):
        raise newer
    return {"version": version, "at": manifest.get("at"), "home": manifest.get("home"), "files": files}


def _refuse_unread(trouble: TurnkeeperError | None, *, hint: str) -> None:
    """Raise the fault of a store: Corrupt with a hint if the store is damaged, or the machine trouble."""
    if isinstance(trouble, Corrupt):
        raise Corrupt(trouble.what, where=trouble.where, hint=hint)
    if trouble is not None:
        raise trouble


def _copy_stores(home: Home, copy: Home, *paths: Path) -> None:
    with sqlite_files.snapshots(paths) as stores:
        for path, store in stores.items():
            target = copy.root / path.relative_to(home.root)
            sqlite_files.copy(store, target)
            _refuse_unread(trouble_of(target), hint=f"it is a copy of {path}: run turnkeeper doctor")


def _copy_bus(home: Home, fresh: Path) -> None:
    """Copy every envelope once, from its last folder. Read the folders in the order in which an envelope moves."""
    agents = home.root / "channels" / "agent"
    for agent in sorted(agents.iterdir()) if agents.is_dir() else ():
        target = fresh / "channels" / "agent" / agent.name
        copied: dict[str, Path] = {}
        for folder in (*FOLDERS, *OUTGOING):
            (target / folder).mkdir(mode=0o700, parents=True)
            source = agent / folder
            for name in sorted(os.listdir(source)) if source.is_dir() else ():
                if name.endswith(".tmp") or not _copy_file(source / name, target / folder / name):
                    continue
                if name in copied:
                    copied[name].unlink()
                copied[name] = target / folder / name


def _copy_files(home: Home, fresh: Path) -> None:
    for name in _PLAIN:
        _copy_file(home.root / name, fresh / name)
    for tree in _TREES:
        root = home.root / tree
        # By default, `os.walk` silently skips a folder that it cannot read.
        for folder, _, names in os.walk(root, onerror=_raise) if root.is_dir() and not root.is_symlink() else ():
            place = fresh / Path(folder).relative_to(home.root)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in names:
                _copy_file(Path(folder) / name, place / name)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # the file was removed meanwhile
        raise error


def _copy_file(source: Path, target: Path) -> bool:
    """Copy a plain file, mode 0600. Return False if the file was removed meanwhile, or is a link or a folder."""
    if source.is_symlink() or not source.is_file():
        return False
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        return False
    target.touch(mode=0o600)
    target.write_bytes(data)
    return True


def digests(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, by relative name. Return `link` for a link."""
    files = (path for path in root.rglob("*") if path.is_file() or path.is_symlink())
    names = {str(path.relative_to(root)): path for path in files}
    return {name: _digest(path) for name, path in sorted(names.items()) if name != MANIFEST}


def _digest(path: Path) -> str:
    if path.is_symlink():
        return "link"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settle_tree(root: Path) -> None:
    """Sync every file and folder, and make them readable only by the owner."""
    for folder, _, names in os.walk(root, onerror=_raise):
        for path, mode in (*((Path(folder) / name, 0o600) for name in names), (Path(folder), 0o700)):
            path.chmod(mode)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def restore(home: Home, source: Path, at: datetime) -> Path | None:
    """Make the backup `source` the home. Return the new place of the earlier home, or None if there was none.

    The runtime's store gets a new incarnation, so the runner asks again for the state of every open fire. No daemon
    starts on the home before a takeover, because the original may still run, and two homes would run the same tasks.

    Raises:
        Conflict: a process runs on the home.
        InvalidInput, Corrupt: as for :func:`check_backup`; nothing was changed.
    """
    manifest = check_backup(source)
    fresh = home.root.with_name(f".{home.root.name}.restoring-{os.getpid()}")
    try:
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(MANIFEST))
        fresh.chmod(0o700)
        restored = Home(root=fresh)
        restored.create()
        _renew(restored)
        says = {"at": rfc3339(at), "backup": str(source), "backup_at": str(manifest["at"])}
        says["original"] = str(manifest["home"] or "")
        markers.write_marker(markers.RESTORED.at(restored), says)
        return _swap(home, fresh, at)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(home: Home, fresh: Path, at: datetime) -> Path | None:
    if not os.path.lexists(home.root):
        fresh.rename(home.root)
        return None
    home.check()
    aside = home.root.with_name(f"{home.root.name}.before-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}")
    if os.path.lexists(aside):
        raise Conflict("exists already", where=str(aside), hint="try again in a second")
    with ExitStack() as held:
        if home.run.is_dir():
            for daemon in (SUPERVISOR, *EVERY):
                held.enter_context(ProcessLock(home, daemon.name))  # this raises Conflict if a process runs
        home.root.rename(aside)
        fresh.rename(home.root)
    for daemon in (SUPERVISOR, *EVERY):
        (aside / "state" / "run" / f"{daemon.name}.pid").unlink(missing_ok=True)
        (home.pid(daemon.name)).unlink(missing_ok=True)
    return aside


def go_on_without(home: Home, store: str) -> str:
    """Let the next start use a store with its fault, or a new store. Return the accepted fault. Raises Conflict."""
    with ExitStack() as held:
        for daemon in (SUPERVISOR, *EVERY):
            held.enter_context(ProcessLock(home, daemon.name))  # this raises Conflict if a process runs
        found = identity.accept(home, store)
        if store == home.agent_db.name:
            _renew(home)
        return found


def _renew(home: Home) -> None:
    """Let the runtime make a new incarnation at its next start."""
    with ExitStack() as opened:
        store = opened.enter_context(sqlite_files.reading(home.agent_db)) if home.agent_db.exists() else None
        is_ours = store is not None and sqlite_files.has_table(store, "meta")
    if is_ours:
        sqlite_files.change(home.agent_db, "DELETE FROM meta WHERE key = 'incarnation'")
