"""Where an author's graph is, as its reference and LangGraph's project file say; nothing is imported here.

A reference is `langgraph.json:name`, `file.py:attribute` or `module:attribute`. A `langgraph.json` is LangGraph's own
project file: its `graphs` name files, its `dependencies` that begin with a dot are folders to import from, its `env` is
a file or a table of variables.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from turnkeeper.config.toml_file import read_text
from turnkeeper.errors import InvalidInput, NotFound

FORMS = "write ./langgraph.json:NAME, path/to/file.py:ATTRIBUTE or module:ATTRIBUTE"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A graph, found and not yet imported.

    Attributes:
        text: as the author wrote it; errors name it.
        file: the Python file, absolute; None for an installed module.
        module: the module's dotted name; empty where there is a file.
        attribute: what in it is the graph.
        folders: folders to import from, besides the file's own.
        environment: the project's variables; those of the process win.
        project: the folder of its `langgraph.json`, or of the file.
        store: what `langgraph.json` says of the store; None: nothing.
    """

    text: str
    file: Path | None
    module: str
    attribute: str
    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    project: Path = Path()
    store: Any = None

    @property
    def target(self) -> str:
        """What is loaded, spelled one way however it was written."""
        return f"{self.file or self.module}:{self.attribute}"

    @property
    def name(self) -> str:
        """By which the graph's own part of memory is known: `garden.agent`, also when its project has moved."""
        place, _, name = self.text.rpartition(":")
        if self.file is None:
            return f"{self.module}.{name}"
        folder = self.project.name if place.endswith(".json") else f"{self.project.name}.{self.file.stem}"
        return f"{folder}.{name}"


def find_graph(text: str, base: Path) -> Reference:
    """Return the graph that `text` names; a relative path is relative to `base`.

    Raises:
        InvalidInput: it is not a reference, or names a file or a graph that is not there.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InvalidInput("is not a reference to a graph", where=text or "graph", hint=FORMS)
    if place.endswith(".json"):
        return _in_project(text, _absolute(place, base), name)
    return _direct(text, place, name, base)


def absolute_text(text: str, base: Path) -> str:
    """Return a reference that means the same from any folder."""
    place, _, name = text.rpartition(":")
    return f"{_absolute(place, base)}:{name}" if _is_path(place) else text


def _direct(text: str, place: str, attribute: str, base: Path) -> Reference:
    if not attribute.isidentifier():
        raise InvalidInput(f"{attribute!r} is not an attribute's name", where=text, hint=FORMS)
    if not _is_path(place):
        if not all(part.isidentifier() for part in place.split(".")):
            raise InvalidInput(f"{place!r} is neither a module nor a file", where=text, hint=FORMS)
        return Reference(text=text, file=None, module=place, attribute=attribute)
    file = _absolute(place, base)
    if file.suffix != ".py":
        raise InvalidInput(f"{file} is not a Python file", where=text, hint=FORMS)
    if not file.is_file():
        raise InvalidInput(f"no such file: {file}", where=text, hint="a relative path begins at the folder of its file")
    variables = file.parent / ".env"
    environment = _read_environment(variables) if variables.is_file() else {}
    return Reference(text=text, file=file, module="", attribute=attribute, environment=environment, project=file.parent)


def _in_project(text: str, path: Path, name: str) -> Reference:
    project = _read_project(text, path)
    graphs = project.get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise InvalidInput("names no graphs", where=str(path), hint='write {"graphs": {"agent": "./graph.py:graph"}}')
    if name not in graphs:
        raise InvalidInput(f"no graph {name!r}", where=str(path), hint=f"there are {', '.join(map(str, graphs))}")
    entry = graphs[name]
    inner = entry.get("path") if isinstance(entry, dict) else entry
    if not isinstance(inner, str) or ":" not in inner:
        raise InvalidInput(f"graphs.{name} is not FILE:ATTRIBUTE", where=str(path))
    place, _, attribute = inner.rpartition(":")
    found = _direct(text, place, attribute, path.parent)
    return replace(
        found,
        folders=_dependencies(project, path),
        environment=_environment(project, path),
        project=path.parent,
        store=project.get("store"),
    )


def _read_project(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path))
    except NotFound as error:
        raise InvalidInput(f"no such file: {path}", where=text, hint=FORMS) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", where=str(path)) from error
    if not isinstance(found, dict):
        raise InvalidInput("is not a JSON object", where=str(path))
    return found


def _dependencies(project: Mapping[str, Any], path: Path) -> tuple[Path, ...]:
    """Return the folders among the dependencies; packages have to be installed already."""
    named = project.get("dependencies", [])
    if not isinstance(named, list) or not all(isinstance(item, str) for item in named):
        raise InvalidInput("dependencies is not a list of texts", where=str(path))
    folders = [_absolute(item, path.parent) for item in named if item.startswith(".")]
    for folder in folders:
        if not folder.is_dir():
            raise InvalidInput(f"dependencies names no folder: {folder}", where=str(path))
    return tuple(folders)


def _environment(project: Mapping[str, Any], path: Path) -> Mapping[str, str]:
    stated = project.get("env", {})
    if isinstance(stated, str):
        file = _absolute(stated, path.parent)
        if not file.is_file():
            example = file.with_name(f"{file.name}.example")
            hint = f"make it: cp {example.name} {file.name}" if example.is_file() else "make it, or take env out"
            raise InvalidInput(f"env names no file: {file}", where=str(path), hint=hint)
        return _read_environment(file)
    if not isinstance(stated, dict):
        raise InvalidInput("env is neither a file's path nor a table", where=str(path))
    return {str(key): str(value) for key, value in stated.items()}


def _read_environment(path: Path) -> Mapping[str, str]:
    try:
        return {key: value for key, value in dotenv_values(path).items() if value is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=str(path)) from error


def found_at(text: str, base: Path) -> Reference:
    """Return what `FILE.py:ATTRIBUTE` or `MODULE:ATTRIBUTE` names; raises InvalidInput as `find_graph` does."""
    place, _, attribute = text.rpartition(":")
    return _direct(text, place, attribute, base)


def _is_path(place: str) -> bool:
    return "/" in place or place.endswith((".py", ".json"))


def _absolute(place: str, base: Path) -> Path:
    return (base / Path(place).expanduser()).resolve()
