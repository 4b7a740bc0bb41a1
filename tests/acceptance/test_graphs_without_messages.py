"""A graph whose state has no messages, from a topic to a report: by schedule while it is killed, and in clients."""

import json
from collections.abc import AsyncIterator, Iterator
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command, interrupt
from langgraph_sdk.errors import ConflictError

from tests.acceptance.test_langgraph_clients import BY_NODE, MAJORS, play, until_reachable
from tests.acceptance.test_mcp_clients import ask, http_client, refused
from tests.support.constellation import AGENT_RUNTIME
from tests.support.langgraph import Lg, said
from tests.support.machines import constellation_on, new_home
from tests.support.web import configure, serving
from turnkeeper.rpc.process import VARIABLE

pytestmark = pytest.mark.process
STEPS = ["plan", "draft", "publish"]
QUESTION = {"question": "Which?", "options": ["old", "new"]}
GRAPH = """
import os
import signal
import time
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

class State(TypedDict, total=False):
    topic: str
    done: Annotated[list[str], add]
    report: str

def begins(step: str, topic: str) -> None:
    "Write down that a step began; if the topic says so, the process is killed in it, the first time."
    log = Path(__file__).parent / topic
    told = log.read_text().split() if log.exists() else []
    log.write_text(" ".join([*told, step]))
    if topic == f"killed-in-{step}" and step not in told:
        os.kill(os.getpid(), signal.SIGKILL)

def plan(state: State) -> State:
    begins("plan", state["topic"])
    return {"done": ["plan"]}

def draft(state: State) -> State:
    begins("draft", state["topic"])
    while state["topic"] == "open" and not Path(__file__).with_name("asks").exists():
        time.sleep(0.01)
    if state["topic"] == "open":
        return {"topic": interrupt("Which topic?"), "done": ["draft"]}
    if state["topic"] == "which":
        return {"topic": interrupt({"question": "Which?", "options": ["old", "new"]}), "done": ["draft"]}
    return {"done": ["draft"]}

def publish(state: State) -> State:
    begins("publish", state["topic"])
    return {"report": f"about {state['topic']}", "done": ["publish"]}

builder = StateGraph(State)
builder.add_sequence([plan, draft, publish])
builder.add_edge(START, "plan")
graph = builder.compile()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graph")


@pytest.fixture(scope="module")
def lg(folder: Path) -> Iterator[Lg]:
    file = folder / "reporting.py"
    file.write_text(GRAPH)
    graph = f"[agents.agent0]\ngraph = {json.dumps(f'{file}:graph')}\n"
    with new_home() as home, constellation_on(None, home) as constellation:
        configure(home, graph)
        constellation.start()
        with serving(home, graph) as web:
            made = Lg(constellation, web)
            yield made
            made.http.close()


@pytest.mark.parametrize("place", ["accepted", "claimed", "started", "finished", "recorded"])
def test_a_death_around_a_scheduled_run_loses_and_doubles_nothing(lg: Lg, place: str) -> None:
    thread = scheduled(lg, place)
    lg.constellation.kill(AGENT_RUNTIME)
    lg.constellation.start(AGENT_RUNTIME, **{VARIABLE: f"runtime.{place}"})
    lg.constellation.attempt("task-runner", "run", place)
    is_done_once_after_a_death(lg, thread, place)


@pytest.mark.parametrize("step", STEPS)
def test_a_death_in_a_step_repeats_that_step_alone(lg: Lg, folder: Path, step: str) -> None:
    topic = f"killed-in-{step}"
    thread = scheduled(lg, topic)
    lg.constellation.attempt("task-runner", "run", topic)
    is_done_once_after_a_death(lg, thread, topic)
    at = STEPS.index(step)
    assert (folder / topic).read_text().split() == [*STEPS[: at + 1], *STEPS[at:]]


def scheduled(lg: Lg, topic: str) -> str:
    """Make a task of this name whose input is a topic. Return its thread."""
    thread = lg.thread()
    lg.cron(thread, input={"topic": topic}, metadata={"name": topic})
    return thread


def is_done_once_after_a_death(lg: Lg, thread: str, name: str) -> None:
    lg.constellation.until_dead(AGENT_RUNTIME)
    lg.constellation.start(AGENT_RUNTIME)
    until_reachable(lg)
    (entry,) = lg.constellation.until_outcome(name, "succeeded")
    assert lg.constellation.history(name) == [entry]
    wanted = {"topic": name, "done": STEPS, "report": f"about {name}"}
    assert lg.ask("GET", f"/threads/{thread}/state")["values"] == wanted
    (run,) = lg.ask("GET", f"/threads/{thread}/runs")
    assert (run["run_id"], run["status"]) == (entry["turn_id"], "success")
    (turn,) = (one for one in lg.constellation.conversation() if one["turn_id"] == entry["turn_id"])
    assert [one["role"] for one in turn["messages"]].count("trigger") == 1
    assert f"about {name}" in json.dumps(turn)
    assert lg.constellation.violations(drained=False) == []


async def test_the_report_of_a_scheduled_run_is_read_over_mcp(lg: Lg) -> None:
    scheduled(lg, "pumps")
    lg.constellation.command("task-runner", "run", "pumps")
    lg.constellation.until_outcome("pumps", "succeeded")
    async with http_client(lg.web, lg.keys["read"], "auto") as to:
        told = json.dumps(await ask(to, "conversation_read", channel="general"))
    assert "about pumps" in told


def test_a_result_is_laid_out_where_people_read_it(lg: Lg) -> None:
    """The topic is so long that the turn's summary ends within it."""
    topic = " ".join(["pressure"] * 24)
    lg.cron(lg.thread(), input={"topic": topic}, metadata={"name": "boiler"})
    done = lg.constellation.command("task-runner", "run", "boiler", "--wait")
    laid_out = f"topic: {topic}\ndone:\n  - plan\n  - draft\n  - publish\nreport: about {topic}"
    assert laid_out in done
    (entry,) = lg.constellation.history("boiler")
    told = lg.constellation.command("agent-runtime", "turns", "show", entry["turn_id"])
    assert "topic: pressure pressure" in told
    assert '"topic"' not in told
    lg.web.log_in()
    page = lg.web.ask(f"/ui/turns/{entry['turn_id']}", cookie=lg.web.cookie).body
    assert f'<pre tabindex="0" aria-label="Result">{laid_out}</pre>' in page
    today = lg.web.ask("/ui/", cookie=lg.web.cookie).body
    assert '<dd class="as-is">topic: pressure pressure' in page
    assert '<p class="as-is">topic: pressure pressure' in today


async def test_only_who_may_decide_answers_a_question_by_a_message(lg: Lg) -> None:
    thread = lg.thread()
    lg.ask("POST", f"/threads/{thread}/runs/wait", {"assistant_id": "agent0", "input": {"topic": "which"}})
    message = {"assistant_id": "agent0", "input": said("new")}
    by_work = {"headers": {"x-api-key": lg.keys["work"]}}
    assert "waits for the answer" in lg.refused("POST", f"/threads/{thread}/runs", message, status=409, **by_work)
    for scope in ("work", "decide"):  # a model speaks over MCP, whatever its key may do
        async with http_client(lg.web, lg.keys[scope], "auto") as to:
            why = await refused(to, "message_send", text="new", thread_id=thread)
            assert "the thread waits for the person's answer to" in why
    assert lg.ask("GET", f"/threads/{thread}")["status"] == "interrupted"
    answered = lg.ask("POST", f"/threads/{thread}/runs/wait", message)
    assert answered["report"] == "about new"


@pytest.mark.client
@BY_NODE
@pytest.mark.parametrize("major", MAJORS)
def test_the_javascript_sdk_answers_edits_and_runs_again_a_state_without_messages(lg: Lg, major: str) -> None:
    saw = play(lg, major, "ownState")
    assert saw["asked"] == {"question": "Which?", "options": ["old", "new"]}
    assert saw["answered"] == {"topic": "new", "done": STEPS, "report": "about new"}
    assert saw["edited"] == {"topic": "pipes", "done": STEPS, "report": "about pipes"}
    assert saw["again"] == saw["answered"], "the steps after a state of the branch before"
    assert (saw["inside"], saw["branches"]) == (["plan", "draft", "publish"], 2)


class Outer(TypedDict, total=False):
    topic: str
    done: Annotated[list[str], add]
    report: str
    title: str


@pytest.fixture
async def client(lg: Lg) -> AsyncIterator[Any]:
    async with lg.client() as found:
        yield found


def outer(client: Any, **how: Any) -> Any:
    """Return a graph of another program, of which a node is our graph."""
    builder = StateGraph(Outer)
    builder.add_node("ours", RemoteGraph("agent0", client=client))
    builder.add_node("title", lambda state: {"title": state["report"].upper()})
    builder.add_edge(START, "ours")
    builder.add_edge("ours", "title")
    return builder.compile(**how)


async def test_a_graph_of_another_program_has_ours_as_a_node(client: Any) -> None:
    found = await outer(client).ainvoke({"topic": "pumps"})
    assert (found["report"], found["title"]) == ("about pumps", "ABOUT PUMPS")
    told = [one async for one in outer(client).astream({"topic": "pumps"}, stream_mode="updates", subgraphs=True)]
    inner = [list(data) for place, data in told if place]
    assert inner == [[step] for step in STEPS]


async def test_a_question_of_our_graph_reaches_the_person_at_the_other_program(client: Any) -> None:
    graph, config = outer(client, checkpointer=InMemorySaver()), {"configurable": {"thread_id": "outer"}}
    asked = await graph.ainvoke({"topic": "which"}, config)
    assert asked["__interrupt__"][0].value == QUESTION
    ours = RemoteGraph("agent0", client=client)
    assert (await ours.aget_state(config)).tasks[0].interrupts[0].value == QUESTION
    with pytest.raises(ConflictError, match="waits for the answer to a question"):
        await graph.ainvoke(Command(resume="new"), config)
    answered = await ours.ainvoke(Command(resume="new"), config)
    assert answered == {"topic": "new", "done": STEPS, "report": "about new"}


async def test_a_node_around_our_graph_asks_its_question_and_passes_the_answer_on(lg: Lg, client: Any) -> None:
    ours, thread = RemoteGraph("agent0", client=client), lg.thread()
    place: RunnableConfig = {"configurable": {"thread_id": thread}}

    async def node(state: Outer) -> Any:
        if (await client.threads.get(thread))["status"] != "interrupted":
            await ours.ainvoke({"topic": state["topic"]}, place)
        while asked := (await ours.aget_state(place)).interrupts:
            await ours.ainvoke(Command(resume=interrupt(asked[0].value)), place)
        return {"report": (await ours.aget_state(place)).values["report"]}

    builder = StateGraph(Outer)
    builder.add_node("ours", node)
    builder.add_edge(START, "ours")
    graph, config = builder.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "around"}}
    asked = await graph.ainvoke({"topic": "which"}, config)
    assert asked["__interrupt__"][0].value == QUESTION
    assert (await graph.ainvoke(Command(resume="new"), config))["report"] == "about new"


def test_an_input_without_a_message_answers_no_question(lg: Lg, folder: Path) -> None:
    """Two runs in line: the first asks an open question, and the second is held until it is answered."""
    thread = lg.thread()
    place, body = f"/threads/{thread}/runs", {"assistant_id": "agent0"}
    first, second = (lg.ask("POST", place, body | {"input": {"topic": topic}}) for topic in ("open", "pumps"))
    (folder / "asks").touch()
    asked = lg.until_waiting(thread)["interrupts"]
    assert [one[0]["value"] for one in asked.values()] == ["Which topic?"]
    for given in ({"topic": "pipes"}, {}):
        assert "resume" in lg.refused("POST", place, body | {"input": given}, status=409)
    assert lg.ask("GET", f"/threads/{thread}")["interrupts"] == asked
    lg.ask("POST", f"{place}/wait", body | {"command": {"resume": "valves"}})
    values = {one["run_id"]: lg.ask("GET", f"{place}/{one['run_id']}/join") for one in (first, second)}
    assert values[second["run_id"]]["report"] == "about pumps"
    assert [one["status"] for one in lg.ask("GET", place)] == ["success"] * 2
    states = lg.ask("POST", f"/threads/{thread}/history", {"limit": 100})
    assert "about valves" in [one["values"].get("report") for one in states], "only the person's answer counts"


@pytest.mark.client
@BY_NODE
def test_a_javascript_graph_has_ours_as_a_node(lg: Lg) -> None:
    saw = play(lg, "1", "remoteGraph")
    assert saw["plain"] == {"report": "about pumps", "title": "ABOUT PUMPS"}
    assert saw["inside"] == STEPS
    assert (saw["asked"], saw["state"]) == (QUESTION, QUESTION)
    assert saw["refused"] == 409
    assert saw["answered"] == "about new"
