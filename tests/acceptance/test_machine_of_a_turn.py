"""The machine that runs a turn, or ran it, is named if several machines share the store."""

import pytest

from tests.support.constellation import Constellation
from tests.support.machines import TwoMachines
from turnkeeper.storage.server.snapshot import machine_of

pytestmark = pytest.mark.process
WAITS = """
import asyncio
from pathlib import Path

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


async def wait(state):
    while not (Path(__file__).parent / "door").exists():
        await asyncio.sleep(0.02)
    return {"messages": [AIMessage("The door is open.")]}


graph = StateGraph(MessagesState).add_node(wait).add_edge(START, "wait").compile()
"""


def test_the_machine_of_a_turn_is_told_while_it_runs_and_after(stopped: Constellation) -> None:
    for home in stopped.homes:
        (home.root / "waits.py").write_text(WAITS)
        with home.config.open("a") as config:
            config.write('[agents.agent0]\ngraph = "waits.py:graph"\n')
    stopped.start()
    stopped.create("slow", "--in", "1s", "--prompt", "Wait at the door.")
    (fire,) = stopped.until_outcome("slow", "running")
    name = "runtime" if isinstance(stopped, TwoMachines) else None

    def told() -> object:
        return stopped.ask("agent-runtime", "turns", "show", fire["turn_id"]).get("machine")

    assert told() == name
    for home in stopped.homes:
        (home.root / "door").touch()
    stopped.until_outcome("slow", "succeeded")
    assert told() == name
    assert machine_of(stopped.home, "turn-unknown") == ""
