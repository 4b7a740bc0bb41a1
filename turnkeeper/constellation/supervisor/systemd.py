"""systemd: the user units that keep a constellation running across logins and boots, and the reports to systemd."""

import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from turnkeeper.config.home import Home, places

HEARTBEAT_S = 120
WATCHDOG_S = 300
KEPT_BACKUPS = 7
BOOTED = Path("/run/systemd/system")  # systemd creates this folder at the start of the machine
_SERVICE = """\
Type=notify
ExecStart={run} up --foreground --home {home}
# The supervisor brings the daemons down itself; one that crashed finds them alive when it is started again.
KillMode=process
Restart=on-failure
RestartSec=2
TimeoutStartSec=300
TimeoutStopSec=240
WatchdogSec={watchdog}
UMask=0077
"""
_TICK = """\
Type=oneshot
ExecStart={run} watchdog tick --home {home}
# 6: something is broken, which the tick has seen to as far as it can be.
SuccessExitStatus=6
KillMode=process
UMask=0077
"""
_BACKUP = """\
Type=oneshot
ExecStart={run} backup --keep {kept} {backups} --home {home}
UMask=0077
"""
_HEARTBEAT_TIMES = "OnActiveSec={heartbeat}\nOnUnitActiveSec={heartbeat}\n"
_BACKUP_TIMES = "OnCalendar=daily\nRandomizedDelaySec=1h\nPersistent=true\n"
# (suffix of the file's name, its description, section, its lines, the target that wants it)
_UNITS = (
    (".service", "Turnkeeper", "Service", _SERVICE, "default"),
    ("-heartbeat.service", "Heartbeat of Turnkeeper", "Service", _TICK, ""),
    ("-heartbeat.timer", "Heartbeat of Turnkeeper", "Timer", _HEARTBEAT_TIMES, "timers"),
    ("-backup.service", "Backup of Turnkeeper", "Service", _BACKUP, ""),
    ("-backup.timer", "Daily backup of Turnkeeper", "Timer", _BACKUP_TIMES, "timers"),
)


def units(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the units of a home, text by file name. Every home has its own names."""
    words = {
        "home": _quoted(str(home.root)),
        "run": f"{_quoted(sys.executable)} -P -m turnkeeper.constellation",
        "heartbeat": HEARTBEAT_S,
        "watchdog": WATCHDOG_S,
        "kept": KEPT_BACKUPS,
        "backups": _quoted(str(backups_of(home))),
    }
    path = _quoted(f"PATH={environ.get('PATH', '')}").replace("$$", "$")  # `$` is not special in Environment=
    texts = {}
    for suffix, what, section, lines, wanted_by in _UNITS:
        text = f"[Unit]\nDescription={what} on {words['home']}\n\n[{section}]\n{lines.format(**words)}"
        text += f"Environment={path}\n" if section == "Service" and "PATH" in environ else ""
        install_lines = f"\n[Install]\nWantedBy={wanted_by}.target\n" if wanted_by else ""
        texts[f"turnkeeper{tag_of(home, environ)}{suffix}"] = text + install_lines
    return texts


def tag_of(home: Home, environ: Mapping[str, str]) -> str:
    """Return the suffix that distinguishes this home's services from those of others. Empty for the default home."""
    default, *_ = places(None, {"HOME": environ.get("HOME", "~")})
    return "" if home.root == default else f"-{hashlib.sha256(os.fsencode(home.root)).hexdigest()[:8]}"


def backups_of(home: Home) -> Path:
    """Return the folder for the timer's backups. It is beside the home, because a restore moves the home aside."""
    return home.root.with_name(f"{home.root.name}-backups")


def unit_folder(environ: Mapping[str, str]) -> Path:
    config = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".config")
    return Path(config) / "systemd" / "user"


def has_user_manager(environ: Mapping[str, str]) -> bool:
    """Return True if systemd runs and starts this user's services."""
    return (Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "systemd" / "private").exists()


def write_all(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a folder, overwriting older ones. Return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        fresh = folder / f".{name}.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(folder / name)
    return [folder / name for name in texts]


def remove_all(folder: Path, names: Iterable[str]) -> list[Path]:
    """Remove files from a folder. Return the files that existed."""
    there = [folder / name for name in names if (folder / name).exists()]
    for path in there:
        path.unlink()
    return there


class Notifier:
    """The part that reports the service's state to systemd, if systemd asked for reports."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        usec = environ.get("WATCHDOG_USEC", "")
        self.longest_pause_s = int(usec) / 2e6 if self._address and usec.isdigit() and int(usec) else float("inf")
        """The longest sleep of the supervisor that systemd does not take for a hang."""

    def notify(self, *, ready: bool) -> None:
        """Report that the supervisor works and, once every daemon serves or was given up, that the service is ready."""
        if not self._address:
            return
        said = "WATCHDOG=1\nREADY=1" if ready else "WATCHDOG=1"
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, suppress(OSError):
            sender.sendto(said.encode(), address)  # fails if systemd has ended


def for_daemons(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the daemons: without systemd's variables for the supervisor."""
    ours = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
    return {name: value for name, value in environ.items() if name not in ours}


def _quoted(word: str) -> str:
    """Quote a word of a unit, in which `%` and `$` are special."""
    plain = word.replace("%", "%%")
    if all(character.isalnum() or character in "/._-@%+" for character in plain):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
