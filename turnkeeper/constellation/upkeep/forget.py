"""`turnkeeper forget`: strikes a machine that will not come back off those that share a database."""

from typing import Annotated

import typer

from turnkeeper.config.settings import load_settings
from turnkeeper.console import home, note
from turnkeeper.errors import Conflict
from turnkeeper.storage.nodes import strike


def forget(node: Annotated[str, typer.Argument(help="What `turnkeeper status` calls the machine.")]) -> None:
    """Strike a machine that will not come back off the list of those that share a database.

    Others went on with its work without this; nothing of that work is touched. A machine that lives is refused. Unless
    it is forgotten, one that is gone is listed for a day.

    Example: turnkeeper forget garage
    """
    place = home()
    if not (url := load_settings(place).store.shared_url):
        raise Conflict("names no database that several machines share", where=str(place.config))
    count = strike(url, node)
    said = "process that is" if count == 1 else "processes that are"
    note(f"forgot {count} {said} gone of {node}; should it come back, it is listed again")
