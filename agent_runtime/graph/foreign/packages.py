"""What a project needs to have installed: what of it is missing, and the command that installs it.

A project says so as LangGraph projects do: `dependencies` of its `langgraph.json` are packages, or folders with a
`pyproject.toml` or a `requirements.txt`. Its own code is imported from its folder and needs no installation.
"""

import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from agent_runtime.graph.foreign.project import Reference
from turnkeeper.config.build import installer
from turnkeeper.errors import InvalidInput, TurnkeeperError

LONGEST_INSTALL_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Packages:
    """What a project needs and does not find.

    Attributes:
        missing: what an installer is asked for: requirements, or `-r FILE` and `-e FOLDER` where these are not listed.
        conflicts: in words, requirements that the version installed here does not meet.
    """

    missing: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that installs what is missing where Turnkeeper is installed; empty if nothing is."""
        return (
            shlex.join([*installer(), *(part for one in self.missing for part in _argument(one))])
            if self.missing
            else ""
        )


def packages_of(reference: Reference) -> Packages:
    """Return what a project needs and does not find. Installs and imports nothing."""
    missing, conflicts = [], []
    for asked in dict.fromkeys(_asked(reference)):
        try:
            wanted = Requirement(asked)
        except InvalidRequirement:
            missing.append(asked)  # a file or a folder: only an installer can read it
            continue
        here = _version(wanted.name)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        if here is None:
            missing.append(asked)
        elif not wanted.specifier.contains(here, prereleases=True):
            conflicts.append(f"needs {wanted.name}{wanted.specifier}, and {here} is installed")
    return Packages(missing=tuple(missing), conflicts=tuple(conflicts))


def hint(reference: Reference) -> str:
    """Return what to do about a module that is not there."""
    command = packages_of(reference).command
    return f"run: {command}" if command else "install what the project needs where turnkeeper is installed"


def install(packages: Packages) -> None:
    """Install what is missing; nothing that is installed changes, so that Turnkeeper goes on as it is.

    Raises:
        TurnkeeperError: the installer failed; it has said why.
    """
    pinned = [f"{one.name}=={one.version}" for one in metadata.distributions() if one.name and "+" not in one.version]
    # In a file: an address of a package may hold a password, and other users can read the arguments of a program.
    wanted = [one for one in packages.missing if not one.startswith("-")]
    places = [part for one in packages.missing if one.startswith("-") for part in _argument(one)]
    with _lines(dict.fromkeys(pinned)) as constraints, _lines(wanted) as requirements:
        program = [*installer(), "--constraint", constraints, *(["-r", requirements] if wanted else []), *places]
        done = subprocess.run(program, stdout=sys.stderr, timeout=LONGEST_INSTALL_S, check=False)  # noqa: S603  what the author asked for
    if done.returncode:
        what = f"the installer ended with exit code {done.returncode}; nothing that was installed has changed"
        raise TurnkeeperError(what, hint="what the project needs must go together with what is installed here")


@contextmanager
def _lines(lines: Iterable[str]) -> Iterator[str]:
    """Write lines to a file, mode 0600, that is there meanwhile; yield its path."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(lines))
        file.flush()
        yield file.name


def _argument(asked: str) -> Sequence[str]:
    return asked.split(" ", 1) if asked.startswith("-") else (asked,)


def _asked(reference: Reference) -> Iterator[str]:
    """Yield what a project asks for: requirements, files and folders."""
    named = reference.stated.get("dependencies") or ()
    folders = [(reference.project / item).resolve() for item in named if (reference.project / item).is_dir()]
    for folder in folders or ([reference.project] if reference.file is not None else []):
        yield from _of_folder(folder)
    yield from (item for item in named if not item.startswith(".") and not (reference.project / item).is_dir())


def _of_folder(folder: Path) -> Iterator[str]:
    stated, listed = folder / "pyproject.toml", folder / "requirements.txt"
    if stated.is_file():
        project = _project_in(stated)
        if "dependencies" in project:
            yield from map(str, project["dependencies"])
        elif "dependencies" in project.get("dynamic", ()) or not project:
            yield f"-e {folder}"
    elif listed.is_file():
        lines = [line.split(" #")[0].strip() for line in listed.read_text(encoding="utf-8").splitlines()]
        wanted = [line for line in lines if line and not line.startswith("#")]
        yield from wanted if all(map(_is_requirement, wanted)) else [f"-r {listed}"]
    elif (folder / "setup.py").is_file():
        yield f"-e {folder}"


def _project_in(path: Path) -> dict[str, list[str]]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"is not TOML: {error}", where=str(path)) from error
    project = found.get("project", {})
    return project if isinstance(project, dict) else {}


def _is_requirement(line: str) -> bool:
    try:
        return bool(Requirement(line))
    except InvalidRequirement:
        return False


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
