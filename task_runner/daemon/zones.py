"""The machine's own time zone, by its IANA name."""

import os
from collections.abc import Mapping
from pathlib import Path

from task_runner.timetable import zone
from turnkeeper.errors import InvalidInput

_FOLDER = "zoneinfo/"


def machine_zone(environ: Mapping[str, str], etc: Path = Path("/etc")) -> str:
    """Return the zone that TZ names, else /etc/timezone, else the link /etc/localtime; UTC where none does."""
    for name in (environ.get("TZ", "").removeprefix(":"), _written(etc / "timezone"), _linked(etc / "localtime")):
        try:
            return zone(name).key
        except InvalidInput:
            continue
    return "UTC"


def _written(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()[:255]
    except OSError:
        return ""


def _linked(path: Path) -> str:
    try:
        target = os.readlink(path)  # noqa: PTH115  the text of the link, not what it resolves to
    except OSError:
        return ""
    return target.partition(_FOLDER)[2]
