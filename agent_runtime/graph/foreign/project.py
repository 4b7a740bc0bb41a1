"""The location of an author's graph, by its reference and LangGraph's project file. Imports nothing.

A reference is `langgraph.json:name`, `file.py:attribute` or `module:attribute`. A `langgraph.json` is LangGraph's own
project file: its `graphs` name files, its `dependencies` that begin with a dot are folders to import from, and its
`env` is a file or a table of variables.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from agent_runtime.model.graphs import Assistant, Catalog
from agent_runtime.model.trigger import FIRST_AGENT
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, load_settings
from turnkeeper.config.toml_file import read_text
from turnkeeper.errors import InvalidInput, NotFound, meant

_USED = frozenset({"$schema", "dependencies", "env", "graphs", "store"})
_NO_IMAGE = "no image is built"
_IGNORED = {
    "api_version": _NO_IMAGE,
    "auth": "its login is used only by clients of the LangGraph API, if [project] is enabled; nodes see no user",
    "base_image": _NO_IMAGE,
    "checkpointer": "Turnkeeper keeps the checkpoints; the project's own path, ttl and serde are not used",
    "dockerfile_lines": "no image is built; install the packages of these lines here",
    "encryption": "checkpoints and memory are not encrypted with the project's keys; encrypt the disk of the home",
    "http": "its routes are served only below /lg, if [project] is enabled; CORS and other keys do nothing",
    "image_distro": _NO_IMAGE,
    "keep_pkg_tools": _NO_IMAGE,
    "node_version": "JavaScript does not run here",
    "pip_config_file": "no package is installed by this file",
    "pip_installer": _NO_IMAGE,
    "priority": "turns of a thread run in the order in which they arrive",
    "source": "no image is built; the project runs from its folder",
    "ui": "components are not shown",
    "webhooks": "no request is sent when a turn ends; see [notify] command",
}
_JAVASCRIPT = frozenset({".cjs", ".cts", ".js", ".jsx", ".mjs", ".mts", ".ts", ".tsx"})
FORMS = "write ./langgraph.json:NAME, path/to/file.py:ATTRIBUTE or module:ATTRIBUTE"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A graph that was found but not imported.

    Attributes:
        text: the author's reference, used in errors.
        file: the Python file, absolute; None for an installed module.
        module: the module's dotted name; empty if there is a file.
        folders: folders to import from, in addition to the file's own folder.
        environment: the project's variables; the process's variables override them.
        project: the folder of its `langgraph.json`, or of the file.
        store: the `store` key of `langgraph.json`; None if it is absent.
        stated: the whole `langgraph.json`; empty without one.
        example: the example of a missing file with variables.
    """

    text: str
    file: Path | None
    module: str
    attribute: str
    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    project: Path = Path()
    store: Any = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    example: Path | None = None

    @property
    def target(self) -> str:
        """The target in a normal form, equal for all spellings."""
        return f"{self.file or self.module}:{self.attribute}"

    @property
    def project_file(self) -> Path | None:
        """The `langgraph.json`; None without one."""
        place = self.text.rpartition(":")[0]
        return self.project / Path(place).name if place.endswith(".json") else None

    @property
    def ignored(self) -> dict[str, str]:
        """The keys of `langgraph.json` that have no effect here, each with the consequence."""
        stated = self.stated.items()
        return {key: _meaning(key, value) for key, value in stated if key not in _USED and _meaning(key, value)}

    def unset(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables in the example of a missing `.env` that are not set."""
        text = self.example.read_text(encoding="utf-8", errors="replace") if self.example else ""
        found = dotenv_values(stream=StringIO(text), interpolate=False)
        return [name for name, value in found.items() if value is not None and name not in environ]

    @property
    def name(self) -> str:
        """The name of the graph's own part of memory: `garden.agent`. It stays the same if the project moves."""
        place, _, name = self.text.rpartition(":")
        if self.file is None:
            return f"{self.module}.{name}"
        folder = self.project.name if place.endswith(".json") else f"{self.project.name}.{self.file.stem}"
        return f"{folder}.{name}"


def find_graph(text: str, base: Path) -> Reference:
    """Return the graph of a reference; a relative path is relative to `base`.

    Raises:
        InvalidInput: the text is not a reference, or its file or graph does not exist.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InvalidInput("is not a reference to a graph", where=text or "graph", hint=FORMS)
    if place.endswith(".json"):
        return _in_project(text, _absolute(place, base), name)
    return _direct(text, place, name, base)


def absolute_text(text: str, base: Path) -> str:
    """Return a reference in a form that is valid in any folder."""
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
    if file.suffix in _JAVASCRIPT:
        raise InvalidInput(f"{file} is not a Python file: graphs in JavaScript do not run here", where=text)
    if file.suffix != ".py":
        raise InvalidInput(f"{file} is not a Python file", where=text, hint=FORMS)
    if not file.is_file():
        raise InvalidInput(f"no such file: {file}", where=text, hint="a relative path begins at the folder of its file")
    environment, example = _environment({"env": ".env"}, file)
    return Reference(
        text=text,
        file=file,
        module="",
        attribute=attribute,
        environment=environment,
        project=file.parent,
        example=example,
    )


def _in_project(text: str, path: Path, name: str) -> Reference:
    project = _read_project(text, path)
    graphs = project.get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise InvalidInput("names no graphs", where=str(path), hint='write {"graphs": {"agent": "./graph.py:graph"}}')
    if name not in graphs:
        raise InvalidInput(f"no graph {name!r}", where=str(path), hint=f"use one of: {', '.join(map(str, graphs))}")
    entry = graphs[name]
    inner = entry.get("path") if isinstance(entry, dict) else entry
    if not isinstance(inner, str) or ":" not in inner:
        raise InvalidInput(f"graphs.{name} is not FILE:ATTRIBUTE", where=str(path))
    place, _, attribute = inner.rpartition(":")
    found = _direct(text, place, attribute, path.parent)
    environment, example = _environment(project, path)
    return replace(
        found,
        folders=_folders(project, path),
        environment=environment,
        project=path.parent,
        store=project.get("store"),
        stated=project,
        example=example,
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


def _folders(project: Mapping[str, Any], path: Path) -> tuple[Path, ...]:
    """Return the folders to import from: the project, its dependencies that are folders, and `src` in each.

    If a dependency itself is a package, return the folder around it, as LangGraph's own images do.
    """
    named = project.get("dependencies", [])
    if not isinstance(named, list) or not all(isinstance(item, str) for item in named):
        raise InvalidInput("dependencies must be a list of strings", where=str(path))
    folders = [path.parent]
    for item in named:
        folder = _absolute(item, path.parent)
        if not folder.is_dir() and item.startswith("."):
            raise InvalidInput(f"dependencies names a missing folder: {folder}", where=str(path))
        if folder.is_dir():
            folders.append(folder)
    sources = [folder / "src" for folder in folders if (folder / "src").is_dir()]
    around = [folder.parent for folder in folders[1:] if (folder / "__init__.py").is_file()]
    return tuple(dict.fromkeys([*folders, *sources, *around]))


def _environment(project: Mapping[str, Any], path: Path) -> tuple[Mapping[str, str], Path | None]:
    """Return the project's variables; if their file is missing, also return the example that lists them."""
    stated = project.get("env") or {}
    if isinstance(stated, str):
        file = _absolute(stated, path.parent)
        if file.is_file():
            return _read_environment(file), None
        example = file.with_name(f"{file.name}.example")
        if example.is_file():
            return {}, example
        if file.name == ".env":  # such a file is not stored with a project, and not every project needs it
            return {}, None
        raise InvalidInput(f"env names a missing file: {file}", where=str(path), hint="make it, or remove env")
    if not isinstance(stated, dict):
        raise InvalidInput("env is neither a file's path nor a table", where=str(path))
    return {str(key): str(value) for key, value in stated.items()}, None


def _read_environment(path: Path) -> Mapping[str, str]:
    try:
        return {key: value for key, value in dotenv_values(path).items() if value is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=str(path)) from error


def found_at(text: str, base: Path) -> Reference:
    """Return the target of `FILE.py:ATTRIBUTE` or `MODULE:ATTRIBUTE`. Raises InvalidInput as `find_graph` does."""
    place, _, attribute = text.rpartition(":")
    return _direct(text, place, attribute, base)


def _meaning(key: str, value: Any) -> str:
    """Return the consequence of a key without effect; empty if the key is not set."""
    if key == "python_version":
        here = ".".join(map(str, sys.version_info[:2]))
        return "" if value == here else f"the project requests Python {value}, but this is {here}"
    return _IGNORED.get(key, "unknown here; it has no effect") if value else ""


def _is_path(place: str) -> bool:
    return "/" in place or place.endswith((".py", ".json"))


def _absolute(place: str, base: Path) -> Path:
    return (base / Path(place).expanduser()).resolve()


def read_catalog(settings: Settings, home: Home) -> Catalog:
    """Return the names of a home's graphs and assistants. Imports nothing.

    Raises:
        InvalidInput: a name is given twice, or an assistant names an unknown graph.
    """
    named = dict(settings.graphs)
    first = settings.agents[FIRST_AGENT].graph if FIRST_AGENT in settings.agents else ""
    default = settings.default_graph
    if default in named and _reference_of(named[default], home.root) != _reference_of(first, home.root):
        what = f"{default!r} is the name of {f'the graph of {FIRST_AGENT}' if first else 'the agent of Turnkeeper'}"
        raise InvalidInput(what, where=f"{home.config}: graphs.{default}", hint="choose another name")
    found = (_names_in(first, home.root) if first else {}) | named | {default: first}
    for name, one in settings.assistants.items():
        where = f"{home.config}: assistants.{name}"
        if name in found:
            raise InvalidInput("is the name of a graph", where=where, hint="choose another name")
        if (one.graph or default) not in found:
            raise InvalidInput(f"no graph {one.graph!r}", where=where, hint=meant(one.graph, list(found)))
    assistants = {
        name: Assistant(**one.model_dump() | {"graph": one.graph or default})
        for name, one in settings.assistants.items()
    }
    return Catalog(default=default, references=found, assistants=assistants)


def served(settings: Settings, home: Home) -> dict[str, Reference]:
    """Return the HTTP application (`http`) and the login (`auth`) in the default graph's `langgraph.json`.

    Raises:
        InvalidInput: the project file cannot be read, or names a missing file.
    """
    text = settings.agents[FIRST_AGENT].graph if FIRST_AGENT in settings.agents else ""
    if not text:
        return {}
    graph, found = find_graph(text, home.root), {}
    for key, inner in (("http", "app"), ("auth", "path")):
        stated = graph.stated.get(key)
        if isinstance(stated, dict) and stated.get(inner):
            one = found_at(str(stated[inner]), graph.project)
            found[key] = replace(graph, text=one.text, file=one.file, module=one.module, attribute=one.attribute)
    return found


def findings(home: Home) -> Iterator[tuple[str, str]]:
    """Yield the applications that the default graph's project names and this home does not serve, and the remedy."""
    named = {"http": "HTTP routes (http.app)", "auth": "a login (auth)"}
    try:
        config = load_settings(home)
        found = served(config, home)
    except InvalidInput:
        return  # another check reports faults of the settings and of the graph
    if found and not config.project.enabled:
        what = f"langgraph.json names {' and '.join(named[key] for key in found)}, which are not served"
        yield what, "to serve them, set enabled = true below [project] in config.toml, and run: turnkeeper up"


def _names_in(text: str, base: Path) -> dict[str, str]:
    """Return the references of all graphs in the `langgraph.json` of `text`, by name; empty for other references."""
    place, _, _ = text.rpartition(":")
    if not place.endswith(".json"):
        return {}
    graphs = _read_project(text, _absolute(place, base)).get("graphs")
    return {str(name): f"{place}:{name}" for name in graphs} if isinstance(graphs, dict) else {}


def _reference_of(text: str, base: Path) -> tuple[str, str]:
    """Return the file of a reference and the name in it, which are equal for equivalent references."""
    place, _, name = text.rpartition(":")
    return (str(_absolute(place, base)) if _is_path(place) else place), name


def digest_of(reference: Reference) -> str:
    """Return a short digest of a loaded graph: its project file, and all of its imported code."""
    found = hashlib.sha256(json.dumps(reference.stated, sort_keys=True, default=str).encode())
    for name, file in sorted((_below(file, _roots(reference)), file) for file in code_of(reference)):
        found.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:12]


def code_of(reference: Reference) -> set[Path]:
    """Return the files of a loaded graph's imported code, without installed packages."""
    below = tuple(f"{root}/".replace("//", "/") for root in _roots(reference))
    package = reference.module.partition(".")[0]
    loaded = [(name, file) for name, one in list(sys.modules.items()) if (file := getattr(one, "__file__", None))]
    # Thousands of modules are loaded, and comparing texts is much faster than comparing paths.
    plain = [(name, str(Path(file)) if "/./" in file or "//" in file else file) for name, file in loaded]
    own = {file for name, file in plain if (package and name.partition(".")[0] == package) or file.startswith(below)}
    files = {*map(Path, own), reference.file or Path()}
    return {file for file in files if file.is_file() and "site-packages" not in file.parts}


def _roots(reference: Reference) -> tuple[Path, ...]:
    return (reference.project, *reference.folders) if reference.file else ()


def _below(file: Path, roots: Sequence[Path]) -> str:
    """Return a file's path inside its project, because machines may keep projects in different places."""
    return next((str(file.relative_to(root)) for root in roots if file.is_relative_to(root)), file.name)
