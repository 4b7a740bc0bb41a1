"""The start of a daemon: the build of the program, the settings that were loaded, and the files of the author's graphs.

Each daemon writes `state/run/<process>.started` before it loads anything else. The supervisor writes its build there.
`up`, `status` and `doctor` compare the file with the present program and configuration.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from turnkeeper.config.build import start_file, write_build
from turnkeeper.config.home import Home
from turnkeeper.config.settings import as_written, effective, load_settings, staffed
from turnkeeper.config.surfaces import processes

READS: Mapping[str, frozenset[str]] = {
    "agent-runtime": frozenset(
        {"agents", "approvals", "assistants", "categories", "faults", "graphs", "history", "memory", "metrics", "model"}
        | {"folder", "mcp_servers", "node", "notify", "store", "tools", "traces"}
    ),
    "task-runner": frozenset({"metrics", "node", "queues", "scheduler", "store", "traces"}),
} | {process.name: process.reads for process in processes()}
_KEYS = ".env"  # the name of the home's keys among the settings
_LONGEST_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Start:
    """A process's record of its start.

    Attributes:
        pid: the process, which may have ended.
        build: version and commit of the program.
        settings: the settings of the process by key; long values, addresses, lists and `.env` as digests.
        files: the loaded files of the author's graphs, each with a digest of its content.
    """

    pid: int
    build: str
    settings: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

    def edited(self) -> list[str]:
        """Return the files that have changed or disappeared since they were loaded."""
        return sorted(name for name, before in self.files.items() if _digest(Path(name)) != before)


def write_start(home: Home, process: str) -> None:
    """Write the start of this process. Call this before the settings are loaded for use."""
    write_build(home, process, settings_now(home, process))


def add_files(home: Home, process: str, files: Iterable[Path]) -> None:
    """Add files that this process has loaded to its start record. Do nothing if there is no record."""
    if start := read_start(home, process, os.getpid()):
        write_build(home, process, start.settings, files={str(file): _digest(file) for file in files})


def read_start(home: Home, process: str, pid: int = 0) -> Start | None:
    """Return the start of the process `pid`, by default of the last process. None if the record cannot be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = Start(**json.loads(start_file(home, process).read_text("utf-8")))
        return found if found.pid == (pid or found.pid) else None
    return None


def settings_now(home: Home, process: str) -> dict[str, Any]:
    """Return the settings that a process would load now, by key. Raises InvalidInput if the settings cannot be read."""
    reads = READS[process]
    found = {key: value for key, value, _ in effective(staffed(load_settings(home), home), home)
             if key.partition(".")[0] in reads}  # fmt: skip
    if process == "agent-runtime" and home.environment.is_file():
        found[_KEYS] = [sha256(home.environment.read_bytes()).hexdigest()]
    return {key: _without_secrets(value) for key, value in found.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ, each with both values unless one of them is a digest.

    >>> changes({"model.name": "offline", "x": {"sha256": "a"}}, {"model.name": "openai:gpt-5", "x": {"sha256": "b"}})
    ["model.name ('offline', now 'openai:gpt-5')", 'x']
    """
    # A table such as [agents.agent0] adds empty settings, which mean the same as missing ones.
    keys = sorted(key for key in before.keys() | now.keys() if (before.get(key) or None) != (now.get(key) or None))
    return [f"{key}{_values(before.get(key), now.get(key))}" if key != _KEYS else _KEYS for key in keys]


def _digest(file: Path) -> str:
    """Return a digest of a file's content; empty if the file cannot be read."""
    with contextlib.suppress(OSError):
        return sha256(file.read_bytes()).hexdigest()[:16]
    return ""


def _without_secrets(value: Any) -> Any:
    """Return a short plain value unchanged, or else its digest, because an address may contain a password."""
    text = json.dumps(value, default=str)
    plain = isinstance(value, str | int | float | None) and "://" not in text and len(text) <= _LONGEST_SHOWN
    return value if plain else {"sha256": sha256(text.encode()).hexdigest()}


def _values(before: Any, now: Any) -> str:
    if isinstance(before, dict) or isinstance(now, dict):
        return ""
    shown = [repr(as_written(one)) if one is not None else "not set" for one in (before, now)]
    return f" ({shown[0]}, now {shown[1]})"
