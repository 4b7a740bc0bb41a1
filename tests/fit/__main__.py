"""Resolves Turnkeeper beside packages and public projects that agents use, and prints what fits.

    python -m tests.fit

For each package of packages.txt, the resolver picks the version that it picks without Turnkeeper. The package fits if that
version has a solution beside Turnkeeper. For each project of projects.toml, the project's own requirements must have a solution that includes
Turnkeeper. The exit code is 1 if anything conflicts that the table `KNOWN` does not name. The resolver is uv; it asks
the package index, so this is no part of the test suite.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = "3.12"
_AT_ONCE = 4
_LONGEST_S = 300
_REASON = re.compile(r"\bBecause (.+?)(?:, we can conclude|$)", re.DOTALL)
# What cannot be resolved beside Turnkeeper, and why.
KNOWN = {
    "autogen-agentchat": "autogen-core pins protobuf to 5.29; stubs that run on protobuf 6 and 7 do not run on 5",
    "CopilotKit/open-research-ANA": "copilotkit requires langgraph below 1.1",
    "starpig1129/DATAGEN": "it pins langgraph to 1.0.1",
}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A package or a project beside Turnkeeper.

    Attributes:
        name: the package, or the project's repository.
        picked: the version that is picked without Turnkeeper; empty for a project.
        conflict: why there is no solution, or none with that version; empty if it fits.
    """

    name: str
    picked: str = ""
    conflict: str = ""


def own_requirements() -> list[str]:
    """Return what Turnkeeper requires without extras."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def resolve(requirements: list[str]) -> tuple[dict[str, str], str]:
    """Return the picked versions by package name, and the resolver's reason if there is no solution."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
    command += ["--no-config", "--python-version", PYTHON, "--prerelease", "if-necessary-or-explicit", "-"]
    text = "\n".join(requirements)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    if done.returncode:
        words = " ".join(re.sub(r"[│╰─▶×]", " ", done.stderr).split())
        found = _REASON.search(words)
        return {}, found.group(1) if found else words
    picked = (line.partition("==") for line in done.stdout.splitlines() if "==" in line)
    return {name: version.split()[0] for name, _, version in picked}, ""


def package(required: str) -> Fit:
    """Resolve one package alone and beside Turnkeeper."""
    name = re.split(r"[\[<>=~]", required)[0].lower().replace("_", "-")
    alone, failed = resolve([required])
    beside, conflict = resolve([required, *own_requirements()])
    if failed:
        return Fit(name=required, conflict=f"it has no solution alone: {failed}")
    if not conflict and beside[name] != alone[name]:
        _, conflict = resolve([required, f"{name}=={alone[name]}", *own_requirements()])
        conflict = conflict and f"beside Turnkeeper only {beside[name]}, not {alone[name]}: {conflict}"
    return Fit(name=required, picked=alone[name], conflict=conflict)


def project(row: dict[str, object]) -> Fit:
    """Resolve a project's own requirements beside Turnkeeper."""
    _, conflict = resolve([*row["requires"], *own_requirements()])
    return Fit(name=str(row["repo"]), conflict=conflict)


def fits() -> Iterator[Fit]:
    """Resolve everything; yield in the order of the files."""
    packages = [line for line in (HERE / "packages.txt").read_text().splitlines() if not line.startswith("#")]
    projects = tomllib.loads((HERE / "projects.toml").read_text())["project"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(package, packages)
        yield from pool.map(project, projects)


def main() -> int:
    """Print the table; return 1 if something conflicts that `KNOWN` does not name."""
    argparse.ArgumentParser(description=main.__doc__).parse_args()
    unknown = 0
    for fit in fits():
        known = KNOWN.get(fit.name.split("[")[0], "")
        unknown += bool(fit.conflict) and not known
        verdict = "fits" if not fit.conflict else f"conflict: {known or fit.conflict}"
        sys.stdout.write(f"{fit.name:45} {fit.picked:15} {verdict}\n")
        sys.stdout.flush()
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
