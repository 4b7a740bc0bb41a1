"""What a project needs to have installed is found without installing; what is installed already never changes."""

import json
import os
import subprocess
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from agent_runtime.cli import app
from agent_runtime.graph.foreign.load import load
from agent_runtime.graph.foreign.packages import Packages, packages_of
from agent_runtime.graph.foreign.project import find_graph
from turnkeeper.console import run
from turnkeeper.errors import InvalidInput

HERE = metadata.version("langgraph")


def needed(folder: Path, *dependencies: str) -> Packages:
    (folder / "agent.py").write_text("import no_such_package_here\n")
    project = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": list(dependencies)}
    (folder / "langgraph.json").write_text(json.dumps(project))
    return packages_of(find_graph("./langgraph.json:agent", folder))


@pytest.mark.parametrize(
    ("file", "text", "missing", "conflicts"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["langgraph>=1", "Tiny_One>=2"]', ["Tiny_One>=2"], []),
        ("pyproject.toml", '[project]\ndependencies = ["tiny; python_version < \'3\'"]', [], []),
        ("pyproject.toml", '[project]\ndependencies = ["langgraph<1"]', [], [f"needs langgraph<1, and {HERE} is installed"]),
        ("pyproject.toml", '[project]\ndynamic = ["dependencies"]', ["-e HERE"], []),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntiny = "^1"', ["-e HERE"], []),
        ("requirements.txt", "# of ours\nlanggraph\ntiny==1  # the newest\n", ["tiny==1"], []),
        ("requirements.txt", "tiny\n-r other.txt\n", ["-r HERE/requirements.txt"], []),
        ("setup.py", "", ["-e HERE"], []),
        ("README.md", "", [], []),
    ],
)  # fmt: skip
def test_what_is_missing_is_found_in_every_form(
    tmp_path: Path, file: str, text: str, missing: list[str], conflicts: list[str]
) -> None:
    (tmp_path / file).write_text(text)
    found = needed(tmp_path, ".")
    assert [one.replace(str(tmp_path), "HERE") for one in found.missing] == missing
    assert list(found.conflicts) == conflicts
    assert bool(found.command) == bool(missing)


def test_a_package_beside_folders_is_asked_for_too(tmp_path: Path) -> None:
    found = needed(tmp_path, "tiny>=1", "langgraph", ".")
    assert found.missing == ("tiny>=1",)
    assert found.command.endswith("install 'tiny>=1'")


async def test_a_project_that_lacks_a_package_says_the_command(tmp_path: Path) -> None:
    needed(tmp_path, "tiny>=1")
    with pytest.raises(InvalidInput, match=r"No module named 'no_such_package_here'; run: .*install 'tiny>=1'"):
        async with load(find_graph("./langgraph.json:agent", tmp_path), {}):
            pass


async def test_a_module_that_no_file_lists_is_named_and_no_package_is_guessed(tmp_path: Path) -> None:
    needed(tmp_path, "langgraph")
    with pytest.raises(InvalidInput, match="no file of the project lists a package with no_such_package_here; find it"):
        async with load(find_graph("./langgraph.json:agent", tmp_path), {}):
            pass
    needed(tmp_path, "tiny>=1")
    with pytest.raises(InvalidInput, match="install .*; if no_such_package_here is still missing then, no file"):
        async with load(find_graph("./langgraph.json:agent", tmp_path), {}):
            pass


def test_a_project_file_above_the_folder_of_the_graph_counts_as_far_as_the_repository_goes(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "src" / "agent"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["stranger"]')
    (tmp_path / "repository" / ".git").mkdir()
    assert needed(inner, ".").missing == (), "a file above the repository belongs to another project"
    (tmp_path / "repository" / "pyproject.toml").write_text('[project]\ndependencies = ["tiny"]')
    assert needed(inner, ".").missing == ("tiny",)
    assert packages_of(find_graph("./agent.py:graph", inner)).missing == ("tiny",)


def test_an_extra_that_is_not_installed_is_missing(tmp_path: Path) -> None:
    assert needed(tmp_path, "uvicorn[no-such-extra]", "uvicorn").missing == ("uvicorn[no-such-extra]",)


def test_no_older_version_without_the_extra_is_installed_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path, "")
    wheel(tmp_path, "Provides-Extra: more\nRequires-Dist: langgraph<0.1\n", version="2.0")
    needed(tmp_path, "tiny[more]")
    for name, value in {"TARGET": "here", "NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.chdir(tmp_path)
    assert run(app, ["graph", "install", "./langgraph.json:agent"]) == 1
    said = capfd.readouterr().err
    assert (
        "tiny[more] cannot be installed here: tiny 1.0, the newest version that fits, has no extra more; nothing"
        in said
    )
    assert not (tmp_path / "here").exists()


_UV = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
  *--dry-run*) echo 'warning: The package `tiny==1.0` does not have an extra named `more`' >&2 ;;
  *) echo installed >> {calls} ;;
esac
"""


def test_nor_by_uv_where_there_is_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    uv, calls = tmp_path / "uv", tmp_path / "calls"
    uv.write_text(_UV.format(calls=calls))
    uv.chmod(0o700)
    needed(tmp_path, "tiny[more]")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("turnkeeper.config.build.util.find_spec", lambda _name: None)
    monkeypatch.chdir(tmp_path)
    assert run(app, ["graph", "install", "./langgraph.json:agent"]) == 1
    said = capfd.readouterr().err
    assert (
        "tiny[more] cannot be installed here: tiny 1.0, the newest version that fits, has no extra more; nothing"
        in said
    )
    (tried,) = calls.read_text().splitlines()
    assert "--dry-run" in tried


def wheel(folder: Path, requires: str, version: str = "1.0") -> str:
    file = folder / f"tiny-{version}-py3-none-any.whl"
    about = f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n{requires}"
    info = f"tiny-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("tiny.py", "")
        made.writestr(f"{info}/METADATA", about)
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return f"tiny @ file://{file}"


@pytest.mark.parametrize(("requires", "code"), [("", 0), ("Requires-Dist: langgraph<0.1\n", 1)])
def test_what_is_missing_is_installed_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], requires: str, code: int
) -> None:
    needed(tmp_path, wheel(tmp_path, requires))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "here"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.chdir(tmp_path)
    run_program, arguments = subprocess.run, []
    monkeypatch.setattr(subprocess, "run", lambda argv, **how: arguments.extend(argv) or run_program(argv, **how))
    assert run(app, ["graph", "install", "./langgraph.json:agent"]) == code
    assert not [one for one in arguments if "://" in one], (
        "other users can read arguments, and an address has passwords"
    )
    said = capfd.readouterr().err
    assert (tmp_path / "here" / "tiny.py").exists() == (code == 0), said
    assert (f"(constraint) langgraph=={HERE}" in said) == (code == 1)


def test_a_dry_run_prints_the_command_and_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed(tmp_path, "tiny>=1")
    monkeypatch.chdir(tmp_path)
    assert run(app, ["graph", "install", "--dry-run", "./langgraph.json:agent"]) == 0
    assert capsys.readouterr().out.endswith("install 'tiny>=1'\n")
    needed(tmp_path, "langgraph")
    assert run(app, ["graph", "install", "./langgraph.json:agent"]) == 0
    assert "all packages that the project lists are installed" in capsys.readouterr().err
