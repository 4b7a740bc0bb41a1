"""The table of surfaces: the additions of each part to the program, and the parts that are installed.

A part that adds commands, a daemon, settings or checks has a module `surface.py`. The module defines `SURFACE` and
imports only this module. The table comes from a scan of the installed packages. If the folder of a part was removed,
the part adds nothing, and all other parts work.
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

from turnkeeper.errors import NotInstalled

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("agent_runtime", "task_runner", "turnkeeper")
_DEEPEST = 2  # levels of folders in a package in which a surface may register


class Panel(StrEnum):
    """The goals of users, in the order in which help lists them."""

    START = "Start and stop"
    WORK = "Give an agent work"
    FIRE = "Fire, pause and resume"
    TALK = "Talk and decide"
    LOOK = "See what happens and why"
    KNOW = "Knowledge and rights"
    HOME = "Look after the home"


class Later(NamedTuple):
    """A command that is imported when it is used.

    Attributes:
        target: `MODULE:NAME` of a function, or of a Typer with a group.
        summary: the first sentence of its help.
        panel: the heading under which help lists the command; None if help does not list it.
    """

    target: str
    summary: str
    panel: Panel | None


class Mount(NamedTuple):
    """An application that the gateway serves below a path.

    Attributes:
        path: the path; empty for all paths that no other application serves.
        target: `MODULE:NAME` of a function that makes the application.
        package: the package of the extra that it needs; empty if it needs none.
    """

    path: str
    target: str
    package: str = ""


class Process(NamedTuple):
    """A process that runs if its section of config.toml contains `enabled = true`.

    Attributes:
        reads: the sections of config.toml that it reads.
        asks: the daemons that must also run on the machine.
        extra: the extra of the package that it needs; empty if it needs none.
        needs: the modules of that extra.
    """

    name: str
    package: str
    reads: frozenset[str]
    asks: frozenset[str]
    extra: str = ""
    needs: tuple[str, ...] = ()


class Surface(NamedTuple):
    """The additions of one part to the program.

    Attributes:
        name: the name of the part in documents.
        place: the position of its commands in help, lowest first.
        commands: its commands of `turnkeeper`, by name.
        subcommands: its commands in groups of other parts, by group.
        settings: the sections of config.toml that only this part reads.
        listens: returns the TCP addresses from the settings, by process.
        mount: its HTTP application, if any.
        observers: by process, or "turns", `MODULE:NAME` of a function that makes an observer, or None.
        declared_in: files of the home. If there are any, the observers are made once one of them exists, or once
            config.toml sets a key of a section of `settings`.
        offers: by name, `MODULE:NAME` of functions that the core uses if installed.
        also: modules in other folders that are removed with the folder of the part.
        needs: the names of surfaces that this one requires.
        is_core: True if the main job needs this part; the folders of other surfaces may be removed.
    """

    name: str
    place: int = 50
    commands: Mapping[str, Later] = {}
    subcommands: Mapping[str, Mapping[str, Later]] = {}
    settings: tuple[str, ...] = ()
    process: Process | None = None
    listens: Callable[[Any], Mapping[str, str]] = lambda _settings: {}
    mount: Mount | None = None
    observers: Mapping[str, str] = {}
    declared_in: tuple[str, ...] = ()
    offers: Mapping[str, str] = {}
    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_core: bool = False


def commands_in(package: str, panels: Mapping[Panel, Mapping[str, str]]) -> dict[str, Later]:
    """Return commands with the names of their functions, without the trailing _ that avoids Python's keywords.

    Args:
        panels: the first sentence of a command's help, by heading and then by `MODULE:NAME` in the package.
    """
    rows = ((panel, *row) for panel, said in panels.items() for row in said.items())
    return {at.split(":")[1].rstrip("_"): Later(f"{package}.{at}", summary, panel) for panel, at, summary in rows}


@cache
def surfaces() -> Mapping[str, Surface]:
    """Return the installed surfaces by module name, in the order of help."""
    found = {module: _read(module, file) for module, file in _files()}
    return dict(sorted(found.items(), key=lambda one: (one[1].place, one[1].name)))


def commands(package: str = "") -> dict[str, Later]:
    """Return the commands of the surfaces in a package, or of all surfaces, by name."""
    found = (one for module, one in surfaces().items() if f"{module}.".startswith(f"{package}." if package else ""))
    return {name: later for surface in found for name, later in surface.commands.items()}


def subcommands(group: str) -> dict[str, Later]:
    """Return the commands that surfaces add to a group, by name."""
    found = (one.subcommands.get(group, {}) for one in surfaces().values())
    return {name: later for added in found for name, later in added.items()}


def processes() -> tuple[Process, ...]:
    return tuple(one.process for one in surfaces().values() if one.process is not None)


def imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def offered(name: str, *given: Any, **options: Any) -> Any:
    """Call the function that an installed surface offers under a name. Return None if no surface offers it."""
    found = next((one.offers[name] for one in surfaces().values() if name in one.offers), None)
    return None if found is None else imported(found)(*given, **options)


def gathered(name: str, *given: Any) -> Iterator[Any]:
    """Yield the values of the function that each installed surface offers under a name."""
    for target in [one.offers[name] for one in surfaces().values() if name in one.offers]:
        yield from imported(target)(*given)


def required(name: str, *given: Any, **options: Any) -> Any:
    """Call the function that an installed surface offers under a name. Raises NotInstalled if no surface offers it."""
    if (answer := offered(name, *given, **options)) is None:
        raise NotInstalled(f"the part of Turnkeeper that answers {name} was removed")
    return answer


def _files() -> Iterator[tuple[str, str]]:
    """Yield the package of each folder that registers a surface, and the file that defines the surface."""
    folders = [(package, str(_ROOT / package)) for package in _PACKAGES]
    for _ in range(_DEEPEST):
        inner = [(name, one) for name, folder in folders for one in scandir(folder) if one.is_dir()]
        folders = [(f"{name}.{one.name}", one.path) for name, one in inner if one.name != "__pycache__"]
        for name, folder in folders:
            if isfile(file := f"{folder}/surface.py"):  # noqa: PTH113  every command waits for this
                yield name, file


def _read(folder: str, file: str) -> Surface:
    """Import a module `surface.py` without the packages around it, which may take long to load."""
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
