"""The table of surfaces: what each part of the program adds to it, and which parts are installed.

A part that adds commands, a daemon, settings or checks says so in a module `surface.py` of its own, which defines
`SURFACE` and imports nothing but this module. The table is what a scan of the installed packages finds: a part whose
folder was removed adds nothing, and the rest runs on without it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from os import scandir
from os.path import isfile
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("agent_runtime", "task_runner", "turnkeeper")
_DEEPEST = 2  # folders below a package in which a surface may register


class Panel(StrEnum):
    """What people want to do, in the order in which help lists it."""

    START = "Start and stop"
    WORK = "Give an agent work"
    FIRE = "Fire, pause and resume"
    TALK = "Talk and decide"
    LOOK = "See what happens and why"
    KNOW = "What an agent knows and may do"
    HOME = "Look after the home"


class Later(NamedTuple):
    """A command that is imported when it is used.

    Attributes:
        target: `MODULE:NAME` of a function, or of a Typer with a group.
        summary: the first sentence of its help.
        panel: the heading under which help lists it; None for one that help does not list.
    """

    target: str
    summary: str
    panel: Panel | None


class Mount(NamedTuple):
    """What the gateway serves under a path.

    Attributes:
        path: the path; empty for all that no other one takes.
        target: `MODULE:NAME` of a function that makes the application.
        package: the package of an extra without which it is not served; empty if it takes none.
    """

    path: str
    target: str
    package: str = ""


class Process(NamedTuple):
    """A process that runs if its section of config.toml says `enabled = true`.

    Attributes:
        name: the process, and the section.
        package: the package that it is started from.
        reads: the sections of config.toml that it reads.
        asks: the daemons that must run on the machine, too.
        extra: the extra that it needs; empty if it needs none.
        needs: the modules of that extra.
    """

    name: str
    package: str
    reads: frozenset[str]
    asks: frozenset[str]
    extra: str = ""
    needs: tuple[str, ...] = ()


class Surface(NamedTuple):
    """What one part of the program adds to it.

    Attributes:
        name: the part, as documents call it.
        place: where its commands stand in help among those of other parts, the lowest first.
        commands: its commands of `turnkeeper`, by name.
        settings: the sections of config.toml that it alone reads.
        process: the process that it adds, if any.
        listens: returns, by process, where settings let it listen on TCP.
        mount: what it serves over HTTP, if anything.
        observers: by process, or "turns", `MODULE:NAME` of a function that makes an observer, or None.
        offers: by name, `MODULE:NAME` of what the core uses if it is there.
        also: modules elsewhere that are removed with its folder.
        needs: the names of surfaces without which this one does not work.
        is_core: whether the main job needs it; any other one may be removed with its folder.
    """

    name: str
    place: int = 50
    commands: Mapping[str, Later] = {}
    settings: tuple[str, ...] = ()
    process: Process | None = None
    listens: Callable[[Any], Mapping[str, str]] = lambda _settings: {}
    mount: Mount | None = None
    observers: Mapping[str, str] = {}
    offers: Mapping[str, str] = {}
    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_core: bool = False


def commands_in(package: str, panels: Mapping[Panel, Mapping[str, str]]) -> dict[str, Later]:
    """Return commands with the names of their functions; a function's trailing _ avoids Python's words.

    Args:
        package: the package that holds them.
        panels: by heading and by `MODULE:NAME` in that package, the first sentence of the help.
    """
    rows = ((panel, *row) for panel, said in panels.items() for row in said.items())
    return {at.split(":")[1].rstrip("_"): Later(f"{package}.{at}", summary, panel) for panel, at, summary in rows}


@cache
def surfaces() -> Mapping[str, Surface]:
    """Return the installed surfaces by the name of the folder's module, in the order of help."""
    found = {module: _read(module, file) for module, file in _files()}
    return dict(sorted(found.items(), key=lambda one: (one[1].place, one[1].name)))


def commands(package: str = "") -> dict[str, Later]:
    """Return the commands that the surfaces within a package add, by name; those of all packages if none is named."""
    found = (one for module, one in surfaces().items() if f"{module}.".startswith(f"{package}." if package else ""))
    return {name: later for surface in found for name, later in surface.commands.items()}


def processes() -> tuple[Process, ...]:
    return tuple(one.process for one in surfaces().values() if one.process is not None)


def imported(target: str) -> Any:
    """Import a module and return what `MODULE:NAME` names in it."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def offered(name: str, *given: Any) -> Any:
    """Make what an installed surface offers under a name; None if none does."""
    found = next((one.offers[name] for one in surfaces().values() if name in one.offers), None)
    return None if found is None else imported(found)(*given)


def _files() -> Iterator[tuple[str, str]]:
    """Yield each folder that registers a surface, as a module's name, and the file that does so."""
    folders = [(package, str(_ROOT / package)) for package in _PACKAGES]
    for _ in range(_DEEPEST):
        inner = [(name, one) for name, folder in folders for one in scandir(folder) if one.is_dir()]
        folders = [(f"{name}.{one.name}", one.path) for name, one in inner if one.name != "__pycache__"]
        for name, folder in folders:
            if isfile(file := f"{folder}/surface.py"):  # noqa: PTH113  every command waits for this
                yield name, file


def _read(folder: str, file: str) -> Surface:
    """Import a module `surface.py`, but none of the packages around it, which may load what takes long."""
    name = f"{folder}.surface"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} cannot be imported")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    surface: Surface = sys.modules[name].SURFACE
    return surface
