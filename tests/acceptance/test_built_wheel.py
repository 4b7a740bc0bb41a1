"""What is shipped runs: the built wheel, in an environment that holds nothing else of ours."""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from turnkeeper.config.home import Home

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
OWN = ("protos", "categories", "gateway", "constellation")  # names of a project's own modules
GRAPH = """
import categories, constellation, gateway, protos
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

NAMES = " ".join(one.NAME for one in (protos, categories, gateway, constellation))
builder = StateGraph(MessagesState)
builder.add_node("say", lambda state: {"messages": [AIMessage(NAMES)]})
builder.add_edge(START, "say")
graph = builder.compile()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path) -> Path:
    """The installed wheel's commands. Its dependencies are lent by the present environment, its code is not."""
    env = wheel.parent / "env"
    venv.create(env, symlinks=True)
    (site,) = (env / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(env / "bin" / "python"), *install], check=True)
    return env / "bin"


def test_the_wheel_installs_no_name_that_a_project_could_own(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"task_runner", "agent_runtime", "turnkeeper"}
    assert "agent_runtime/categories/loop.toml" in names


def test_the_wheel_knows_its_commit_and_links_to_whole_addresses(wheel: Path, programs: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (described,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        text = opened.read(described).decode()
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", text) == []
    assert "\nProject-URL: Repository, https://" in text
    argv = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    shown = subprocess.run([programs / "turnkeeper", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"turnkeeper 0.1.0+g{commit}\n"


def run(programs: Path, home: Home, *argv: str) -> str:
    command = [str(programs / argv[0]), "--home", str(home.root), *argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=programs)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_wheel_runs_from_init_to_down(programs: Path, home: Home) -> None:
    where = "import turnkeeper; print(turnkeeper.__file__)"
    shown = subprocess.run([programs / "python", "-c", where], capture_output=True, text=True, check=True, cwd=programs)
    assert str(programs.parent) in shown.stdout, "not the checkout"
    project = home.root / "project"
    project.mkdir()
    for name in OWN:
        (project / f"{name}.py").write_text(f"NAME = {name!r}\n")
    (project / "graph.py").write_text(GRAPH)
    run(programs, home, "turnkeeper", "init", "--graph", f"{project / 'graph.py'}:graph")
    run(programs, home, "turnkeeper", "up")
    try:
        task = ("--cron", "0 0 1 1 *", "--category", "catch-up-summary", "--channel", "general", "--prompt", "p")
        run(programs, home, "task-runner", "create", "digest", *task)
        run(programs, home, "task-runner", "run", "digest", "--wait")
        said = run(programs, home, "agent-runtime", "conversation", "show", "general")
        assert "digest" in said
        assert " ".join(OWN) in said, "the project's own modules were imported"
    finally:
        run(programs, home, "turnkeeper", "down")
