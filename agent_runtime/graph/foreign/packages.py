"""The packages that a project needs: the missing ones, and the command that installs them.

A project lists them as LangGraph projects do: `dependencies` in its `langgraph.json` are packages, or folders with a
`pyproject.toml` or a `requirements.txt`. The project's own code is imported from its folder without installation.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from agent_runtime.graph.foreign.project import Reference
from turnkeeper.config.build import install_command
from turnkeeper.errors import InvalidInput, TurnkeeperError

LONGEST_INSTALL_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Packages:
    """The packages that a project lacks.

    Attributes:
        missing: arguments for an installer: requirements, or `-r FILE` and `-e FOLDER` if they cannot be listed here.
        conflicts: sentences about requirements that the installed version does not meet.
    """

    missing: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that installs the missing packages next to Turnkeeper; empty if no package is missing."""
        return (
            shlex.join([*_installer(), *(part for one in self.missing for part in _argument(one))])
            if self.missing
            else ""
        )


def _installer() -> list[str]:
    """Return the command that installs packages beside this one: uv if there is no pip."""
    if util.find_spec("pip") is None and (uv := shutil.which("uv")):
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install"]


def packages_of(reference: Reference) -> Packages:
    """Return the packages that a project lacks. The function installs and imports nothing."""
    missing, conflicts = [], []
    for asked in dict.fromkeys(_asked(reference)):
        try:
            wanted = Requirement(asked)
        except InvalidRequirement:
            missing.append(asked)  # a file or folder that only an installer can read
            continue
        here = _version(wanted.name)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        if here is None or _lacks_extra(wanted):
            missing.append(asked)
        elif not wanted.specifier.contains(here, prereleases=True):
            conflicts.append(f"needs {wanted.name}{wanted.specifier}, and {here} is installed")
    return Packages(missing=tuple(missing), conflicts=tuple(conflicts))


def hint(reference: Reference, module: str) -> str:
    """Return advice about a missing module. The function never guesses a package from the module's name."""
    needed, name = packages_of(reference), module.partition(".")[0]
    if not needed.missing:
        return f"no file of the project lists a package with {name}; find it, then run: {install_command('PACKAGE')}"
    listed = {canonicalize_name(Requirement(one).name) for one in needed.missing if _is_requirement(one)}
    is_sure = canonicalize_name(name) in listed or len(listed) < len(needed.missing)
    more = "" if is_sure else f"; if {name} is still missing then, no file of the project lists its package"
    return f"run: {needed.command}{more}"


def install(packages: Packages) -> None:
    """Install the missing packages without changing installed packages, so that Turnkeeper itself stays the same.

    Raises:
        TurnkeeperError: the installer failed; its output says why.
    """
    pinned = [f"{one.name}=={one.version}" for one in metadata.distributions() if one.name and "+" not in one.version]
    # Use a file, because a package's address may contain a password, and other users can read a program's arguments.
    wanted = [one for one in packages.missing if not one.startswith("-")]
    places = [part for one in packages.missing if one.startswith("-") for part in _argument(one)]
    with _lines(dict.fromkeys(pinned)) as constraints, _lines(wanted) as requirements:
        program = [*_installer(), "--constraint", constraints, *(["-r", requirements] if wanted else []), *places]
        asked = [Requirement(one) for one in wanted if _is_requirement(one) and Requirement(one).extras]
        if asked:
            _check_extras(program, asked)
        done = subprocess.run(program, stdout=sys.stderr, timeout=LONGEST_INSTALL_S, check=False)  # noqa: S603  what the author asked for
    if done.returncode:
        what = f"the installer ended with exit code {done.returncode}; nothing that was installed has changed"
        raise TurnkeeperError(what, hint=_TOGETHER)
    for one in asked:
        if (here := _version(one.name)) is not None and _lacks_extra(one):
            raise TurnkeeperError(f"{one.name} {here} was installed, which does not satisfy {one}", hint=_TOGETHER)


_UV_LACKS = re.compile(r"The package `([^`]+)` does not have an extra named `([^`]+)`")
_TOGETHER = "the packages that the project needs must be compatible with the packages that are installed here"


def _check_extras(program: Sequence[str], asked: Sequence[Requirement]) -> None:
    """Raise TurnkeeperError if the installer would install an old version that lacks a requested extra.

    pip and uv only warn about such a version. If they find no version, the installation itself fails with the reason.
    """
    if program[1] == "pip":  # output of uv, which writes no report
        argv = [*program, "--dry-run"]
        tried = subprocess.run(argv, capture_output=True, text=True, timeout=LONGEST_INSTALL_S, check=False)  # noqa: S603  as below
        for version, extra in _UV_LACKS.findall(tried.stderr):
            _refuse(version.partition("==")[0], version.replace("==", " "), extra)
        return
    with tempfile.NamedTemporaryFile("r", suffix=".json", encoding="utf-8") as file:
        argv = [*program, "--dry-run", "--quiet", "--report", file.name]
        done = subprocess.run(argv, stdout=sys.stderr, timeout=LONGEST_INSTALL_S, check=False)  # noqa: S603  as below
        chosen = [one["metadata"] for one in json.load(file)["install"]] if done.returncode == 0 else []
    for one in asked:
        for found in chosen:
            has = {canonicalize_name(extra) for extra in found.get("provides_extra", ())}
            lacking = {canonicalize_name(extra) for extra in one.extras} - has
            if canonicalize_name(found["name"]) == canonicalize_name(one.name) and lacking:
                _refuse(one.name, f"{one.name} {found['version']}", ", ".join(lacking))


def _refuse(name: str, version: str, extra: str) -> NoReturn:
    what = f"{name}[{extra}] cannot be installed here: {version}, the newest version that fits, has no extra {extra}"
    raise TurnkeeperError(f"{what}; nothing was installed", hint=_TOGETHER)


def _lacks_extra(wanted: Requirement) -> bool:
    """Return whether an installed package lacks a requested extra, or a package that the extra needs."""
    if not wanted.extras or _version(wanted.name) is None:
        return False
    has = {canonicalize_name(one) for one in metadata.metadata(wanted.name).get_all("Provides-Extra") or ()}
    takes = [Requirement(one) for one in metadata.requires(wanted.name) or ()]
    own = [one for one in takes for extra in wanted.extras if one.marker and one.marker.evaluate({"extra": extra})]
    return not {canonicalize_name(one) for one in wanted.extras} <= has or any(
        _version(one.name) is None for one in own
    )


@contextmanager
def _lines(lines: Iterable[str]) -> Iterator[str]:
    """Write lines to a temporary file, mode 0600; yield its path."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(lines))
        file.flush()
        yield file.name


def _argument(asked: str) -> Sequence[str]:
    return asked.split(" ", 1) if asked.startswith("-") else (asked,)


def _asked(reference: Reference) -> Iterator[str]:
    """Yield the requirements, files and folders that a project lists."""
    named = reference.stated.get("dependencies") or ()
    folders = [(reference.project / item).resolve() for item in named if (reference.project / item).is_dir()]
    for folder in folders or ([reference.project] if reference.file is not None else []):
        yield from _of_folder(folder)
    yield from (item for item in named if not item.startswith(".") and not (reference.project / item).is_dir())


def _of_folder(folder: Path) -> Iterator[str]:
    """Yield the requirements of the nearest files that list any; a graph may be in a subfolder of its project."""
    folder = next((one for one in _upwards(folder) if any((one / name).is_file() for name in _SAYING)), folder)
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


_SAYING = ("pyproject.toml", "requirements.txt", "setup.py")
_MOST_UP = 4  # folders


def _upwards(folder: Path) -> Iterator[Path]:
    """Yield a folder and its parents up to the repository's root, but never a home folder."""
    for one in (folder, *folder.parents)[: _MOST_UP + 1]:
        if one == Path.home() and one != folder:
            return
        yield one
        if (one / ".git").exists():
            return


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
