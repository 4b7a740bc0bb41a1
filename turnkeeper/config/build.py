"""The build of this program: its version and commit. Also the commands that install more packages."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

from turnkeeper import __version__
from turnkeeper.config.home import Home


@cache
def build() -> str:
    """Return the version and the commit, as `0.1.0+g1a2b3c4d5e6f`, or the version alone if the commit is unknown."""
    folder = Path(__file__).parents[1]
    try:
        commit = (folder / "COMMIT").read_text("ascii").strip()
    except FileNotFoundError:
        commit = _commit_of(folder.parent)
    return f"{__version__}+g{commit}" if commit else __version__


def write_build(home: Home, process: str, settings: Mapping[str, Any], **more: Any) -> None:
    """Write this process's pid and build, and the settings that it loads, into `state/run`."""
    says = {"pid": os.getpid(), "build": build(), "settings": settings, **more}
    path = start_file(home, process)
    draft = path.with_suffix(".started.new")
    with contextlib.suppress(OSError):  # a full disk must not prevent a start; then the record is missing
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(says), encoding="utf-8")
        draft.replace(path)


def start_file(home: Home, process: str) -> Path:
    return home.run / f"{process}.started"


def install_command(*wanted: str) -> str:
    """Return the command that installs packages for this program."""
    if util.find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install {shlex.join(wanted)} --python {shlex.quote(sys.executable)}"
    command = f"{shlex.quote(sys.executable)} -m pip install {shlex.join(wanted)}"
    return command if util.find_spec("pip") else f"{shlex.quote(sys.executable)} -m ensurepip && {command}"


def _commit_of(checkout: Path) -> str:
    if not (checkout / ".git").exists():
        return ""
    argv = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    except FileNotFoundError:  # there is no git
        return ""
