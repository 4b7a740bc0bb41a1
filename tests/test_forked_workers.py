"""The workers of the suite report each module that cannot be collected, although one process collects for all."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text("def test_good() -> None: ...\n")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    argv = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", "-n", "1", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "No module named 'no_such_module'" in done.stdout
