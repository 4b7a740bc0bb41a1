"""launchd: the agents that keep a constellation running across logins on macOS, like the units of systemd."""

import plistlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import systemd

_LABEL = "org.turnkeeper"
_STOP_S = 240
_BACKUP_AT = {"Hour": 3, "Minute": 30}


def agents(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the property lists of a home's agents, text by file name. Every home has its own names."""
    label = f"{_LABEL}{systemd.tag_of(home, environ)}"
    backup = ("backup", "--keep", str(systemd.KEPT_BACKUPS), str(systemd.backups_of(home)))
    # The supervisor stops the daemons itself; after a crash it finds them running when it is started again.
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
    log = str(home.logs / "launchd.log")
    says: dict[str, Any] = {
        "Label": label,
        "ProgramArguments": [
            sys.executable,
            "-P",
            "-m",
            "turnkeeper.constellation",
            *command,
            "--home",
            str(home.root),
        ],
        "EnvironmentVariables": {name: environ[name] for name in ("PATH", "LANG") if name in environ},
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "Umask": 0o077,
        "AbandonProcessGroup": True,
    }
    return plistlib.dumps({**says, **more}).decode()


def folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of a user's agents."""
    return Path(environ.get("HOME", "~")).expanduser() / "Library" / "LaunchAgents"


def install(home: Home, environ: Mapping[str, str]) -> list[Path]:
    """Write the agents of a home, overwriting older ones. Return the files."""
    return systemd.write_all(folder(environ), agents(home, environ))


def uninstall(home: Home, environ: Mapping[str, str]) -> list[Path]:
    """Remove the agents of a home. Return the files that existed."""
    return systemd.remove_all(folder(environ), agents(home, environ))
