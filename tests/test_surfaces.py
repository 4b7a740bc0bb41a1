"""Surfaces: each registers itself in a light module, and lifts off: the main job works without it."""

import ast
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.forked import Template
from tests.test_tidy import lines, module_name, own_modules
from turnkeeper.config.surfaces import commands, required, subcommands, surfaces
from turnkeeper.config.toml_file import with_key
from turnkeeper.errors import EXIT_DENIED, EXIT_USAGE, NotInstalled

ROOT = Path(__file__).parent.parent
PACKAGES = ("turnkeeper", "task_runner", "agent_runtime")
MOST_CORE_LINES = 51_308  # a ratchet: lower it when the core gets smaller; never raise it
REMOVABLE = {module: one for module, one in surfaces().items() if not one.is_core}
EVERY_COMMAND = """
import sys
from pathlib import Path
import turnkeeper
from turnkeeper import console
from turnkeeper.console import commands
assert Path(turnkeeper.__file__).is_relative_to(sys.argv[1]), "the copy is imported, not what is installed"
for argv in ([], ["-h"]):
    assert console.run(console.program(), argv, commands.Program) == 0
app = console.program()
console._declare_common(app)
def use(group):
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        if isinstance(found, commands.Group):
            use(found)
use(commands.build(app, commands.Program))
"""
MAIN_JOB = """
import agent_runtime.daemon.assembly, agent_runtime.daemon.__main__
import task_runner.daemon.assembly, task_runner.daemon.__main__
import turnkeeper.constellation.restart, turnkeeper.constellation.supervisor.__main__
"""
TASK = ("--cron", "0 9 * * *", "--channel", "general", "--category", "catch-up-summary")


def within(module: str, folders: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{folder}.") for folder in folders)


def gone_with(module: str) -> frozenset[str]:
    """Return the folders that are removed with a surface: also those of surfaces that need it."""
    gone, names = {module}, {one.name: folder for folder, one in surfaces().items()}
    while more := {
        folder
        for folder, one in REMOVABLE.items()
        if folder not in gone and any(names[name] in gone for name in one.needs)
    }:
        gone |= more
    return frozenset(gone)


def parts_of(module: str) -> list[str]:
    """Return all modules and folders that are removed with a surface."""
    return [part for folder in gone_with(module) for part in (folder, *surfaces()[folder].also)]


def named(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a node imports, or names as a text."""
    match node:
        case ast.Import(names=aliases):
            yield from (alias.name for alias in aliases)
        case ast.ImportFrom(module=str(module), names=aliases):
            yield from (module, *(f"{module}.{alias.name}" for alias in aliases))
        case ast.Constant(value=str(text)) if " " not in text:
            yield text.partition(":")[0]


@pytest.mark.parametrize("module", surfaces())
def test_a_registration_imports_nothing_but_the_table(module: str) -> None:
    tree = ast.parse((ROOT / module.replace(".", "/") / "surface.py").read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {node.module for node in imported} <= {"turnkeeper.config.surfaces", "collections.abc", "typing"}


def test_each_command_is_added_once() -> None:
    counted = Counter(name for surface in surfaces().values() for name in surface.commands)
    assert max(counted.values()) == 1
    assert set(commands("turnkeeper")) < set(counted) == set(commands())


def test_each_subcommand_is_added_once() -> None:
    counted = Counter(
        (group, name) for one in surfaces().values() for group in one.subcommands for name in one.subcommands[group]
    )
    assert max(counted.values()) == 1
    assert {name for group, name in counted if group == "task"} == set(subcommands("task"))


def test_an_answer_of_a_removed_surface_is_an_error() -> None:
    with pytest.raises(NotInstalled, match="Levitate was removed"):
        required("Levitate", "a request")


def test_no_other_module_names_a_surface_that_it_does_not_need() -> None:
    found, parts = [], {module: parts_of(module) for module in REMOVABLE}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        importer = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        foreign = [part for own in parts.values() if not within(importer, own) for part in own]
        names = {name for node in ast.walk(ast.parse(path.read_text())) for name in named(node)}
        ours = (name for name in names if name.startswith(PACKAGES))
        found += [f"{importer}: {name}" for name in ours if within(name, foreign)]
    assert not found


def copy_without(folder: Path, gone: Iterable[str]) -> Path:
    """Make a copy of the program, of links to its files, in which the folders of some surfaces are missing."""
    for package in (*PACKAGES, "categories"):
        shutil.copytree(ROOT / package, folder / package, copy_function=os.symlink)
    for module in gone:
        shutil.rmtree(folder / module.replace(".", "/"), ignore_errors=True)
        for other in surfaces()[module].also:
            (folder / other.replace(".", "/")).with_suffix(".py").unlink()
    return folder


@pytest.fixture(scope="module")
def python() -> Iterator[list[str]]:
    """A command line that does what `python -P` does, in a fork that has imported what others have made."""
    template = Template("tests.support.forked_copies", EVERY_COMMAND, str(ROOT))
    yield template.fork
    template.close()


def run(python: list[str], copy: Path, *argv: str, home: Path | None = None, code: int = 0) -> str:
    """Run Python on a copy of the program; return what it prints."""
    environ = {**os.environ, "PYTHONPATH": str(copy), "TURNKEEPER_HOME": str(home or copy / "home")}
    done = subprocess.run(
        [*python, *argv], cwd=copy, env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == code, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("module", REMOVABLE)
def test_without_a_surface_every_other_command_is_there(module: str, tmp_path: Path, python: list[str]) -> None:
    copy = copy_without(tmp_path, gone_with(module))
    said = run(python, copy, "-c", EVERY_COMMAND, str(copy))
    assert not [name for name in REMOVABLE[module].commands if f"  {name} " in said]
    assert all(name in said for name in ("init", "up", "task", "approvals"))


def test_without_any_surface_the_main_job_works(tmp_path_factory: pytest.TempPathFactory, python: list[str]) -> None:
    place = tmp_path_factory.mktemp("job")
    copy, home = copy_without(place / "copy", REMOVABLE), place / "home"
    run(python, copy, "-c", MAIN_JOB)

    def turnkeeper(*argv: str, code: int = 0) -> str:
        return run(python, copy, "-m", "turnkeeper.constellation", *argv, home=home, code=code)

    turnkeeper("init", "--yes")
    config = home / "config.toml"
    config.write_text(with_key(config.read_text(), "query", "texts", value=True))
    turnkeeper("up")
    try:
        assert "running" in turnkeeper("status")
        assert "[query] is ignored" in turnkeeper("doctor")
        turnkeeper("task", "create", "digest", *TASK, "--prompt", "Summarize the day.")
        turnkeeper("task", "run", "digest", "--wait")
        assert "digest" in turnkeeper("task", "history")
        turnkeeper("task", "explain", "digest", code=EXIT_USAGE)
        turnkeeper("task", "create", "boiler", *TASK, "--prompt", "Remember: the boiler is old")
        turnkeeper("task", "run", "boiler", "--wait", code=EXIT_DENIED)
        (waiting,) = json.loads(turnkeeper("approvals", "list", "--json"))
        turnkeeper("approvals", "resolve", waiting["interrupt_id"], "--approve")
        assert json.loads(turnkeeper("approvals", "list", "--json")) == []
    finally:
        turnkeeper("down")


def surface_sizes() -> dict[str, int]:
    """Return the lines of each removable surface, by its name; each module counts for the innermost one."""
    sizes = Counter[str]()
    for path in own_modules():
        owners = [folder for folder, one in REMOVABLE.items() if within(module_name(path), (folder, *one.also))]
        if owners:
            sizes[REMOVABLE[max(owners, key=len)].name] += lines(path)
    return sizes


def core_sizes() -> dict[str, int]:
    """Return the lines of the core, by the folder or module below each package."""
    parts = [part for module in REMOVABLE for part in parts_of(module)]
    sizes = Counter[str]()
    for path in own_modules():
        if not within(module_name(path), parts):
            sizes["/".join(path.relative_to(ROOT).parts[:2])] += lines(path)
    return sizes


def near(said: str, real: int, share: float) -> bool:
    return abs(int(said.replace(",", "")) - real) <= max(share * real, 60)


def test_the_page_says_how_large_the_core_and_each_surface_are() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    core, surface = core_sizes(), surface_sizes()
    assert sum(core.values()) <= MOST_CORE_LINES
    (total,) = re.findall(r"about ([\d,]+) lines of Python", text)
    assert near(total, sum(core.values()), 0.03), sum(core.values())
    rooms = dict(re.findall(r"^\| `([\w/]+)` \| [^|]+ \| ([\d,]+) \|$", text, re.MULTILINE))
    assert rooms.keys() == {room for room in core if (ROOT / room).is_dir()}
    assert not {room: core[room] for room, said in rooms.items() if not near(said, core[room], 0.1)}
    places = {one.name: module.replace(".", "/") for module, one in REMOVABLE.items()}
    listed = re.findall(r"^\| ([\w-]+) \| [^|]+ \| `([\w/]+)` \| ([\d,]+) \| ([^|]*)\|$", text, re.MULTILINE)
    assert {name: place for name, place, _, _ in listed} == places
    assert not {name: surface[name] for name, _, said, _ in listed if not near(said, surface[name], 0.1)}
    for module, one in REMOVABLE.items():
        (with_it,) = (rest for name, _, _, rest in listed if name == one.name)
        inner = {REMOVABLE[folder].name for folder in gone_with(module) - {module}}
        inner |= {other.name for folder, other in REMOVABLE.items() if folder.startswith(f"{module}.")}
        wanted = inner | {f"`{other.replace('.', '/')}.py`" for other in one.also}
        assert set(filter(None, with_it.strip().split(", "))) == wanted
