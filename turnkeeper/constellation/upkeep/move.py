"""`turnkeeper move`: moves the home to another place, where every command finds it.

A file in the old place points to the new place. So a variable, service or program that uses the old place still works,
and no command creates a second home there by mistake.
"""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import MOVED, Home
from turnkeeper.config.settings import load_settings
from turnkeeper.console import home_places, note
from turnkeeper.console import status as spinner
from turnkeeper.constellation.supervisor import daemons, markers, systemd, terminals
from turnkeeper.constellation.supervisor.up_down import bring_down, bring_up, prepare
from turnkeeper.constellation.supervisor.watchdog import read_orders
from turnkeeper.constellation.upkeep.backup import digests
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, NotFound
from turnkeeper.storage.files import machine_errors, replace_whole
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.times import rfc3339

_SAYS = "This file points the commands of Turnkeeper to that place. Without it they look for a home here.\n"


def move(folder: Annotated[Path, typer.Argument(help="The new directory.", metavar="DIR")]) -> None:
    """Move the home to another directory, also on another disk: stop it, move it, and start it again if it ran.

    Every command then finds the home there. A small file in the old place points to the new place, so that
    $TURNKEEPER_HOME, services and scripts that name the old place still work.

    If you moved the directory yourself, run the same command afterwards.

    Example: turnkeeper move /data/turnkeeper
    """
    place, *passed = home_places()
    old, new = Home(root=place), Home(root=Path(os.path.abspath(folder.expanduser())))  # noqa: PTH100  keeps links
    if place.exists():
        old.check()
        _check_target(old, new, passed)
        _move_and_go_on(old, new, passed)
    else:
        remember(old, new, passed)
    named = (passed or [place])[-1]
    note(f"the home is {new.root}")
    if named != new.root:
        note(f"{named} is now a small file that points every command there, so nothing else has to change")
        note(f"to do without the file, name {new.root} in TURNKEEPER_HOME, services and scripts, and delete it")


def _check_target(old: Home, new: Home, passed: list[Path]) -> None:
    """Raise InvalidInput or Conflict if the home cannot move there."""
    new.check_sockets()
    if new == old:
        raise Conflict("the home is there already", where=str(new.root))
    if "\n" in str(new.root) or new.root.is_relative_to(old.root):
        raise InvalidInput("is inside the home itself", where=str(new.root), hint="name a directory outside it")
    if old.root.is_mount() or new.root.is_mount():
        mount = old.root if old.root.is_mount() else new.root
        hint = "use turnkeeper backup and turnkeeper restore" if mount == old.root else "name a directory in it"
        raise InvalidInput("is a mount point, and cannot be renamed", where=str(mount), hint=hint)
    is_free = not os.path.lexists(new.root) or (new.root.is_dir() and not any(new.root.iterdir()))
    if not is_free and new.root not in passed:
        raise Conflict("exists already", where=str(new.root), hint="name a new directory")


def _move_and_go_on(old: Home, new: Home, passed: list[Path]) -> None:
    """Stop the processes, move the home, and start them again."""
    environ = daemons.environ_of(old, daemons.SUPERVISOR)
    runs, readers = read_orders(old) is not None, terminals.read_now(old)
    service = f"turnkeeper{systemd.tag_of(old, os.environ)}.service"
    with spinner("stopping"):
        ended = bring_down(old)
    for name, how in ended.items():
        if how not in {"stopped", "was not running"}:
            note(f"{name} {how}")
    with spinner("moving"), machine_errors(new.root):
        aside = relocate(old, new, passed)
    if aside is not None:
        note(f"it was copied to another disk and compared; the copy from before can be removed: {aside}")
    for agent in readers:
        note(f"start the reader of {agent} again: the running one still reads the old place")
    if "NOTIFY_SOCKET" in (environ or {}):
        note(f"nothing runs; start it again by its service: systemctl --user start {service}")
    elif runs:
        with spinner("starting"):
            prepare(new, load_settings(new))
            bring_up(new, environ or os.environ)
        note("everything runs again")


def relocate(old: Home, new: Home, passed: list[Path]) -> Path | None:
    """Move a home on which no process runs. Leave a pointer file in the old place, and update earlier pointer files.

    Return the new place of the old home if the home had to be copied. No process can start on the old home, and none on
    the copy before the last pointer is written.

    Raises:
        Conflict: a process runs on it.
        Corrupt: the copy differs. Nothing was moved.
    """
    new.root.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        for daemon in (daemons.SUPERVISOR, *daemons.EVERY) if old.run.is_dir() else ():
            held.enter_context(ProcessLock(old, daemon.name))
        aside = _rename_or_copy(old, new, passed)
    for daemon in (daemons.SUPERVISOR, *daemons.EVERY):
        new.pid(daemon.name).unlink(missing_ok=True)
    remember(old, new, [*passed, old.root])
    return aside


def _rename_or_copy(old: Home, new: Home, passed: list[Path]) -> Path | None:
    if old.root.parent.stat().st_dev == new.root.parent.stat().st_dev:
        _make_room(new.root, passed)
        old.root.rename(new.root)
        return None
    now = SystemClock().now()
    fresh = new.root.with_name(f".{new.root.name}.moving-{os.getpid()}")
    aside = old.root.with_name(f"{old.root.name}.before-{now:%Y%m%dT%H%M%SZ}")
    says = {"at": rfc3339(now), "backup": str(old.root), "original": str(old.root), "backup_at": rfc3339(now)}
    try:
        shutil.copytree(old.root, fresh, symlinks=True, ignore=_sockets)
        if digests(fresh) != digests(old.root):
            raise Corrupt("the copy differs", where=str(new.root), hint="check the disk")
        markers.write_marker(markers.RESTORED.at(Home(root=fresh)), says)
        os.sync()
        _make_room(new.root, passed)
        fresh.rename(new.root)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    old.root.rename(aside)
    markers.write_marker(markers.RESTORED.at(Home(root=aside)), says)
    return aside


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]


def _make_room(target: Path, passed: list[Path]) -> None:
    if target in passed:
        target.unlink()
    elif target.is_dir():
        target.rmdir()


def remember(old: Home, new: Home, passed: list[Path]) -> None:
    """Write a pointer from the home's old place to the new one. Raises NotFound if no home is there.

    Args:
        old: the old place, now empty.
        new: the new place.
        passed: the files that pointed to `old`; if there are none, a file is written at `old`.
    """
    if not new.run.parent.is_dir():
        hint = "name the directory that now holds the home"
        raise NotFound(f"no home is there, and none in {new.root}", where=str(old.root), hint=hint)
    new.check()
    for path in passed or [old.root]:
        if path != new.root:
            replace_whole(path, f"{MOVED}{new.root}\n{_SAYS}".encode())
    says = markers.read_marker(markers.RESTORED.at(new))
    if isinstance(says, dict) and says.get("backup") == str(old.root):
        markers.clear_marker(markers.RESTORED.at(new))
