"""Overhearing graphs that know nothing of it: which words are the turn's own, and from which thread they may come."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

from agent_runtime.graph.checkpointer.saver import open_saver
from agent_runtime.graph.engine.engine import LocalEngine
from agent_runtime.graph.engine.model_output import LiveOutput, OutputPiece
from agent_runtime.graph.engine.protocol import Input
from agent_runtime.model.turn import Category, TurnContext

TURN = TurnContext(turn_id="turn-1", thread_id="th", channel="general", agent="agent0", category=Category(name="x"))


def writes(text: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage(text)]))


async def heard_of(graph: Any, folder: Path) -> list[OutputPiece]:
    """Run a graph whose channel is followed; return all the pieces that came."""
    checkpoints = await open_saver(folder / "checkpoints.db")
    live, found = LiveOutput(), list[OutputPiece]()
    engine = LocalEngine(graph.compile(checkpointer=checkpoints), checkpoints, foreign=True, live=live)

    async def listen() -> None:
        while True:
            news = listener.bell.next()
            found.extend(listener.news(lambda _turn_id, _after: True))
            await news.wait()

    async def step(_step: Any) -> None:
        """Let the listener hear what came before the next step."""
        found.extend(listener.news(lambda _turn_id, _after: True))

    with live.listen("general") as listener:
        listening = asyncio.create_task(listen())
        ended = await engine.run(Input(prompt="hi"), TURN, TURN.turn_id, step)
        listening.cancel()
    await checkpoints.aclose()
    assert ended.stopped == "end", ended.error
    return found


def line_of(*nodes: Callable[..., Any]) -> Any:
    graph = StateGraph(MessagesState)
    names = [START, *(node.__name__ for node in nodes), END]
    for node in nodes:
        graph.add_node(node.__name__, node)
    for before, after in pairwise(names):
        graph.add_edge(before, after)
    return graph


async def test_words_are_heard_from_sync_nodes_in_threads_and_from_async_ones(tmp_path: Path) -> None:
    def first(state: Any) -> Any:
        return {"messages": [writes("one two").invoke(state["messages"])]}

    async def second(state: Any) -> Any:
        return {"messages": [await writes("three four").ainvoke(state["messages"])]}

    found = await heard_of(line_of(first, second), tmp_path)
    said = {after: "".join(piece.text for piece in found if piece.after == after) for after in (0, 1)}
    assert said == {0: "one two", 1: "three four"}


async def test_words_of_models_inside_tools_and_subgraphs_are_not_the_turns_own(tmp_path: Path) -> None:
    @tool
    async def consult() -> str:
        """Ask a model something in passing."""
        return str((await writes("to itself").ainvoke("hm")).content)

    async def inner(state: Any) -> Any:
        return {"messages": [await writes("in a subgraph").ainvoke(state["messages"])]}

    async def outer(_state: Any) -> Any:
        call = {"name": "consult", "args": {}, "id": "call-1", "type": "tool_call"}
        await consult.ainvoke(call)
        await writes("kept quiet").with_config(tags=["nostream"]).ainvoke("hm")
        return {}

    subgraph: Any = line_of(inner).compile()
    graph = StateGraph(MessagesState)
    graph.add_node("outer", outer)
    graph.add_node("sub", subgraph)
    graph.add_edge(START, "outer")
    graph.add_edge("outer", "sub")
    graph.add_edge("sub", END)
    found = await heard_of(graph, tmp_path)
    assert "".join(piece.text for piece in found) == ""
    states = [[(call.name, call.state) for call in piece.calls] for piece in found]
    assert states[-1] == [("consult", "done")]
