"""`turnkeeper backup` and `restore`."""

from pathlib import Path
from typing import Annotated

import typer

from constellation.install.backup import back_up, back_up_among
from constellation.install.backup import restore as put_back
from turnkeeper.clock import SystemClock
from turnkeeper.console import home, note
from turnkeeper.console import status as spinner

_Folder = Annotated[Path, typer.Argument(help="A directory.", metavar="DIR")]


def backup(
    folder: _Folder,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Make it in DIR, named by the time; keep the newest so many.")
    ] = None,
) -> None:
    """Copy the home into a new directory while everything runs: stores, envelopes, settings, keys; not the logs.

    Example: turnkeeper backup ~/backups/monday
    """
    place = home()
    place.check()
    if keep is not None:
        with spinner("copying"):
            target = back_up_among(place, folder.absolute(), SystemClock().now(), keep=keep)
        note(f"{target} is made; it holds your keys")
        return
    with spinner("copying"):
        manifest = back_up(place, folder.absolute(), SystemClock().now())
    note(f"{folder}: {len(manifest['files'])} files, as of {manifest['at']}; it holds your keys")


def restore(folder: _Folder) -> None:
    """Make a backup the home again. Refused while anything runs; what was there is moved aside, not removed.

    Every file is held against the backup's manifest, and every store is read through, before anything is touched.

    Example: turnkeeper down && turnkeeper restore ~/backups/monday && turnkeeper up
    """
    place = home()
    with spinner("restoring"):
        aside = put_back(place, folder.absolute(), SystemClock().now())
    note(f"{place.root} is restored; start it with: turnkeeper up")
    if aside is not None:
        note(f"what was there before lies in {aside}")
