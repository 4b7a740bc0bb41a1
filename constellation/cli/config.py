"""`turnkeeper config`."""

from typing import Annotated

import typer

from turnkeeper.config.settings import effective, load_settings, staffed
from turnkeeper.console import Column, Output, OutputOption, home, show_rows

app = typer.Typer(help="Look at the settings.", no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = (
    Column("KEY", lambda row: str(row["key"])),
    Column("VALUE", lambda row: _shown(row["value"])),
    Column("SOURCE", lambda row: str(row["source"])),
)


@app.command()
def show(
    output: OutputOption = Output.TABLE,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
) -> None:
    """Print every effective setting and where it came from.

    Example: turnkeeper config show --changed
    """
    place = home()
    place.check()
    rows = [
        {"key": key, "value": list(value) if isinstance(value, tuple) else value, "source": source}
        for key, value, source in effective(staffed(load_settings(place), place), place)
        if not changed or source != "default"
    ]
    show_rows(rows, _COLUMNS, output, name_key="key")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "(none)"
    return str(value) if value != "" else "(empty)"
