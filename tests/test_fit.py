"""The table of minimums in docs/fit.md and the locks agree with what the package requires."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [Requirement(line) for line in PROJECT["dependencies"]]


def locked(path: str) -> dict[str, Version]:
    found = re.findall(r"^([a-z0-9-]+)(?:\[.*\])?==([0-9a-z.]+)", (ROOT / path).read_text(), re.MULTILINE)
    return {name: Version(version) for name, version in found}


def test_the_table_of_minimums_says_what_the_package_requires() -> None:
    table = re.findall(r"^\| ([a-z0-9-]+) \| ([0-9.]+) \|", (ROOT / "docs/fit.md").read_text(), re.MULTILINE)
    assert [f"{name}>={version}" for name, version in table] == PROJECT["dependencies"]


@pytest.mark.parametrize(
    "lock", ["requirements.lock", *(f"tests/fit/{name}.lock" for name in ("lowest", "beside", "bare"))]
)
def test_each_lock_has_what_the_package_requires(lock: str) -> None:
    versions = locked(lock)
    assert [str(one) for one in REQUIRED if not one.specifier.contains(versions[one.name])] == [], "run: make lock"


def test_the_bare_lock_has_each_minimum() -> None:
    versions = locked("tests/fit/bare.lock")
    lowest = {one.name: Version(next(iter(one.specifier)).version) for one in REQUIRED}
    assert {name: versions[name] for name in lowest} == lowest, "run: make lock, or raise the minimum to what it has"
