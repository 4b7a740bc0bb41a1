"""Each command of the page of questions, typed in its order into one home."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support import mcp_server
from tests.support.constellation import Constellation
from tests.support.mcp_server import Folder

pytestmark = [pytest.mark.process, pytest.mark.sqlite_only("a page of commands; what they do has tests of its own")]
PAGE = (Path(__file__).parents[2] / "docs" / "how-do-i.md").read_text()
GARDEN = """
from langchain_core.tools import tool

@tool
def water(bed: str) -> str:
    '''Water a bed.'''
    return bed
"""
COMMANDS = re.findall(r"^    (turnkeeper .*)$", PAGE, re.MULTILINE)


@pytest.fixture
def tools_of_mine(constellation: Constellation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server and a file of tools, in the folder in which the commands are typed."""
    desk = Folder(tmp_path / "desk")
    desk.offer()
    start = f"import runpy, sys\nsys.argv[1:] = [{str(desk.path)!r}]\n"
    (tmp_path / "desk.py").write_text(f"{start}runpy.run_path({mcp_server.__file__!r}, run_name='__main__')\n")
    (tmp_path / "garden.py").write_text(GARDEN)
    with constellation.home.config.open("a") as config:
        config.write("\n[prices.offline]\nread = 1.25\nwritten = 10\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_command_does_what_is_asked(constellation: Constellation, tools_of_mine: Path) -> None:
    said, tmp_path, scans = {}, tools_of_mine, tools_of_mine / "scans"
    scans.mkdir()
    for command in COMMANDS:
        typed = command.replace("backups/today", str(tmp_path / "backup")).replace("python3", sys.executable)
        typed = typed.replace("~/Scans", str(scans))
        _, *words = shlex.split(typed)
        done = constellation.attempt("turnkeeper", *words)
        said[command] = done.stdout
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    tasks = {task["name"]: task for task in constellation.ask("task-runner", "list")}
    assert (tasks["news"]["state"], tasks["news"]["timezone"], tasks["news"]["retries"]) == (
        "paused",
        "Europe/Berlin",
        2,
    )
    constellation.await_outcome("review", "succeeded")  # the emitted event
    assert [one["name"] for one in constellation.ask("turnkeeper", "deliver", "list")] == ["ada", "alarm"]
    assert (tmp_path / "backup" / "manifest.json").is_file()
    states = {one["scope"]: one["state"] for one in constellation.ask("agent-runtime", "tools", "list")}
    assert states == {"mcp:desk.note": "accepted", "tools:water": "yours"}


def test_every_question_has_a_command_or_says_what_to_do() -> None:
    questions = re.split(r"^\*\*… ", PAGE, flags=re.MULTILINE)[1:]
    assert len(questions) >= 27
    assert [one for one in questions if "turnkeeper" not in one and "graph" not in one] == []
