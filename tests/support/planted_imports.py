"""Upward imports planted into a copy of the packages, and the reports of import-linter.

    python -m tests.support.planted_imports --count 20 --seed 7

plants that many at random, each in a separate copy, and exits with 1 if one is not found.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.support.seeded_entropy import SeededEntropy

ROOT = Path(__file__).parents[2]
PACKAGES = ("turnkeeper", "task_runner", "agent_runtime")


@dataclass(frozen=True)
class Plant:
    """An import that a contract forbids.

    Attributes:
        importer: the module in the lower layer that gets the import.
        imported: the module in the higher layer.
        container: the package that contains the layers; empty for the packages themselves.
    """

    importer: str
    imported: str
    container: str


def containers() -> dict[str, list[list[str]]]:
    """Return the layers of each container that a contract names, from the top down, as modules' full names."""
    found = {}
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]:
        for container in contract.get("containers", [""]) if contract["type"] == "layers" else ():
            prefix = f"{container}." if container else ""
            layers = [layer.replace(":", "|").split("|") for layer in contract["layers"]]
            found[container] = [[prefix + name.strip(" ()") for name in layer] for layer in layers]
    return found


def modules(name: str) -> list[str]:
    """Return a module and, if it is a package, all modules inside it."""
    path = ROOT / name.replace(".", "/")
    if not path.is_dir():
        return [name] if path.with_suffix(".py").is_file() else []
    files = [file.relative_to(ROOT).with_suffix("") for file in path.rglob("*.py") if "migrations" not in file.parts]
    return sorted(".".join(file.parts).removesuffix(".__init__") for file in files)


def plants(container: str, layers: Sequence[Sequence[str]]) -> Iterator[Plant]:
    """Yield every import that the layers of a container forbid. Skip `__main__`, which no module can import."""
    for above, below in combinations(layers, 2):
        for imported in (module for layer in above for module in modules(layer) if "__main__" not in module):
            for importer in (module for layer in below for module in modules(layer)):
                yield Plant(importer, imported, container)


def copy(folder: Path) -> Path:
    """Copy the packages and their contracts into `folder`. Return it."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def plant(folder: Path, planted: Plant) -> None:
    """Write the import at the end of the importer's file."""
    stem = folder / planted.importer.replace(".", "/")
    file = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    with file.open("a") as opened:
        opened.write(f"\nimport {planted.imported}\n")


def lint(folder: Path) -> tuple[int, str]:
    """Return import-linter's exit code and report for a copy."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())  # it breaks long lines


def main() -> int:
    """Plant imports one at a time, and print for each whether it was found."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    entropy = SeededEntropy(asked.seed)
    possible = [planted for container, layers in containers().items() for planted in plants(container, layers)]
    missed = 0
    for _ in range(asked.count):
        planted = possible[int(entropy.uniform(0, len(possible)))]
        with tempfile.TemporaryDirectory() as made:
            folder = copy(Path(made))
            plant(folder, planted)
            code, report = lint(folder)
        found = code == 1 and f"{planted.importer} -> {planted.imported}" in report
        missed += not found
        sys.stdout.write(f"{'found ' if found else 'MISSED'} {planted.importer} imports {planted.imported}\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
