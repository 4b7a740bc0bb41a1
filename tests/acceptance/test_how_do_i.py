"""Each command of the page of questions, typed in its order into one home."""

import re
import shlex
import sys
import textwrap
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
COMMAND_GRAPH = textwrap.dedent(re.findall(r"^    import shlex(?:.*\n)+?.*\.stdout\n", PAGE, re.MULTILINE)[0])
COMMANDS = re.findall(r"^    (turnkeeper .*)$", PAGE, re.MULTILINE)


@pytest.fixture
def tools_of_mine(constellation: Constellation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server and a file of tools, in the folder in which the commands are typed."""
    desk = Folder(tmp_path / "desk")
    desk.offer()
    start = f"import runpy, sys\nsys.argv[1:] = [{str(desk.path)!r}]\n"
    (tmp_path / "desk.py").write_text(f"{start}runpy.run_path({mcp_server.__file__!r}, run_name='__main__')\n")
    (tmp_path / "garden.py").write_text(GARDEN)
    (tmp_path / "command.py").write_text(COMMAND_GRAPH)
    with constellation.home.config.open("a") as config:
        config.write(f"\n[graphs]\ncommand = '{tmp_path / 'command.py'}:graph'\n")
        config.write("\n[prices.offline]\nread = 1.25\nwritten = 10\n\n[queues.slow]\nturns_at_once = 1\n")
    constellation.stop()
    constellation.start()
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What a command of the page must show, as a regular expression; the first words of the command are enough.
SHOWN = {
    "task create news": r"Europe/Berlin(.|\n)+next: +Mon(.|\n)+|next: +\w",
    "task run news --wait": r"outcome: succeeded(.|\n)+Read 0 of 1 page",  # it fetched without asking, and answers
    "task next news": r"IN Europe/Berlin\n(.+ (Mon|Tue|Wed|Thu|Fri) \S+ 08:00:00 \+0[12]:00\n){5}",
    'task explain news --at "yesterday 9am"': r"news was created at .+, later than",
    "task edit news --catch-up": r"catch-up, overlap changed",
    "task backfill news": r"fires: [123] from .+nothing was written",
    "pause --until": r"1 task paused",
    "resume": r"1 task resumed",
    "task pause news": r"news paused until 2030-01-",
    "task resume news": r"news resumed",
    "task edit news --exclude": r"exclude changed",
    "task next news --from 2030-12-23": r"Mon 2030-12-23 08(.|\n)+Wed 2030-12-25 08",
    "task edit news --queue": r"queue changed",
    "drain": r"no turn runs on .+ takes no new ones until: turnkeeper uncordon",
    "uncordon": r"takes turns again",
    "task edit news --prompt": r"prompt changed",
    "task show news --rendered": r'What is new on \d{4}-\d\d-\d\d in "Rome"\? Not again: "Read 0 of 1 page',
    "task run news --var": r"outcome: ",
    "task run news --prompt": r"outcome: ",
    "task edit news --retries": r"retries, pause-after-failures changed",
    "task edit news --budget": r"budget changed",
    "report": r"news",
    "deliver add ada": r"added ada: service mailtos",
    "deliver add alarm": r"added alarm: command",
    "task create plan": r"schedule: after news",
    "hooks add": r"whsec_|^\w{20}",
    "task create review": r"when hook.pushes arrives",
    "emit": r"triggers 1 task",
    "folders add": r"a task fires for the next files with: --on folder.scans",
    "task create file": r"when folder.scans arrives",
    "task create nightly": r"next: +\w",
    "task run nightly": r"outcome: succeeded(.|\n)+home",
    "task create hello": r"when boot arrives",
    "emit boot": r"triggers 1 task",
    "loop create": r"every 15m",
    "send": r"trains",
    "approvals list": r"1 proposal: turnkeeper triage",
    "categories show": r"tools: +conversation.read",
    "keys rotate": r"key \w+ is in use for envelopes",
    "backup": r"\d+ files, as of",
    "task export": r'\[\[task\]\]\nname = "file"',
    "tools add desk": r"mcp:desk.note",
    "tools add garden.py": r"tools:water: \(bed\) Water a bed\.",
    "categories grant loop mcp": r"mcp:desk.note",
    "categories grant loop tools": r"tools:water",
    "task edit news --config": r"config changed",
}


def test_each_command_shows_what_its_question_asks_for(constellation: Constellation, tools_of_mine: Path) -> None:
    tmp_path, scans = tools_of_mine, tools_of_mine / "scans"
    scans.mkdir()
    for command in COMMANDS:
        typed = command.replace("backups/today", str(tmp_path / "backup")).replace("python3", sys.executable)
        typed = typed.replace("~/Scans", str(scans)).replace("https://news.example.org/", "http://127.0.0.1:9/")
        _, *words = shlex.split(typed)
        done = constellation.attempt("turnkeeper", *words)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        key = max((key for key in SHOWN if command.startswith(f"turnkeeper {key}")), key=len)
        assert re.search(SHOWN[key], f"{done.stdout}{done.stderr}"), f"{command}\n{done.stdout}{done.stderr}"
    tasks = {task["name"]: task for task in constellation.ask("task-runner", "list")}
    assert (tasks["news"]["timezone"], tasks["news"]["retries"], tasks["news"]["queue"]) == ("Europe/Berlin", 2, "slow")
    constellation.await_outcome("review", "succeeded")  # the emitted event
    assert 'Review "main".' in constellation.command("turnkeeper", "conversation", "show", "general")
    assert [one["name"] for one in constellation.ask("turnkeeper", "deliver", "list")] == ["ada", "alarm"]
    assert (tmp_path / "backup" / "manifest.json").is_file()
    states = {one["scope"]: one["state"] for one in constellation.ask("agent-runtime", "tools", "list")}
    assert states == {"mcp:desk.note": "accepted", "tools:water": "yours"}
    constellation.command("turnkeeper", "task", "run", "news", "--wait")
    constellation.await_outcome("plan", "succeeded")  # it follows, with the answer
    assert 'Plan my day around this: "' in constellation.command("turnkeeper", "conversation", "show", "general")


def test_a_command_that_exits_with_an_error_fails_the_fire(constellation: Constellation, tools_of_mine: Path) -> None:
    assert (tools_of_mine / "command.py").is_file()
    for code, outcome in ((0, "succeeded"), (3, "failed")):
        typed = shlex.join([sys.executable, "-c", f"raise SystemExit({code})"])
        constellation.create(f"exits-{code}", "--at", "2030-01-01", "--graph", "command", "--prompt", typed)
        constellation.command("turnkeeper", "task", "run", f"exits-{code}")
        constellation.await_outcome(f"exits-{code}", outcome)
    (fire,) = constellation.ask("turnkeeper", "task", "history", "exits-3")
    assert "returned non-zero exit status 3" in fire["reason"]


def test_every_question_has_a_command_or_says_what_to_do() -> None:
    questions = re.split(r"^\*\*… ", PAGE, flags=re.MULTILINE)[1:]
    assert len(questions) >= 27
    assert [one for one in questions if "turnkeeper" not in one and "graph" not in one] == []
