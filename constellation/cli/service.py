"""`turnkeeper service`."""

import os

import typer

from constellation.supervisor.systemd import install as write_units
from constellation.supervisor.systemd import uninstall as remove_units
from constellation.supervisor.systemd import units
from turnkeeper.console import home, note

app = typer.Typer(help="Keep it up by systemd.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def install() -> None:
    """Write systemd user units for this home: the constellation, a timer as heartbeat, one that makes daily backups.

    Starts nothing. The backups lie beside the home, in a folder named after it with -backups; the newest seven stay.

    Example: turnkeeper service install
    """
    place = home()
    place.check()
    for path in write_units(place, os.environ):
        note(f"wrote {path}")
    names = " ".join(name for name, text in units(place, os.environ).items() if "[Install]" in text)
    note(f"next: systemctl --user daemon-reload && systemctl --user enable --now {names}")
    note("to keep it up while you are logged out: loginctl enable-linger")


@app.command()
def uninstall() -> None:
    """Remove this home's units. What runs goes on; stop it first with: systemctl --user disable --now.

    Example: turnkeeper service uninstall
    """
    removed = remove_units(home(), os.environ)
    for path in removed:
        note(f"removed {path}")
    note("next: systemctl --user daemon-reload" if removed else "there are none")
