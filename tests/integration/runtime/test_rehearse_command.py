"""`turnkeeper categories rehearse` on turns that a runtime has really run."""

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage

from agent_runtime.cli import app
from agent_runtime.cli.rehearse.past import past_turns
from tests.integration.runtime.harness import STATES, Bench
from tests.support.scripted import calls
from turnkeeper.config.home import Home
from turnkeeper.console import run
from turnkeeper.times import rfc3339

WIDE = """
name = "work"
autonomous = true
[scopes]
tools = ["memory.put", "memory.read", "page.propose", "tool:note", "tool:block"]
writes = ["candidate-page"]
memory = ["channel", "workspace"]
"""
READ, PUT = ("memory_read", {"tier": "channel"}), ("memory_put", {"tier": "workspace", "text": "t"})
PAGE, NOTE = ("page_propose", {"title": "t", "body": "b"}), ("note", {"text": "n"})


class Commands:
    """Runs commands in this process and keeps what they printed."""

    def __init__(self, bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
        self._home = str(bench.home.root)
        self._capsys = capsys
        self.err = ""

    def __call__(self, *argv: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = run(app, ["--home", self._home, "categories", *argv])
        out, self.err = self._capsys.readouterr()
        assert found == code, f"{argv} exited with {found}: {out}{self.err}"
        return out

    def json(self, *argv: str) -> Any:
        return json.loads(self(*argv, "-o", "json"))


@pytest.fixture
def place(home: Home) -> Path:
    """These commands read the file of a home."""
    return home.agent_db


@pytest.fixture
def ar(bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("NO_COLOR", "1")
    return Commands(bench, capsys)


@pytest_asyncio.fixture
async def ran(bench: Bench) -> list[str]:
    """Run two fires of two tasks in two channels; return their turns' ids."""
    (bench.home.categories / "work.toml").write_text(WIDE)
    bench.script["go"] = [calls(READ, PUT), calls(PAGE), AIMessage("done")]
    bench.script["other"] = [calls(NOTE), AIMessage("done")]
    events = [await bench.run(1), await bench.run(2, task="b", prompt="other", channel="side", thread_id="thread-b")]
    assert [event.state for event in events] == [STATES.SUCCEEDED] * 2
    return [event.turn_id for event in events]


def draft(tmp_path: Path, text: str, name: str = "a-draft") -> str:
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return str(path)


NARROW = 'name = "work"\n[scopes]\ntools = ["memory.read", "page.propose"]\nwrites = ["candidate-page"]\nmemory = ["channel"]\n'


async def test_calls_that_would_ask_are_listed_with_what_is_missing(
    ran: list[str], ar: Commands, tmp_path: Path
) -> None:
    shown = ar("rehearse", draft(tmp_path, NARROW)).splitlines()
    assert [line.split()[-2:] for line in shown[1:4]] == [
        ["asks", "tool:note"], ["asks", "memory.put"], ["once", "autonomous"],
    ]  # fmt: skip
    assert shown[1].split()[3:5] == [ran[1], "digest-b"]
    assert "4 calls of 2 turns: 1 would pass, 3 would not" in ar.err
    found = ar.json("rehearse", draft(tmp_path, NARROW))
    assert [(call["tool"], call["would"], call["missing"]) for call in found["calls"]] == [
        ("note", "ask", "tool:note"), ("memory_read", "pass", ""), ("memory_put", "ask", "memory.put"),
        ("page_propose", "propose", "autonomous"),
    ]  # fmt: skip
    assert found["calls"][2]["args"] == PUT[1]


async def test_the_least_is_a_file_that_passes_the_check_and_the_rehearsal(
    bench: Bench, ran: list[str], ar: Commands, tmp_path: Path
) -> None:
    text = ar("rehearse", draft(tmp_path, NARROW), "--least")
    path = bench.home.categories / "work.toml"
    path.write_text(text)
    bench.home.config.write_text('[categories]\nautonomous_allowed = ["work"]\n')
    assert ar("check", str(path)) == ""
    found = ar.json("rehearse", str(path))
    assert {call["would"] for call in found["calls"]} == {"pass"}
    assert found["overruns"] == []
    assert found["least_toml"] == text
    assert set(found["least"]["tools"]) == {"memory.put", "memory.read", "page.propose", "tool:note"}
    assert "name it in [categories] autonomous_allowed" in text


async def test_the_documented_way_to_a_new_category_ends_in_a_file_that_is_used(
    bench: Bench, ran: list[str], ar: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "categories.md").read_text()
    check, replay, least = re.findall(r"^    turnkeeper categories (.*draft\.toml.*)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    draft(tmp_path, NARROW.replace('"work"', '"draft"'), "draft")
    ar(*check.split())
    ar(*replay.replace("digest", "digest-a").split())
    words, _, target = least.replace("--task digest", "--task digest-a").partition(" > ")
    made = bench.home.categories / Path(target).name
    made.write_text(ar(*words.split()))
    assert ar("check", str(made)) == ""
    assert made.stem in ar("list", "-o", "name").split()
    ar("rehearse", "draft.toml", "--least", "--name", "a/b", code=2)


async def test_a_category_is_tried_before_there_is_any_turn(bench: Bench, ar: Commands, tmp_path: Path) -> None:
    file = draft(tmp_path, WIDE.replace("autonomous = true", ""))
    shown = ar("rehearse", file)
    assert "no such turns; a fire could use the tools as listed" in ar.err
    said = {line.split()[0]: " ".join(line.split()[2:]) for line in shown.splitlines()[1:]}
    assert said["memory_read"] == said["memory_put"] == "yes"
    assert said["page_propose"] == said["note"] == "asks before the first"
    assert said["web_fetch"] == said["LoopCreate"] == "asks each time"
    assert "permission_request" not in said
    hides = draft(tmp_path, WIDE.replace("autonomous = true", 'outside = "hide"'))
    assert {one["would"] for one in ar.json("rehearse", hides)["tools"]} == {"pass", "propose", "hidden"}
    bench.home.config.write_text('[categories]\nautonomous_allowed = ["work"]\n')
    free = {one["tool"]: one["would"] for one in ar.json("rehearse", draft(tmp_path, WIDE))["tools"]}
    assert free["page_propose"] == free["note"] == "pass"


async def test_turns_are_chosen_by_task_channel_time_and_number(
    bench: Bench, ran: list[str], ar: Commands, tmp_path: Path
) -> None:
    file = draft(tmp_path, NARROW)

    def turns(*options: str) -> set[str]:
        return {call["turn_id"] for call in ar.json("rehearse", file, *options)["calls"]}

    assert turns() == set(ran)
    assert turns("--task", "digest-a") == turns("--task", "task-0000000a") == turns("--channel", "main") == {ran[0]}
    assert turns("-n", "1") == {ran[1]}
    assert turns("--since", "1h") == set(ran)
    assert turns("--since", rfc3339(bench.runtime.clock.now() + timedelta(hours=1))) == set()
    ar("rehearse", file, "--task", "nosuch")
    assert "no such turns" in ar.err


async def test_a_category_that_the_workspace_does_not_let_run_alone_says_so(
    ran: list[str], ar: Commands, tmp_path: Path
) -> None:
    ar("rehearse", draft(tmp_path, WIDE))
    assert "work is declared autonomous, but [categories] autonomous_allowed does not name it" in ar.err


async def test_an_authors_answer_does_not_change_what_the_model_asked_for(
    bench: Bench, ar: Commands, tmp_path: Path
) -> None:
    bench.category("work", tools=["tool:note"])
    bench.script["go"] = [calls(READ), AIMessage("done")]
    event = await bench.run()
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "reject")
    await bench.stopped(event.turn_id, after=event.sequence)
    (call,) = ar.json("rehearse", draft(tmp_path, 'name = "work"\n'))["calls"]
    assert (call["tool"], call["args"], call["missing"]) == (*READ, "memory.read")
    (waited,) = await bench.runtime.store.read(lambda connection: past_turns(connection, limit=5))
    assert waited.seconds is None, "how long an author takes says nothing of the turn"


async def test_with_the_daemon_down_and_before_anything_ran(bench: Bench, ar: Commands, tmp_path: Path) -> None:
    await bench.stop()
    bench.home.agent_db.rename(tmp_path / "moved")
    found = ar.json("rehearse", draft(tmp_path, NARROW))
    assert (found["turns"], found["calls"]) == (0, [])


async def test_a_wrong_file_or_time_is_one_clear_line(ar: Commands, tmp_path: Path) -> None:
    ar("rehearse", str(tmp_path / "none.toml"), code=3)
    assert "no such file" in ar.err
    ar("rehearse", draft(tmp_path, 'name = "work"\n[scopes]\ntools = ["all"]\n'), code=2)
    assert "a-draft.toml:3: scopes.tools" in ar.err
    ar("rehearse", draft(tmp_path, NARROW), "--since", "someday", code=2)
    assert "neither a duration nor an instant" in ar.err


async def test_the_check_exits_by_what_it_finds(bench: Bench, ar: Commands, tmp_path: Path) -> None:
    ar("check")
    assert "1 file checked, no problems found" in ar.err
    warned = tmp_path / "x.toml"
    warned.write_text('name = "x"\n[scopes]\nwrites = ["deviation"]\n')
    assert "no tool in scope writes deviation" in ar("check", str(warned))
    warned.write_text('name = "x"\n[scopes]\nwrites = ["canon"]\n')
    assert f"{warned}:3: scopes.writes" in ar("check", str(warned), code=2)
    ar("check", str(tmp_path / "none.toml"), code=3)


async def test_the_least_names_the_subagents_that_turns_started(bench: Bench, ar: Commands, tmp_path: Path) -> None:
    wide = 'name = "work"\nautonomous = true\n[scopes]\ntools = ["subagent.run"]\nsubagents = ["reviewer"]\n'
    await asyncio.to_thread((bench.home.categories / "work.toml").write_text, wide)
    bench.script["go"] = [calls(("subagent_run", {"name": "reviewer", "brief": "?"})), AIMessage("done")]
    assert (await bench.run(1)).state == STATES.SUCCEEDED
    found = ar.json("rehearse", draft(tmp_path, NARROW))
    assert [(call["would"], call["missing"]) for call in found["calls"]] == [("ask", "subagent.run")]
    assert (found["least"]["tools"], found["least"]["subagents"]) == (["subagent.run"], ["reviewer"])
