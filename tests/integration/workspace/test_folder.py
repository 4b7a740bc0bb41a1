"""The folder that turns may read: what is told of it, what is never read, and how much of it at most."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver

from agent_runtime.graph.agent.default import build_graph
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.categories import Categories
from agent_runtime.tools.folder import folder as reader
from agent_runtime.tools.folder.folder import MOST_BYTES, folder_tools
from agent_runtime.tools.workspace import workspace_tools
from tests.integration.workspace.conftest import Agent, AskingGuard
from tests.support.clock import ManualClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings

SECRET = "the password is swordfish"


def turn(category: Category, prompt: str = "What changed?") -> TurnContext:
    return TurnContext(
        turn_id="turn-1", thread_id="thread-1", channel="general", agent="agent0", category=category, prompt=prompt
    )


@pytest.fixture
def granted(home: Home) -> Category:
    return Categories(home, Settings()).get("folder-report")


@pytest.fixture
def notes(tmp_path: Path, clock: ManualClock) -> Path:
    """A folder with two files of today, an old one, and names that lead out of it or are hidden."""
    folder = tmp_path / "notes"
    for path, text, hours in (
        ("plan.md", "# Plan\n\nThe pump needs a new seal before May.\n", 1),
        ("src/water.py", '"""Waters the beds when it is dry."""\n', 2),
        ("old.txt", "Nothing has happened here for a long time.\n", 500),
        (".env", SECRET, 0),
        (".git/config", SECRET, 0),
        ("node_modules/left.js", SECRET, 0),
    ):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        at = clock.now().timestamp() - hours * 3600
        os.utime(file, (at, at))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    return folder


class Tools:
    """The two tools, called as a turn's step calls them after the guard."""

    def __init__(self, home: Home, path: Path, clock: ManualClock, context: TurnContext) -> None:
        self._made = {one.tool.name: one.tool for one in folder_tools(home, str(path), clock)}
        info = SimpleNamespace(checkpoint_ns="")
        self._runtime = SimpleNamespace(context=context, execution_info=info, tool_call_id="call-1")

    async def __call__(self, tool: str, **args: Any) -> Any:
        made: Any = self._made[f"folder_{tool}"]
        return json.loads(await made.coroutine(runtime=self._runtime, **args))


@pytest.fixture
def folder(home: Home, notes: Path, clock: ManualClock, granted: Category) -> Tools:
    return Tools(home, notes, clock, turn(granted))


async def test_a_task_reports_what_changed_and_how_the_newest_files_begin(
    home: Home, notes: Path, clock: ManualClock, granted: Category
) -> None:
    specs = folder_tools(home, str(notes), clock)
    saver = InMemorySaver()
    graph = build_graph(
        Settings(), home, specs, middleware=[AskingGuard(specs)], checkpointer=saver, clock=clock, environ={}
    )
    agent = Agent(graph)
    await agent.run(turn(granted))
    assert agent.calls == ["folder_changes", "folder_read", "folder_read", "folder_read"]
    said = agent.text.splitlines()
    assert said[0] == f"2 of 3 files in {notes} changed in the last 24 hours. The newest:"
    assert [line.partition(", ")[0] for line in said[1:-1]] == ["- plan.md", "- src/water.py", "- old.txt"]
    assert said[1].endswith("UTC: “The pump needs a new seal before May.”")
    assert said[2].endswith("UTC: “Waters the beds when it is dry.”")
    assert said[-1] == "(Written by the rule-based offline model.)"
    assert SECRET not in str(agent.said)


async def test_an_order_to_remember_beside_it_asks_the_author(
    home: Home, notes: Path, clock: ManualClock, granted: Category
) -> None:
    nothing: Any = None
    specs = [*folder_tools(home, str(notes), clock), *workspace_tools(nothing)]
    saver = InMemorySaver()
    graph = build_graph(
        Settings(), home, specs, middleware=[AskingGuard(specs)], checkpointer=saver, clock=clock, environ={}
    )
    state = await Agent(graph).run(turn(granted, "What changed? Then remember: the seal is ordered"))
    (asked,) = state["__interrupt__"]
    assert (asked.value["tool"], asked.value["missing_scope"]) == ("memory_put", "memory.put")


async def test_names_that_lead_out_or_are_hidden_are_not_told(folder: Tools) -> None:
    told = await folder("changes")
    assert (told["files"], told["changed"], told["more_files"]) == (3, 2, False)
    assert [one["file"] for one in told["newest"]] == ["plan.md", "src/water.py", "old.txt"]
    assert (await folder("changes", hours=1000))["changed"] == 3


@pytest.mark.parametrize(
    "file",
    [
        *("../outside/secret.txt", "/etc/passwd", "link.txt", "linked/secret.txt", "src/../../outside/secret.txt"),
        *(".env", ".git/config", "node_modules/left.js", "pipe", "src", "", ".", "gone.txt", "plan.md\0", "\udcff"),
    ],
)
async def test_nothing_else_is_read(folder: Tools, file: str) -> None:
    with pytest.raises(ToolException, match="the folder has no such file that may be read"):
        await folder("read", file=file)


async def test_a_file_that_becomes_a_link_while_it_is_looked_for_is_not_read(
    folder: Tools, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = os.open

    def swapped(path: Any, *args: Any, **more: Any) -> int:
        if path == "plan.md":
            (notes / "plan.md").unlink()
            (notes / "plan.md").symlink_to(notes.parent / "outside" / "secret.txt")
        return opens(path, *args, **more)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(ToolException, match=r"plan\.md: cannot be read: "):
        await folder("read", file="plan.md")


async def test_one_reading_has_its_limit(folder: Tools, notes: Path) -> None:
    (notes / "long.txt").write_text("x" * (MOST_BYTES + 5))
    (notes / "photo.png").write_bytes(b"\x89PNG\0")
    read = await folder("read", file="long.txt")
    assert (len(read["text"]), read["left_out_bytes"]) == (MOST_BYTES, 5)
    with pytest.raises(ToolException, match="is not a text file"):
        await folder("read", file="photo.png")


async def test_a_large_folder_is_counted_up_to_a_limit(
    folder: Tools, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = notes / "/".join("d" * 60)
    deep.mkdir(parents=True)
    (deep / "deep.txt").write_text("x")
    assert (await folder("changes"))["files"] == 3
    monkeypatch.setattr(reader, "MOST_FILES", 2)
    told = await folder("changes")
    assert (told["files"], told["more_files"]) == (2, True)


async def test_the_home_is_never_read(home: Home, clock: ManualClock, granted: Category) -> None:
    (home.root / "config.toml").write_text(SECRET)
    (home.root.parent / "beside.txt").write_text("beside")
    around = Tools(home, home.root.parent, clock, turn(granted))
    assert [one["file"] for one in (await around("changes"))["newest"]] == ["beside.txt"]
    with pytest.raises(ToolException, match="no such file"):
        await around("read", file=f"{home.root.name}/config.toml")
    for place in (home.root, home.root / "state", home.root / "nowhere"):
        with pytest.raises(ToolException, match="or is Turnkeeper's home, which no turn reads"):
            await Tools(home, place, clock, turn(granted))("changes")


async def test_a_turn_reads_it_only_if_its_category_grants_it(home: Home, notes: Path, clock: ManualClock) -> None:
    ungranted = Tools(home, notes, clock, turn(Categories(home, Settings()).get("conversation")))
    for tool, args in (("changes", {}), ("read", {"file": "plan.md"})):
        with pytest.raises(ToolException, match=f"category conversation does not grant folder.{tool}"):
            await ungranted(tool, **args)


def test_without_a_folder_in_the_settings_there_is_no_tool(home: Home, clock: ManualClock) -> None:
    assert folder_tools(home, "", clock) == []
