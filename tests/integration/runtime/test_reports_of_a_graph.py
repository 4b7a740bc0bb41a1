"""What a graph tells while it runs, and a result of fields, as who follows the conversation reads them."""

import asyncio
import io
from contextlib import aclosing

import pytest
from rich.console import Console

from agent_runtime.cli.chat.screen import LineView, Screen, View
from agent_runtime.graph.engine.model_output import LiveOutput
from agent_runtime.graph.foreign.reports import Reports
from agent_runtime.model.turn import Category, TurnContext
from tests.integration.runtime import authors_graphs
from tests.integration.runtime.authors_graphs import AuthorsBench
from tests.integration.runtime.harness import PATIENCE_S, STATES, Call, look_again, soon
from turnkeeper.v1 import agent_runtime_pb2 as wire

bench = authors_graphs.bench

TELLS = """
import asyncio
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

go = asyncio.Event()

class State(MessagesState):
    found: list
    score: int

async def search(state):
    get_stream_writer()({"progress": 0.5, "source": "pond\\x1b[2J"})
    get_stream_writer()({"wake_after_s": 60})
    return {"messages": [AIMessage("in the subgraph", tool_calls=[])], "found": ["newt"]}

async def rate(state):
    return {"score": 7}

async def answer(state):
    get_stream_writer()("nearly done")
    await go.wait()
    return {"messages": [AIMessage("the answer")]}

inner = StateGraph(State)
inner.add_node("search", search)
inner.add_node("rate", rate)
inner.add_edge(START, "search")
inner.add_edge("search", "rate")
graph = StateGraph(MessagesState)
graph.add_node("inner", inner.compile())
graph.add_node("answer", answer)
graph.add_edge(START, "inner")
graph.add_edge("inner", "answer")
"""


async def follow(bench: AuthorsBench, views: list[View], heard: asyncio.Event) -> None:
    """Show the conversation until its turn is over."""
    request = wire.WatchConversationRequest(channel="main", live=True)
    async with aclosing(bench.service.WatchConversation(request, Call())) as stream:
        async for turn in stream:
            for view in views:
                view.take(turn)
            if any(one.text == "nearly done" for one in turn.speech.reports):
                heard.set()
            if turn.status == "succeeded":
                return


async def test_events_and_subgraphs_are_told_while_they_run_each_once(bench: AuthorsBench) -> None:
    bench.bring(TELLS)
    await bench.open()
    lines = Console(file=io.StringIO(), width=200)
    terminal = Console(file=io.StringIO(), width=100, height=40, force_terminal=True, _environ={})
    screen, heard = Screen(terminal), asyncio.Event()
    following = asyncio.create_task(follow(bench, [LineView(lines), screen], heard))
    async with asyncio.timeout(PATIENCE_S):
        while not bench.runtime.live.followed("main"):
            await look_again()
    receipt = await bench.accept(bench.fire(prompt="look"))
    await soon(heard.wait(), "the last report")
    screen.draw()
    drawn = terminal.file.getvalue()  # type: ignore[attr-defined]
    bench.module.go.set()
    event = await bench.stopped(receipt.turn_id)
    await soon(following, "the end")
    told = [line.strip() for line in lines.file.getvalue().splitlines() if line.startswith("  tells")]  # type: ignore[attr-defined]
    assert told == [
        "tells      inner: progress: 0.5, source: pond\\x1b[2J",
        "tells      inner: in the subgraph",
        "tells      inner: found: 1",
        "tells      inner: score: 7",
        "tells      nearly done",
    ]
    assert "inner: score: 7" in drawn
    assert (event.state, event.wake_after_s) == (STATES.SUCCEEDED, 60)
    (turn,) = await bench.conversation()
    assert [line.text for line in turn.messages] == ["look", "in the subgraph", "the answer"], "reports are no messages"


class Array:
    """Compares as the arrays of numpy do: to no yes and no no."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self.text


async def test_a_subgraphs_values_are_told_whatever_they_are() -> None:
    live, turn = (
        LiveOutput(),
        TurnContext(turn_id="turn-1", thread_id="th", channel="main", agent="agent0", category=Category(name="x")),
    )
    with live.listen("main") as listener:
        reports = Reports(live, turn, lambda: 0)
        for text in ("[1 2]", "[1 2]", "[1 3]"):
            reports.take({"type": "values", "ns": ("inner:1",), "data": {"seen": Array(text)}})
        (piece,) = listener.news(lambda _turn_id, _after: True)
    assert [(one.source, one.text) for one in piece.reports] == [("inner", '{"seen": "[1 3]"}')]


AGENT = """
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import BaseModel

class Weather(BaseModel):
    sky: str
    degrees: list[int]

class Teller(BaseChatModel):
    @property
    def _llm_type(self):
        return "teller"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, *args, **kwargs):
        call = {"name": "Weather", "args": {"sky": "clear", "degrees": [3, 9]}, "id": "call-1"}
        plain = messages[-1].content == "hello"
        return ChatResult(generations=[ChatGeneration(message=AIMessage("hi") if plain else AIMessage("", tool_calls=[call]))])

graph = create_agent(Teller(), [], response_format=ToolStrategy(Weather))
"""


@pytest.mark.parametrize("wide", [False, True])
async def test_a_structured_result_is_shown_a_field_to_a_line(bench: AuthorsBench, wide: bool) -> None:
    bench.bring(AGENT)
    await bench.open()
    event = await bench.run(prompt="the weather?")
    assert (event.state, event.summary) == (STATES.SUCCEEDED, '{"sky": "clear", "degrees": [3, 9]}'), event.error
    out, terminal = (Console(file=io.StringIO(), width=100, force_terminal=tty, _environ={}) for tty in (False, True))
    (turn,) = await bench.conversation()
    LineView(out, wide=wide).take(turn)
    Screen(terminal, wide=wide).take(turn)
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert "  agent      sky: clear\n             degrees:\n               - 3\n               - 9\n" in shown
    assert "degrees:" in terminal.file.getvalue()  # type: ignore[attr-defined]


SURVEY = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

class State(MessagesState):
    topic: str
    sources: list[str]
    report: str

def gather(state):
    call = {"name": "look", "args": {}, "id": f"call-{len(state['messages'])}"}
    return {"messages": [AIMessage("I gather sources first.", tool_calls=[call])], "sources": ["pond"]}

def write(state):
    said = [] if state["messages"][0].content == "quiet" else [AIMessage("The survey is done.")]
    return {"report": f"about {len(state['sources'])} source", "messages": said}

graph = StateGraph(State).add_sequence([gather, write]).add_edge(START, "gather")
"""
PREAMBLE = ("agent", "I gather sources first.")
FIELDS = '{"sources": ["pond"], "report": "about 1 source"}'


async def test_a_message_that_calls_tools_is_no_answer_and_the_returned_fields_are(bench: AuthorsBench) -> None:
    bench.bring(SURVEY)
    await bench.open()
    event = await bench.run(prompt="quiet")
    (turn,) = await bench.conversation()
    assert [(one.role, one.text) for one in turn.messages[1:]] == [PREAMBLE, ("agent", FIELDS)]
    assert event.summary == FIELDS


async def test_the_fields_stand_below_the_message_that_answers(bench: AuthorsBench) -> None:
    bench.bring(SURVEY)
    await bench.open()
    event = await bench.run(prompt="talk")
    assert event.state == STATES.SUCCEEDED, event.error
    (turn,) = await bench.conversation()
    said = [(one.role, one.text) for one in turn.messages[1:]]
    assert said == [PREAMBLE, ("agent", "The survey is done."), ("values", FIELDS)]
    assert event.summary == "The survey is done."
    out = Console(file=io.StringIO(), width=100)
    LineView(out).take(turn)
    assert "report: about 1 source" in out.file.getvalue()  # type: ignore[attr-defined]
