"""`turnkeeper demo`."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from constellation.demo.stage import Stage
from constellation.demo.story import play
from constellation.processes import DAEMONS, stop
from turnkeeper.console import note
from turnkeeper.errors import EXIT_FAILURE
from turnkeeper.home import Home


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the throwaway home, to look around in it.")] = False,
) -> None:
    """Play the whole product as a story, in a throwaway home and about a minute, checking every claim.

    Nothing outside that home is read or written. Exits with 1 if a claim does not hold.

    Example: turnkeeper demo
    """
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-"))
    place = Home(root=folder / "home")
    stage = Stage(place)
    try:
        play(stage, place)
    finally:
        for daemon in reversed(DAEMONS):
            stop(place, daemon, force=True)
        if keep:
            note(f"kept: TURNKEEPER_HOME={place.root}")
        else:
            shutil.rmtree(folder)
    stage.act("Claims")
    if not stage.recall():
        raise typer.Exit(EXIT_FAILURE)
