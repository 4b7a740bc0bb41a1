"""Each command of the page of questions, typed in its order into one home."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.constellation import Constellation

pytestmark = [pytest.mark.process, pytest.mark.sqlite_only("a page of commands; what they do has tests of its own")]
PAGE = (Path(__file__).parents[2] / "docs" / "how-do-i.md").read_text()
COMMANDS = re.findall(r"^    (turnkeeper .*)$", PAGE, re.MULTILINE)


def test_each_command_does_what_is_asked(constellation: Constellation, tmp_path: Path) -> None:
    said = {}
    for command in COMMANDS:
        _, *words = shlex.split(command.replace("backups/today", str(tmp_path / "backup")))
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


def test_every_question_has_a_command_or_says_what_to_do() -> None:
    questions = re.split(r"^\*\*… ", PAGE, flags=re.MULTILINE)[1:]
    assert len(questions) >= 27
    assert [one for one in questions if "turnkeeper" not in one and "graph" not in one] == []
