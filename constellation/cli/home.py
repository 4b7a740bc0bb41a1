"""`turnkeeper init`."""

from typing import Annotated

import typer

from constellation.setup import initialise
from turnkeeper.console import home, note


def init(
    example: Annotated[
        bool, typer.Option("--example", help="Also write an example workspace and two example tasks.")
    ] = False,
) -> None:
    """Make the state directory, with a config.toml that explains itself.

    What is there already is left as it is, so that running it twice does no harm.

    Example: turnkeeper init --example
    """
    place = home()
    written = initialise(place, example=example)
    for path in written:
        note(f"wrote {path}")
    if not written:
        note(f"{place.root} is complete already")
    note("next: turnkeeper up")
    if example:
        note(f"then:  agent-runtime workspace put garden --file {place.root}/workspace/garden.md")
        note("       task-runner apply")
