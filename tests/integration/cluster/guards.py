"""Take each guard of `docs/cluster-guards.md` out, one at a time, and run the tests that are to turn red.

    python -m tests.integration.cluster.guards [WORD ...]

With words, only guards whose row has one of them. It works on a copy of the checkout, and needs PostgreSQL.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "cluster-guards.md"
_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"`(tests/[\w/]+\.py::\w+(?:\[[^`]*\])?)`")
RED = 1  # pytest's exit code where a test failed; any other says that the tests did not run


class Guard(NamedTuple):
    """A row of the page: in `path`, `code` is the guard, and `without` stands in its place where it is taken out."""

    name: str
    path: str
    code: str
    without: str
    tests: tuple[str, ...]

    def found(self, text: str) -> list[str]:
        """Return where its code stands in a module; `↵` is an end of a line, with the indentation of the next."""
        return re.findall(r"\n *".join(map(re.escape, self.code.split(" ↵ "))), text)


def guards() -> Iterator[Guard]:
    """Yield the guards that the page names."""
    for line in PAGE.read_text().splitlines():
        cells = line.strip("| ").split(" | ")
        if line.startswith("| ") and len(cells) == 4 and _TEST.search(cells[3]):
            path, code = _CODE.findall(cells[1])
            without = _CODE.findall(cells[2])
            yield Guard(cells[0], path, code, without[0] if without else "", tuple(_TEST.findall(cells[3])))


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
