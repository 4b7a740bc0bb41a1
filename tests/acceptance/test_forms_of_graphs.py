"""A workflow of functions, and a graph that stops before a step, whose process is killed in a step."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.constellation import AGENT_RUNTIME, Constellation
from turnkeeper.config.home import Home

pytestmark = pytest.mark.process

PARTS = '''
import os
import signal
from pathlib import Path
from typing import TypedDict
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

here = Path(__file__).parent


async def note(what: str) -> None:
    """Write down that a step ran; the process is killed as the second begins for the first time."""
    with (here / "steps").open("a") as file:
        file.write(f"{what} ")
    if (here / "steps").read_text() == "first second ":
        os.kill(os.getpid(), signal.SIGKILL)
'''
WORKFLOW = """
@task
async def step(name: str) -> str:
    await note(name)
    return name


@entrypoint()
async def graph(prompt: str, *, previous: str | None = None) -> str:
    done = [await step("first"), await step("second")]
    return f"{prompt}: {done} {interrupt('ship it?')} after {previous}"
"""
STEPS = """
class State(TypedDict, total=False):
    prompt: str
    plan: str


async def first(state: State) -> State:
    await note("first")
    return {"plan": "of " + state["prompt"]}


async def second(state: State) -> None:
    await note("second")


builder = StateGraph(State)
builder.add_node(first)
builder.add_node(second)
builder.add_edge(START, "first")
builder.add_edge("first", "second")
graph = builder.compile(interrupt_before=["second"])
"""


@pytest.fixture
def project(home: Home, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Constellation]:
    (tmp_path / "agent.py").write_text(PARTS + request.param)
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": {"path": "./agent.py:graph"}}, "env": ".env"}')
    made = Constellation(home)
    made.command("turnkeeper", "init", "--graph", f"{tmp_path / 'langgraph.json'}:agent")
    made.start()
    made.create("work", "--in", "1s", "--prompt", "dig")
    yield made
    made.stop()


def steps(folder: Path) -> list[str]:
    return (folder / "steps").read_text().split() if (folder / "steps").exists() else []


def is_killed_in_the_second_step(project: Constellation, folder: Path) -> None:
    project.until_dead(AGENT_RUNTIME)
    assert steps(folder) == ["first", "second"]
    project.start(AGENT_RUNTIME)


@pytest.mark.parametrize("project", [WORKFLOW], indirect=True)
def test_a_workflow_of_functions_keeps_what_its_tasks_finished(project: Constellation, tmp_path: Path) -> None:
    is_killed_in_the_second_step(project, tmp_path)
    project.until_outcome("work", "interrupted")
    assert steps(tmp_path) == ["first", "second", "second"], "what had finished ran once"
    (asked,) = project.ask("agent-runtime", "approvals", "list")
    project.kill(AGENT_RUNTIME)
    project.start(AGENT_RUNTIME)
    project.command("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--answer", "today")
    project.until_outcome("work", "succeeded")
    shown = project.command("agent-runtime", "conversation", "show", "general")
    assert "dig: ['first', 'second'] today after None" in shown
    assert project.violations() == []


@pytest.mark.parametrize("project", [STEPS], indirect=True)
def test_a_stop_before_a_step_is_asked_once_and_passed_once(project: Constellation, tmp_path: Path) -> None:
    project.until_outcome("work", "interrupted")
    project.kill(AGENT_RUNTIME)
    project.start(AGENT_RUNTIME)
    (asked,) = project.ask("agent-runtime", "approvals", "list")
    shown = project.command("agent-runtime", "approvals", "show", asked["interrupt_id"][:10])
    for line in ("second", 'plan = "of dig"', "it stops before second", "takes: approve, reject, edit"):
        assert line in shown
    assert "may second run? it stops before second" in project.command("agent-runtime", "approvals", "list")
    assert steps(tmp_path) == ["first"]
    project.command("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--approve")
    is_killed_in_the_second_step(project, tmp_path)
    project.until_outcome("work", "succeeded")
    assert steps(tmp_path) == ["first", "second", "second"], "it was not asked about again"
    assert project.violations() == []
