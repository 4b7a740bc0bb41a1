"""A subagent whose turn's step is run again: it goes on from its own checkpoints, and what it wrote is written once."""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from agent_runtime.graph.agent import default
from agent_runtime.graph.agent.default import Report, Subagents
from agent_runtime.graph.context import turn_around
from agent_runtime.graph.guard import Gate, Guard, watching
from agent_runtime.graph.offline.model import OfflineModel
from agent_runtime.model.turn import Category
from agent_runtime.permissions.judge import judge
from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.workspace.workspace import Workspace
from tests.integration.runtime.guarded import CONFIG
from tests.integration.workspace.conftest import Begin, Told, call
from tests.support.clock import ManualClock

KEEPER = Category(name="keeper", tools=frozenset({"memory.put"}), memory=frozenset({"channel"}), autonomous=True)
HAS_ALL = Category(
    name="work",
    tools=frozenset({"memory.put", "memory.read"}),
    memory=frozenset({"channel"}),
    subagents=frozenset({"keeper"}),
    autonomous=True,
)


class Counted(OfflineModel):
    """The offline model, which counts its calls."""

    asked: Any

    def _answer(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(1)
        return super()._answer(*args, **kwargs)


@pytest.mark.parametrize("dies", ["after the subagent", "within the subagent"])
async def test_a_step_that_runs_again_writes_once_and_asks_no_model_again(
    workspace: Workspace, begin: Begin, clock: ManualClock, told: Told, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    for module in (default, default):
        monkeypatch.setattr(module, "SUBAGENTS", {"keeper": KEEPER})
    asked: list[int] = []
    found: list[Report] = []
    context = begin("turn-1", category=HAS_ALL, thread_id="thread-a")
    specs = workspace_tools(workspace)
    gate = Gate({spec.tool.name: spec for spec in specs}, judge)
    made = Subagents(lambda: Counted(clock=clock, asked=asked))
    made.begin(gate, specs, [Guard(gate), *([Dying()] if dies == "within the subagent" else [])])

    async def node(_state: Any) -> Any:
        found.append(await made.run("keeper", "remember: the pump is new", call_id="c1", admitted=context))
        if len(found) == 1 and dies == "after the subagent":
            raise ConnectionError("the process dies here")

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=InMemorySaver())
    with watching(gate), turn_around(context):
        with pytest.raises(ConnectionError):
            await compiled.ainvoke({"messages": [HumanMessage("go", id="turn-1")]}, CONFIG)
        await compiled.ainvoke(None, CONFIG)
    assert [entry.text for entry in (await workspace.memory.read(call(context), "channel", "")).entries] == [
        "the pump is new"
    ]
    assert [fields["repeated"] for event, fields in told if event == "agent.wrote"].count(False) == 1
    assert len(asked) == 2, "one answer with the call, one with the report"
    assert found[-1].calls == ("memory_put(channel, the pump is new)",)
    assert "Remembered in the channel memory" in found[-1].text


class Dying(default.SubagentLimit):
    """Dies once, when a tool has run and its answer is not on disk yet."""

    def __init__(self) -> None:
        super().__init__("dying")
        self._died = False

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        if not self._died:
            self._died = True
            raise ConnectionError("the process dies here")
        return answer
