"""`turnkeeper backup` and `turnkeeper restore`. PostgreSQL's tools back up and restore a shared database."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.surfaces import required
from turnkeeper.console import home, named_home, note
from turnkeeper.console import status as spinner
from turnkeeper.constellation.upkeep.backup import back_up, back_up_among, go_on_without
from turnkeeper.constellation.upkeep.backup import restore as put_back
from turnkeeper.errors import InvalidInput
from turnkeeper.storage.files import machine_errors

_Folder = Annotated[Path, typer.Argument(help="The directory of the backup.", metavar="DIR")]


def backup(
    folder: _Folder,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Create it inside DIR, named after the time; keep only the newest N.")
    ] = None,
) -> None:
    """Copy the home into a new directory, also while the daemons run: stores, envelopes, settings, keys; no logs.

    Example: turnkeeper backup ~/backups/monday
    """
    place = home()
    if keep is not None:
        with spinner("copying"), machine_errors(folder):
            target = back_up_among(place, folder.absolute(), SystemClock().now(), keep=keep)
        note(f"wrote {target}; it contains your keys")
        _note_the_database(place)
        return
    with spinner("copying"), machine_errors(folder):
        manifest = back_up(place, folder.absolute(), SystemClock().now())
    note(f"{folder}: {len(manifest['files'])} files, as of {manifest['at']}; it contains your keys")
    _note_the_database(place)


def _note_the_database(place: Home) -> None:
    """Print that a shared database is not part of the backup."""
    if url := load_settings(place).store.shared_url:
        note("tasks, turns and checkpoints are in the database, not in this backup: back it up with PostgreSQL's tools")
        copy, put_back = required("copies of a database", url)
        note(f"  {copy}")
        note("(the password: from PGPASSWORD in the environment, or ~/.pgpass; PostgreSQL's programs do not read .env)")
        note("to restore it, stop everything on each machine, then restore it and mark it as restored:")
        note(f"  {put_back}")
        note("  turnkeeper restore --mark")


def restore(
    folder: Annotated[Path | None, typer.Argument(help="The directory of the backup.", metavar="[DIR]")] = None,
    mark: Annotated[
        bool, typer.Option(help="Mark the shared database as restored, after PostgreSQL's tools restored it.")
    ] = False,
    lost: Annotated[
        str, typer.Option(help="Accept the loss: start with this store as it is, or with a new one.", metavar="STORE")
    ] = "",
) -> None:
    """Restore a backup as the home. The command is refused while a process runs.

    The present home is moved aside, not removed. Before anything changes, every file is compared with the backup's
    manifest and every store is read completely. Nothing runs on the restored home until `turnkeeper up --takeover`.

    With --mark and without DIR: run it once, on one machine, after a shared database was restored to an earlier time
    and before anything is started. This is refused while any machine uses the database.

    With --lost and without DIR: the next start uses schedules.db, agent.db or checkpoints.db as it is in the home's
    state folder, or a new one if it is missing. A record in the home's history names the loss.

    Example: turnkeeper down && turnkeeper restore ~/backups/monday && turnkeeper up --takeover
    """
    place = named_home()
    if lost:
        _go_on_without(place, lost, alone=folder is None and not mark)
        return
    if mark or folder is None:
        _mark_restored(place, folder, mark=mark)
        return
    with spinner("restoring"):
        aside = put_back(place, folder.absolute(), SystemClock().now())
    note(f"{place.root} is restored, and nothing runs in it: the original of the backup may still run elsewhere,")
    note("and two homes would run the same tasks. Make sure that it does not, then run: turnkeeper up --takeover")
    if aside is not None:
        note(f"the home from before is now in {aside}")


def _mark_restored(place: Home, folder: Path | None, *, mark: bool) -> None:
    if not mark or folder is not None:
        raise InvalidInput("give a directory, --mark or --lost", where="DIR", hint="turnkeeper restore --help")
    place.check()
    made = import_module("turnkeeper.constellation.upkeep.migrate").mark_restored(place)
    record_act(place.logs, "turnkeeper", "turnkeeper restore --mark", made, SystemClock())
    note("the database is marked as restored to an earlier time; now, on each machine: turnkeeper up")
    note("tasks catch up by their policies; fires and turns from after that time are lost, and may run again")


def _go_on_without(place: Home, store: str, *, alone: bool) -> None:
    if not alone:
        raise InvalidInput("is for a home without a backup", where="--lost", hint="give neither a directory nor --mark")
    place.check()
    found = go_on_without(place, store)
    record_act(place.logs, "turnkeeper", "turnkeeper restore --lost", f"{store}: {found}", SystemClock())
    note(f"{store} {found}")
    note("the next start uses the store as it is, or a new one, and records that: turnkeeper up")
