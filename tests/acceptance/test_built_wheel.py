"""What is shipped runs: the built wheel, in an environment that holds nothing else of ours."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from turnkeeper.config.home import Home

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed wheel's commands. Its dependencies are lent by the present environment, its code is not."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (wheel,) = folder.glob("*.whl")
    env = folder / "env"
    venv.create(env, symlinks=True)
    (site,) = (env / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(env / "bin" / "python"), *install], check=True)
    return env / "bin"


def run(programs: Path, home: Home, *argv: str) -> str:
    command = [str(programs / argv[0]), "--home", str(home.root), *argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=programs)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_wheel_runs_from_init_to_down(programs: Path, home: Home) -> None:
    where = "import turnkeeper; print(turnkeeper.__file__)"
    shown = subprocess.run([programs / "python", "-c", where], capture_output=True, text=True, check=True, cwd=programs)
    assert str(programs.parent) in shown.stdout, "not the checkout"
    run(programs, home, "turnkeeper", "init")
    run(programs, home, "turnkeeper", "up")
    try:
        task = ("--cron", "0 0 1 1 *", "--category", "catch-up-summary", "--channel", "general", "--prompt", "p")
        run(programs, home, "task-runner", "create", "digest", *task)
        run(programs, home, "task-runner", "run", "digest", "--wait")
        assert "digest" in run(programs, home, "agent-runtime", "conversation", "show", "general")
    finally:
        run(programs, home, "turnkeeper", "down")
