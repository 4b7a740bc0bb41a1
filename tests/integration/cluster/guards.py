"""Remove each guard of `guards.toml`, one at a time, and run the tests that are to fail.

    python -m tests.integration.cluster.guards [WORD ...]

With words, only guards that contain one of them. It works on a copy of the checkout, and needs PostgreSQL.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
DATA = Path(__file__).with_suffix(".toml")
RED = 1  # pytest's exit code where a test failed; any other says that the tests did not run


class Guard(NamedTuple):
    """A rule: in `path`, the lines of `code` enforce it, and `without` replaces them when the guard is removed."""

    group: str
    name: str
    path: str
    code: tuple[str, ...]
    without: str
    tests: tuple[str, ...]

    def found(self, text: str) -> list[str]:
        """Return the places of its code in a module, at any indentation."""
        return re.findall(r"\n *".join(map(re.escape, self.code)), text)


def guards() -> Iterator[Guard]:
    """Yield the guards."""
    for row in tomllib.loads(DATA.read_text())["guard"]:
        code, without, tests = tuple(row["code"]), row.get("without", ""), tuple(row["tests"])
        yield Guard(row["group"], row["rule"], row["path"], code, without, tests)


def taken_out(guard: Guard, copy: Path) -> str:
    """Run the tests of a guard in a copy in which it is not there; return what became of them."""
    module = copy / guard.path
    whole = module.read_text()
    (code,) = guard.found(whole)
    module.write_text(whole.replace(code, guard.without))
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "--database", "postgres", *guard.tests]
    environ = os.environ | {"PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(argv, cwd=copy, env=environ, capture_output=True, text=True, check=False)
    finally:
        module.write_text(whole)
    why = [line for line in done.stdout.splitlines() if line.startswith(("E  ", "ERROR"))][:1]
    return "red" if done.returncode == RED else f"NOT RED ({done.returncode}) {''.join(why)}"


def main(words: Sequence[str]) -> int:
    """Take out those whose row has one of the words; return how many turned no test red."""
    chosen = [guard for guard in guards() if not words or any(word in str(guard) for word in words)]
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist"))
        stayed = 0
        for guard in chosen:
            became = taken_out(guard, copy)
            stayed += became != "red"
            sys.stdout.write(f"{became:8} {guard.name}\n")
            sys.stdout.flush()
    return stayed


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
