"""`turnkeeper service`."""

import os
import shlex
import sys
from enum import StrEnum
from typing import Annotated

import typer

from turnkeeper.config.home import Home
from turnkeeper.console import home, home_places, note
from turnkeeper.console.commands import App
from turnkeeper.constellation.install import launchd
from turnkeeper.constellation.supervisor import systemd


class ServiceManager(StrEnum):
    """The program that keeps a service running on a machine."""

    SYSTEMD = "systemd"
    LAUNCHD = "launchd"


_FILES = {ServiceManager.SYSTEMD: systemd, ServiceManager.LAUNCHD: launchd}
service = App("Run Turnkeeper as a service of systemd, or of launchd on macOS.")
_Manager = Annotated[
    ServiceManager, typer.Option("--for", help="The service manager; by default that of this machine.")
]
_THIS_MANAGER = ServiceManager.LAUNCHD if sys.platform == "darwin" else ServiceManager.SYSTEMD


@service.command()
def install(manager: _Manager = _THIS_MANAGER) -> None:
    """Write this home's service, a heartbeat and daily backups, as systemd user units or as launchd agents.

    Starts nothing. Backups go to a folder next to the home, named like it with -backups; the newest seven are kept.

    Example: turnkeeper service install
    """
    place = home()
    written = _FILES[manager].install(place, os.environ)
    for path in written:
        note(f"wrote {path}")
    if manager is ServiceManager.LAUNCHD:
        for path in written:
            note(f"next: launchctl bootstrap gui/$(id -u) {shlex.quote(str(path))}")
        return
    names = " ".join(path.name for path in written if "[Install]" in path.read_text())
    note(f"next: systemctl --user daemon-reload && systemctl --user enable --now {names}")
    note("to keep it running while you are logged out: loginctl enable-linger")


@service.command()
def uninstall(manager: _Manager = _THIS_MANAGER) -> None:
    """Remove this home's units or agents. Stop the service first, with its manager: this command stops nothing.

    Example: turnkeeper service uninstall
    """
    homes = [Home(root=place) for place in home_places()]  # the home's services may be named after its former place
    removed = [path for one in homes for path in _FILES[manager].uninstall(one, os.environ)]
    for path in removed:
        note(f"removed {path}")
    if not removed:
        note("this home has none")
    elif manager is ServiceManager.SYSTEMD:
        note("next: systemctl --user daemon-reload")
