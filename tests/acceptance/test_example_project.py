"""The example project does what its README says: the README's own commands, run in order, print what stands there.

So do the page on moving from LangGraph Server, which takes the same project, the main README, the tutorial and the session.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.demo.driver import PATIENCE_S, Driver
from tests.integration.lifecycle.test_setup import typed
from tests.support.forked_daemons import STARTS_INSTALLED, program
from tests.support.web import Web, free_port
from turnkeeper.config.home import VARIABLE, Home

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "langgraph-project"
PROGRAMS = {"task-runner": "task_runner", "agent-runtime": "agent_runtime", "turnkeeper": "turnkeeper.constellation"}
LOOK_EVERY_S = 0.8  # a look is a command, and most of what is waited for takes two seconds
LOOKS = re.compile(r"(cat|turnkeeper task (history|list|show)|turnkeeper \S+ (list|show|check)|turnkeeper status) ")
OF_TERMINALS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
VARIES = (
    (r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?Z?", "<when>"),
    (r"\b(task|turn)-[0-9a-f]+\b", "<id>"),
    (r"@\d{8}T\d{6}Z(~m[0-9a-f]{12})?", "@<when>"),
    (r"\bc-[0-9a-f]{12}\b", "<id>"),
    (r"\brunning +\d+", "running <pid>"),
    (r"(?<=in )Etc/UTC", "UTC"),
    (r"\b([0-9a-f]{32}|[0-9a-f]{10})\b", "<id>"),
    (r"\bpid \d+", "<pid>"),
    (r"(?<=#token=)\S+", "…"),
    (r"(?<![\w.])\d+(\.\d+)?(ms|s|m)\b( \d+s)?", "<long>"),
    (r"(?<=timezone: )\S+|(?<=<when> )[A-Z]\w+/\w+", "<zone>"),
    (r"\s*\n\s*", "\n"),
    (r"[ \t]+", " "),
)


@dataclass(frozen=True)
class Step:
    """A command of the README, and what stands below it."""

    command: str
    printed: str


def read_steps(text: str) -> list[Step]:
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    steps = []
    for entry in re.split(r"^\$ ", "".join(blocks), flags=re.MULTILINE)[1:]:
        command, _, printed = entry.partition("\n")
        steps.append(Step(command=command, printed=printed))
    return steps


def plain(text: str) -> str:
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text)
    return text.strip()


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page gives in whole, each below its name."""
    return dict(re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


class Reader(Driver):
    """Someone who follows a README at a shell, in a home folder of their own."""

    def __init__(self, folder: Path, *, installed: bool) -> None:
        """Make the folder. What a command starts runs as installed or, to save start-up time, in a fork."""
        self.folder, self.project = folder, folder / "garden"
        ignored = shutil.ignore_patterns("__pycache__", ".env", "watered.jsonl")
        shutil.copytree(PROJECT, self.project, ignore=ignored)
        (self.project / "secrets.py").write_text("raise SystemExit('a file of the project, not the module')")
        programs = folder / "bin"
        programs.mkdir()
        ours = {name: shlex.join(program(package)) for name, package in PROGRAMS.items()}
        for name, command in {"python": sys.executable, **ours}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        own = {"HOME": str(folder), "PATH": path, "PYTHONPATH": str(ROOT), "TZ": "UTC"}
        own |= {STARTS_INSTALLED: "1"} if installed else {}
        super().__init__(Home(root=folder / ".turnkeeper"), dict(os.environ) | own)
        del self._environ[VARIABLE]

    def move(self, name: str, files: dict[str, str]) -> None:
        """Go on in another folder, which holds these files."""
        self.project = self.folder / name
        self.project.mkdir()
        for file, text in files.items():
            (self.project / file).write_text(text)

    def type(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.project,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout.replace(str(self.folder), "~")

    def follow(self, step: Step) -> str:
        """Type a command; one that only looks, again until it shows what is written or patience ends."""
        printed = self.type(step.command)
        deadline = self._clock.monotonic() + PATIENCE_S
        while plain(printed) != plain(step.printed) and LOOKS.match(step.command + " "):
            if self._clock.monotonic() > deadline:
                break
            self._clock.block(LOOK_EVERY_S)
            printed = self.type(step.command)
        return printed


@pytest.fixture
def reader(home: Home, request: pytest.FixtureRequest) -> Iterator[Reader]:
    made = Reader(home.root.parent, installed=getattr(request, "param", False))
    yield made
    made.stop()


@pytest.mark.parametrize("reader", [True], ids=["installed"], indirect=True)
def test_a_reader_of_the_example_sees_what_it_says(reader: Reader) -> None:
    steps = read_steps((PROJECT / "README.md").read_text())
    assert len(steps) > 10
    for step in steps:
        assert plain(reader.follow(step)) == plain(step.printed), step.command


def test_a_reader_of_the_page_on_moving_over_sees_what_it_says(reader: Reader) -> None:
    page = (ROOT / "docs" / "from-langgraph-server.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (reader.project / "before.py").write_text(program)
    (reader.project / "secrets.py").unlink()  # before.py is the project's own program, and would find it
    steps = read_steps(page)
    assert len(steps) > 10
    for step in steps:
        assert plain(reader.follow(step)) == plain(step.printed), step.command


def test_the_example_imports_nothing_of_ours() -> None:
    imported = re.compile(r"^\s*(?:from|import) (turnkeeper|task_runner|agent_runtime)", re.MULTILINE)
    assert not [path for path in PROJECT.glob("*.py") if imported.search(path.read_text())]


def test_a_reader_of_the_main_page_sees_the_session_that_it_shows(reader: Reader) -> None:
    notes = {"plan.md": "# Plan\n\nThe pump needs a new seal before May.\n"}
    reader.move("notes", notes)
    reader.type("touch -d '1 minute ago' plan.md; echo 'Plot 7 is free, plot 9 is let until May.' > plots.txt")
    steps = read_steps((ROOT / "README.md").read_text())
    assert [step.command.split()[1] for step in steps] == ["init", "up", "task", "task"]
    for step in steps:
        printed = reader.follow(step)
        assert step.printed == "…\n" or plain(printed) == plain(step.printed), step.command


def test_a_reader_of_the_tutorial_has_a_graph_at_work_that_asks_once_and_is_read_on_the_page(reader: Reader) -> None:
    page, port = (ROOT / "docs" / "tutorial.md").read_text(), free_port()
    reader.move("night", files_of(page))
    (line,) = re.findall(r"^```toml\n(.*?)\n^```", page, re.MULTILINE | re.DOTALL)
    steps = read_steps(page)
    assert [step.command.split()[0] for step in steps].count("turnkeeper") > 10
    for step in steps:
        if step.command == "turnkeeper up":  # what its reader writes into the settings, and a port that is free
            config = reader.home.config.read_text().replace("\n[web]\n", f"\n[web]\n{line}\nport = {port}\n")
            reader.home.config.write_text(config)
        printed = reader.follow(step).replace(f":{port}/", ":7373/")
        assert plain(printed) == plain(step.printed), step.command
        if step.command.startswith("turnkeeper web open"):
            web = Web(reader.home, port)
            web.log_in(printed.strip().partition("#token=")[2])
            shown = web.ask("/ui/conversations/night", cookie=web.cookie).body
            assert all(f"Still open: {left}. The report is written." in shown for left in (2, 3))


def test_a_reader_of_the_session_sees_what_it_shows(reader: Reader) -> None:
    text = (ROOT / "docs" / "session.md").read_text()
    (create,) = re.findall(r"^    (turnkeeper task create digest .*\\\n.*)\n", text, re.MULTILINE)
    for command in ("turnkeeper init --yes", "turnkeeper up", create):
        reader.type(command)
    steps = read_steps(text)
    assert len(steps) > 8
    for step in steps:
        if step.command == "turnkeeper triage":
            answers = [("> ", key) for key in re.findall(r"^> (\w)$", step.printed, re.MULTILINE)]
            printed = OF_TERMINALS.sub("", typed(reader.home, "triage", answers=answers)[1])
        elif step.command.startswith("kill "):
            printed = reader.type("kill -9 $(cat ~/.turnkeeper/state/run/agent-runtime.pid)")
        else:
            printed = reader.follow(step)
        assert step.printed == "…\n" or plain(printed) == plain(step.printed), step.command
