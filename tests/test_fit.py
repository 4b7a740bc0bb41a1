"""The table of minimums in docs/fit.md says what the package requires."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_table_of_minimums_says_what_the_package_requires() -> None:
    table = re.findall(r"^\| ([a-z0-9-]+) \| ([0-9.]+) \|", (ROOT / "docs/fit.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [f"{name}>={version}" for name, version in table] == project["dependencies"]
