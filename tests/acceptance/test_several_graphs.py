"""Two graphs of one project in one home, over kill -9 of real daemons: each task runs the one that it names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.constellation import AGENT_RUNTIME, Constellation
from turnkeeper.config.home import Home

pytestmark = pytest.mark.process

GRAPHS = """
from dataclasses import dataclass
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

@dataclass
class Context:
    owner: str
    unit: str = "mm"

class State(TypedDict, total=False):
    topic: str
    seen: list
    told: str

def survey(state, runtime: Runtime[Context]):
    sure = interrupt(f"survey {state['topic']}?")
    told = f"{state['topic']} for {runtime.context.owner} in {runtime.context.unit}, {sure}"
    return {"seen": [*state.get("seen", []), state["topic"]], "told": told}

def echo(state):
    return {"told": f"heard {state['topic']}"}

def made(node, context=None):
    builder = StateGraph(State, context_schema=context)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder

first, second = made(echo), made(survey, Context)
"""
PROJECT = '{"graphs": {"echo": "./agent.py:first", "survey": "./agent.py:second", "gone": "./gone.py:graph"}}'
ASSISTANT = """
[assistants.ada]
graph = "survey"
context = {owner = "Ada"}
"""


@pytest.fixture
def project(home: Home, tmp_path: Path) -> Iterator[Constellation]:
    (tmp_path / "agent.py").write_text(GRAPHS)
    (tmp_path / "langgraph.json").write_text(PROJECT)
    made = Constellation(home)
    made.command("turnkeeper", "init", "--graph", f"{tmp_path / 'langgraph.json'}:echo")
    with home.config.open("a") as file:
        file.write(ASSISTANT)
    made.start()
    yield made
    made.stop()


def test_each_task_runs_the_graph_that_it_names_with_what_it_gives(project: Constellation) -> None:
    project.create("plain", "--in", "1s", "--prompt", "dig", "--input", '{"topic": "rain"}')
    given = ("--graph", "ada", "--context", '{"unit": "ft"}', "--input", '{"topic": "snow"}')
    project.create("deep", "--in", "1s", "--prompt", "dig", *given)
    project.until_outcome("plain", "succeeded")
    project.until_outcome("deep", "interrupted")
    project.kill(AGENT_RUNTIME)
    project.start(AGENT_RUNTIME)
    (asked,) = project.ask("agent-runtime", "approvals", "list")
    project.command("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--answer", "yes")
    project.until_outcome("deep", "succeeded")
    shown = project.command("agent-runtime", "conversation", "show", "general")
    assert "told: heard rain" in shown
    assert "told: snow for Ada in ft, yes" in shown
    threads = {row["task_name"]: row for row in project.ask("agent-runtime", "threads", "list")}
    assert (threads["deep"]["graph"], threads["plain"]["graph"]) == ("survey", "")
    assert threads["deep"]["thread_id"].endswith(":ada")
    assert "cannot run: gone" in project.attempt("turnkeeper", "status").stderr
    file = project.home.root.parent / "tasks.toml"
    file.write_text(project.command("task-runner", "export", "deep"))
    assert 'graph = "ada"\ncontext = {"unit" = "ft"}\ninput = {"topic" = "snow"}\n' in file.read_text()
    (applied,) = project.ask("task-runner", "apply", str(file))
    assert applied["action"] == "unchanged"
    assert project.violations() == []
