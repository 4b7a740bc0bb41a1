"""Performing the story in a home of its own, and clearing up after it."""

import shutil
import tempfile
from pathlib import Path

from constellation.demo.stage import Stage
from constellation.demo.story import play
from constellation.supervisor.up_down import bring_down
from turnkeeper.config.home import Home
from turnkeeper.console import note


def perform(*, keep: bool) -> bool:
    """Play the story in a throwaway home; return whether every claim held."""
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-"))
    place = Home(root=folder / "home")
    stage = Stage(place)
    try:
        play(stage, place)
    finally:
        bring_down(place, force=True)
        if keep:
            note(f"kept: TURNKEEPER_HOME={place.root}")
        else:
            shutil.rmtree(folder)
    stage.act("Claims")
    return stage.recall()
