"""`turnkeeper forget`: removes a machine that will not return from a shared database."""

from typing import Annotated

import typer

from turnkeeper.config.settings import load_settings
from turnkeeper.console import home, note
from turnkeeper.errors import Conflict
from turnkeeper.storage.nodes import strike


def forget(node: Annotated[str, typer.Argument(help="The machine's name in `turnkeeper status`.")]) -> None:
    """Remove a machine for good from the list of machines that share a database.

    The other machines have already taken over its work, which does not change. A running machine is refused. Without
    this command, a machine that is gone is listed for a day.

    Example: turnkeeper forget garage
    """
    place = home()
    if not (url := load_settings(place).store.shared_url):
        raise Conflict("names no database that several machines share", where=str(place.config))
    count = strike(url, node)
    said = "process that is" if count == 1 else "processes that are"
    note(f"forgot {count} {said} gone of {node}; if it returns, it is listed again")
