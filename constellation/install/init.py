"""Making a state directory: settings that explain themselves, and an example to start from."""

import json
import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings

_ENVIRONMENT = """\
# Keys for model providers, read by the agent runtime. Keep this file to yourself (mode 0600).
# OPENAI_API_KEY=
# ANTHROPIC_API_KEY=
"""


def initialise(home: Home, *, example: bool) -> list[Path]:
    """Make the directory and write what is missing in it; never overwrite. Return the files that were written."""
    home.create()
    home.check_sockets()
    written = [*write_new(home.config, config_text()), *write_new(home.environment, _ENVIRONMENT)]
    if example:
        source = files("constellation") / "example"
        written += _copy(source / "tasks", home.tasks)
        written += _copy(source / "workspace", home.root / "workspace")
    return written


def config_text() -> str:
    """Return a `config.toml` with every key: its default commented out, its meaning beside it."""
    lines = ["# Settings of this home. A key left out has the default that is shown; an unknown key is refused."]
    settings = Settings()
    for section in Settings.model_fields:
        value = getattr(settings, section)
        if isinstance(value, dict):
            continue
        lines += ["", f"[{section}]"]
        for key, field in type(value).model_fields.items():
            shown = json.dumps(getattr(value, key), ensure_ascii=False)
            stated = section == "categories" and key == "autonomous_allowed"
            lines += [f"# {field.description}", f"{'' if stated else '# '}{key} = {shown}"]
    return "\n".join(lines) + "\n"


def _copy(source: Traversable, target: Path) -> list[Path]:
    target.mkdir(mode=0o700, exist_ok=True)
    written = []
    for item in sorted(source.iterdir(), key=lambda entry: entry.name):
        written += write_new(target / item.name, item.read_text(encoding="utf-8"))
    return written


def write_new(path: Path, text: str) -> list[Path]:
    """Write a file, mode 0600, where there is none of that name. Return it, or nothing where there was one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return []
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return [path]
