"""`turnkeeper service`: systemd units, and on macOS launchd agents, that keep a constellation running."""

import os
import plistlib
import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from turnkeeper.config.home import Home
from turnkeeper.console import home, home_places, note
from turnkeeper.console.commands import App
from turnkeeper.constellation.supervisor import systemd


class ServiceManager(StrEnum):
    """The program that keeps a service running on a machine."""

    SYSTEMD = "systemd"
    LAUNCHD = "launchd"


_LABEL = "org.turnkeeper"
_STOP_S = 240
_BACKUP_AT = {"Hour": 3, "Minute": 30}


def agents(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the property lists of a home's agents, text by file name. Every home has its own names."""
    label = f"{_LABEL}{systemd.tag_of(home, environ)}"
    backup = ("backup", "--keep", str(systemd.KEPT_BACKUPS), str(systemd.backups_of(home)))
    # The supervisor stops the daemons itself. After a crash, the next supervisor finds them still running.
    kept_up = {"RunAtLoad": True, "KeepAlive": {"SuccessfulExit": False}, "ExitTimeOut": _STOP_S}
    each: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "": (("up", "--foreground"), kept_up),
        "-heartbeat": (("watchdog", "tick"), {"StartInterval": systemd.HEARTBEAT_S}),
        "-backup": (backup, {"StartCalendarInterval": _BACKUP_AT}),
    }
    return {
        f"{label}{suffix}.plist": _property_list(home, environ, f"{label}{suffix}", command, more)
        for suffix, (command, more) in each.items()
    }


def _property_list(
    home: Home, environ: Mapping[str, str], label: str, command: tuple[str, ...], more: Mapping[str, Any]
) -> str:
    log, program = str(home.logs / "launchd.log"), (sys.executable, "-P", "-m", "turnkeeper.constellation")
    says: dict[str, Any] = {
        "Label": label,
        "ProgramArguments": [*program, *command, "--home", str(home.root)],
        "EnvironmentVariables": {name: environ[name] for name in ("PATH", "LANG") if name in environ},
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "Umask": 0o077,
        "AbandonProcessGroup": True,
    }
    return plistlib.dumps({**says, **more}).decode()


def agents_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME", "~")).expanduser() / "Library" / "LaunchAgents"


_FILES = {
    ServiceManager.SYSTEMD: (systemd.unit_folder, systemd.units),
    ServiceManager.LAUNCHD: (agents_folder, agents),
}
service = App("Run Turnkeeper as a service of systemd, or of launchd on macOS.")
_Manager = Annotated[
    ServiceManager, typer.Option("--for", help="The service manager; by default that of this machine.")
]
_THIS_MANAGER = ServiceManager.LAUNCHD if sys.platform == "darwin" else ServiceManager.SYSTEMD


def write_service(manager: ServiceManager, home: Home, environ: Mapping[str, str]) -> list[Path]:
    """Write the files of a home's service, overwriting older ones. Return the files."""
    folder, texts = _FILES[manager]
    return systemd.write_all(folder(environ), texts(home, environ))


def remove_service(manager: ServiceManager, home: Home, environ: Mapping[str, str]) -> list[Path]:
    """Remove the files of a home's service. Return the files that existed."""
    folder, texts = _FILES[manager]
    return systemd.remove_all(folder(environ), texts(home, environ))


@service.command()
def install(manager: _Manager = _THIS_MANAGER) -> None:
    """Write this home's service, a heartbeat and daily backups, as systemd user units or as launchd agents.

    The command starts nothing. It prints a warning if systemd does not run. Backups are written to HOME-backups, and
    the newest seven are kept.

    Example: turnkeeper service install
    """
    place = home()
    written = write_service(manager, place, os.environ)
    for path in written:
        note(f"wrote {path}")
    if manager is ServiceManager.LAUNCHD:
        for path in written:
            note(f"next: launchctl bootstrap gui/$(id -u) {shlex.quote(str(path))}")
        return
    if not systemd.BOOTED.exists():
        note("warning: systemd does not run on this machine, so nothing starts the service")
        note("run after each start of the machine: turnkeeper up (in a container: turnkeeper up --foreground)")
        return
    if not (has_manager := systemd.has_user_manager(os.environ)):
        note("warning: systemd does not run for your user, so nothing starts the service yet")
        note("first: loginctl enable-linger")
    names = " ".join(path.name for path in written if "[Install]" in path.read_text())
    note(f"next: systemctl --user daemon-reload && systemctl --user enable --now {names}")
    if has_manager:
        note("to keep it running while you are logged out: loginctl enable-linger")


@service.command()
def uninstall(manager: _Manager = _THIS_MANAGER) -> None:
    """Remove this home's units or agents. First stop the service with its manager, because this command stops nothing.

    Example: turnkeeper service uninstall
    """
    homes = [Home(root=place) for place in home_places()]  # the home's services may have the name of its former place
    removed = [path for one in homes for path in remove_service(manager, one, os.environ)]
    for path in removed:
        note(f"removed {path}")
    if not removed:
        note("this home has none")
    elif manager is ServiceManager.SYSTEMD:
        note("next: systemctl --user daemon-reload")
