"""`turnkeeper demo`."""

from importlib import import_module
from typing import Annotated

import typer

from turnkeeper.errors import EXIT_FAILURE


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the throwaway home, to look around in it.")] = False,
) -> None:
    """Play the whole product as a story, in a throwaway home and about a minute, checking every claim.

    Nothing outside that home is read or written. Exits with 1 if a claim does not hold.

    Example: turnkeeper demo
    """
    if not import_module("constellation.demo.perform").perform(keep=keep):
        raise typer.Exit(EXIT_FAILURE)
