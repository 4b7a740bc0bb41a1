"""One home runs several graphs: each by its name, on threads of its own, configured by whoever names it."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_runtime.cli.rows import grants
from agent_runtime.model.mapping import to_json
from agent_runtime.service import requests
from tests.integration.runtime.authors_graphs import TALKER, AuthorsBench
from tests.integration.runtime.harness import STATES
from turnkeeper.config import json_text
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AgentSettings, AssistantSettings, CategorySettings, Settings
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.v1 import agent_runtime_pb2 as wire

SURVEY = """
from dataclasses import dataclass
from typing import TypedDict
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
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

@tool
def look(what: str) -> str:
    "Look, in another way than the talker does."
    return f"{what} was surveyed"

def survey(state, runtime: Runtime[Context], config: RunnableConfig):
    asked = config["configurable"]
    if state["topic"] == "ask":
        interrupt("really?")
    said = look.invoke({"what": "door"}) if state["topic"] == "look" else ""
    told = f"{state['topic']} for {runtime.context.owner} in {runtime.context.unit} by {asked.get('model')} {said}"
    return {"seen": [*state.get("seen", []), state["topic"]], "told": told}

graph = StateGraph(State, context_schema=Context)
graph.add_node("survey", survey)
graph.add_edge(START, "survey")
"""
PROJECT = {"graphs": {"talker": "./talker.py:graph", "survey": "./survey.py:graph", "broken": "./broken.py:graph"}}
OWNER = '{"owner": "Ada"}'


@pytest_asyncio.fixture
async def bench(home: Home, place_of: Callable[[Path], Path | str]) -> AsyncIterator[AuthorsBench]:
    made = AuthorsBench(home, place=place_of(home.agent_db))
    folder = home.root.parent / f"project_{home.root.parent.name[3:]}"
    folder.mkdir()
    for name, text in (("talker", TALKER), ("survey", SURVEY), ("broken", "raise RuntimeError('no key')")):
        (folder / f"{name}.py").write_text(text)
    (folder / "langgraph.json").write_text(json.dumps(PROJECT))
    made.settings = Settings(
        agents={"agent0": AgentSettings(graph=f"../{folder.name}/langgraph.json:talker")},
        assistants={
            "ada": AssistantSettings(graph="survey", context={"owner": "Ada", "unit": "ft"}, config={"model": "small"})
        },
        categories=CategorySettings(autonomous_allowed=("work", "wide")),
    )
    made.category("work", tools=["tool:look"])
    await made.open()
    yield made
    await made.close()


async def told(bench: AuthorsBench, number: int = 1, **changes: Any) -> str:
    """Fire the survey and return what it told."""
    given = {"graph": "survey", "task": "s", "thread_id": "survey-1", "input_json": '{"topic": "rain"}'}
    event = await bench.run(number, **given | {"context_json": OWNER} | changes)
    assert event.state == STATES.SUCCEEDED, event.error
    return str(json.loads(event.summary)["told"]).strip()


async def test_a_fire_names_the_graph_that_it_runs(bench: AuthorsBench) -> None:
    assert (await bench.run(prompt="hello")).summary == "I heard: hello"
    assert (await bench.run(2, prompt="hello", graph="talker")).summary == "I heard: hello"
    assert await told(bench) == "rain for Ada in mm by None"
    shown = (await bench.service.ListThreads(wire.ListThreadsRequest(), None)).threads
    assert {thread.thread_id: thread.graph for thread in shown} == {"survey-1": "survey", "thread-a": "talker"}


async def test_each_thread_keeps_the_state_of_its_graph(bench: AuthorsBench) -> None:
    await told(bench, 1)
    await bench.crash()
    event = await bench.run(
        2, graph="survey", task="s", thread_id="survey-1", input_json='{"topic": "snow"}', context_json=OWNER
    )
    assert json.loads(event.summary)["seen"] == ["rain", "snow"]


async def test_context_config_and_input_reach_the_graph(bench: AuthorsBench) -> None:
    said = await told(bench, context_json='{"owner": "Bo", "unit": "in"}', config_json='{"model": "large"}')
    assert said == "rain for Bo in in by large"


async def test_an_assistant_gives_what_the_fire_does_not_say(bench: AuthorsBench) -> None:
    assert await told(bench, graph="ada", context_json="") == "rain for Ada in ft by small"
    assert await told(bench, 2, graph="ada", context_json='{"unit": "in"}') == "rain for Ada in in by small"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"context_json": ""}, "context: the graph's context lacks 'owner'; its fields are owner (required), unit"),
        ({"context_json": '{"owner": "Ada", "units": "mm"}'}, "context: the graph's context has no field 'units'"),
        ({"context_json": '{"owner": 7}'}, "context: owner: input should be a valid string"),
        ({"input_json": '{"topics": "rain"}'}, "input: the graph's input has no field 'topics'"),
        ({"input_json": '{"topic": 7}'}, "input: topic: input should be a valid string"),
    ],
)
async def test_what_does_not_fit_the_graph_fails_the_turn_and_says_why(
    bench: AuthorsBench, changes: dict[str, str], why: str
) -> None:
    given = {"input_json": '{"topic": "rain"}', "context_json": OWNER} | changes
    event = await bench.run(graph="survey", task="s", thread_id="survey-1", **given)
    assert event.state == STATES.FAILED
    assert why in event.error
    assert await told(bench, 2) == "rain for Ada in mm by None"


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"graph": "survy"}, Conflict, "no graph or assistant 'survy'; did you mean survey?"),
        ({"graph": "zzz"}, Conflict, "use one of: ada, broken, survey, talker"),
        ({"graph": "broken"}, Conflict, "the graph broken cannot run: .*no key"),
        ({"graph": "../x"}, InvalidInput, "looks like a path|not valid"),
        ({"config_json": '{"thread_id": "other"}'}, InvalidInput, "'thread_id' is set by Turnkeeper"),
        ({"context_json": '{"checkpoint_id": "x"}'}, InvalidInput, "'checkpoint_id' is set by .*; leave it out"),
        ({"context_json": '{"checkpoint_map": {}}'}, InvalidInput, "'checkpoint_map' is set by"),
        ({"context_json": '{"thread_ts": "x"}'}, InvalidInput, "'thread_ts' is set by"),
        ({"context_json": '{"grant": "{}"}'}, InvalidInput, "'grant' is set by"),
        ({"context_json": '{"owner": "Ada", "turn_id": "x"}'}, InvalidInput, "'turn_id' is set by"),
        ({"context_json": '{"__pregel_resuming": true}'}, InvalidInput, "'__pregel_resuming' is set by"),
        ({"config_json": '{"langgraph_auth_user": {}}'}, InvalidInput, "'langgraph_auth_user' is set by"),
        ({"context_json": "[1]"}, InvalidInput, "is not a JSON object"),
    ],
)
async def test_a_fire_that_no_graph_can_take_is_refused(
    bench: AuthorsBench, changes: dict[str, str], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        await bench.service.Fire(bench.fire(**changes), None)
    assert bench.lying("inbox") == []


async def test_a_thread_belongs_to_one_graph(bench: AuthorsBench) -> None:
    await bench.run(prompt="hello")
    event = await bench.run(2, graph="survey", input_json='{"topic": "rain"}', context_json=OWNER)
    assert event.state == STATES.FAILED
    assert event.error == "thread thread-a belongs to graph talker, not to survey: use another thread"
    assert (await bench.run(3, prompt="still here")).summary == "I heard: still here"


async def test_a_fire_of_another_graph_leaves_a_question_alone(bench: AuthorsBench) -> None:
    asking = await bench.run(prompt="paint: door red")
    assert asking.state == STATES.INTERRUPTED
    other = await bench.run(2, task="b", graph="ada", input_json='{"topic": "rain"}')
    assert other.state == STATES.FAILED
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    event = await bench.stopped(asking.turn_id, after=asking.sequence)
    assert (event.state, event.summary) == (STATES.SUCCEEDED, "I heard: door is red")


async def test_a_category_grants_the_tools_of_the_graphs_that_it_names(bench: AuthorsBench) -> None:
    assert (await bench.run(prompt="look: door")).summary == "I heard: door is green"
    given = {"graph": "ada", "task": "s", "thread_id": "survey-1", "input_json": '{"topic": "look"}'}
    asking = await bench.run(2, **given)
    assert asking.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert asked.missing_scope == "tool:look"
    assert "of other graphs, but not of survey: turnkeeper categories grant work --graph" in asked.question
    assert grants(to_json(asked)) == ["turnkeeper categories grant work tool:look --graph survey"]
    bench.category("wide", tools=["tool:look"], graphs=["survey"])
    assert (await bench.run(3, **given | {"thread_id": "survey-2", "category": "wide"})).state == STATES.SUCCEEDED
    assert (await bench.run(4, prompt="look: door", category="wide", thread_id="b")).state == STATES.INTERRUPTED


async def test_a_task_whose_category_is_of_another_graph_is_told_how_to_name_it(bench: AuthorsBench) -> None:
    bench.category("wide", tools=["tool:look"], graphs=["survey"])
    bench.category("both", tools=["tool:look"], graphs=["talker", "survey"])
    warned = "category wide is for another graph; to run that, give --graph survey"
    for given, warnings in (
        ({"category": "wide"}, [warned]),
        ({"category": "wide", "graph": "ada", "prompt": "", "input_json": '{"topic": "rain"}'}, []),
        ({"category": "both"}, []),
        ({"category": "work"}, []),
        ({}, []),
    ):
        owner = OWNER if "graph" in given else ""
        asked = wire.ListGraphsRequest(inputs=[wire.FireRequest(**{"prompt": "hello", "context_json": owner} | given)])
        assert list((await bench.service.ListGraphs(asked, None)).warnings) == warnings, given


async def test_a_question_of_a_named_graph_is_answered_after_a_crash(bench: AuthorsBench) -> None:
    event = await bench.run(
        graph="ada", task="s", thread_id="survey-1", input_json='{"topic": "ask"}', config_json='{"model": "large"}'
    )
    assert event.state == STATES.INTERRUPTED
    await bench.crash()
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "answer", message="yes")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert json.loads(event.summary)["told"].strip() == "ask for Ada in ft by large"


async def test_a_message_goes_on_with_the_graph_and_the_configuration_of_its_thread(bench: AuthorsBench) -> None:
    first = await bench.send("hi", new_thread=True, graph="ada", input_json='{"topic": "rain"}')
    await bench.stopped(first.turn_id)
    second = await bench.send("again", thread_id=first.thread_id, input_json='{"topic": "snow"}')
    event = await bench.stopped(second.turn_id)
    assert json.loads(event.summary)["told"].strip() == "snow for Ada in ft by small"
    with pytest.raises(Conflict, match=f"thread {first.thread_id} belongs to graph survey, not to talker"):
        await bench.send("no", thread_id=first.thread_id, graph="talker")


async def test_the_graphs_are_listed_with_what_is_wrong_with_one(bench: AuthorsBench) -> None:
    found = list((await bench.service.ListGraphs(wire.ListGraphsRequest(), None)).graphs)
    assert [graph.name for graph in found] == ["talker", "broken", "survey", "ada"]
    assert [graph.is_default for graph in found] == [True, False, False, False]
    assert "no key" in found[1].problem
    assert (found[3].graph, json.loads(found[3].context_json)) == ("survey", {"owner": "Ada", "unit": "ft"})


@pytest.mark.parametrize(("given", "refused"), [
    ({"graph": "ada", "payload_json": '{"topik": "rain"}'}, "the graph's input has no field 'topik'"),
    ({"graph": "ada", "input_json": '{"topic": 5}'}, "topic"),
    ({"graph": "ada", "input_json": '{"topic": "x"}', "context_json": '{"owner": 5}'}, "owner"),
    ({"prompt": "go", "input_json": '{"topic": "x"}'}, "the graph's input has no field 'topic'"),
    ({"graph": ""}, "the graph takes messages, but none is given"),
    ({"graph": "survey", "payload_json": "{"}, "JSON"),
])  # fmt: skip
async def test_what_a_graph_would_refuse_is_refused_before_it_is_fired(
    bench: AuthorsBench, given: dict[str, str], refused: str
) -> None:
    with pytest.raises(InvalidInput, match=refused):
        await bench.service.ListGraphs(wire.ListGraphsRequest(inputs=[wire.FireRequest(**given)]), None)


async def test_an_input_is_checked_against_the_graph_of_its_thread(bench: AuthorsBench) -> None:
    await bench.run(graph="survey", prompt="", input_json='{"topic": "rain"}', thread_id="of-survey")
    given = {"thread_id": "of-survey", "context_json": '{"owner": "Ada"}'}
    on_thread = [wire.FireRequest(input_json='{"topic": "x"}', **given)]
    await bench.service.ListGraphs(wire.ListGraphsRequest(inputs=on_thread), None)
    on_thread[0].input_json = '{"topik": "x"}'
    with pytest.raises(InvalidInput, match="the graph's input has no field 'topik'"):
        await bench.service.ListGraphs(wire.ListGraphsRequest(inputs=on_thread), None)
    new = wire.ListGraphsRequest(inputs=[wire.FireRequest(thread_id="new", prompt="go", input_json='{"topic": "x"}')])
    with pytest.raises(InvalidInput, match="the graph's input has no field 'topic'"):
        await bench.service.ListGraphs(new, None)


async def test_a_prompt_that_a_graph_does_not_read_is_named(bench: AuthorsBench) -> None:
    given = (
        {"graph": "ada", "prompt": "dig", "input_json": '{"topic": "x"}'},
        {"graph": "broken", "prompt": "x"},
        {"prompt": "hello"},
    )
    asked = wire.ListGraphsRequest(inputs=[wire.FireRequest(**one) for one in given])
    (warning,) = (await bench.service.ListGraphs(asked, None)).warnings
    assert warning.startswith(
        "the graph does not read the prompt: its input has no field for one; its fields are topic"
    )
    assert warning.endswith("; omit it: --prompt ''")


async def test_a_graph_without_messages_needs_no_prompt_and_one_with_messages_does(bench: AuthorsBench) -> None:
    assert await told(bench, prompt="") == "rain for Ada in mm by None"
    (shown,) = await bench.conversation()
    assert shown.messages[0].text == '{"topic":"rain"}'
    event = await bench.run(2, prompt="")
    assert event.state == STATES.FAILED
    assert event.error == "prompt: the graph takes messages, but none is given; give a prompt"
    assert (await bench.run(3, prompt="hello")).summary == "I heard: hello"


FIELDS = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

class State(MessagesState):
    topic: str
    report: str

def write(state):
    return {"report": f"about {state['topic']}", "messages": [AIMessage("Written.")]}

graph = StateGraph(State).add_node("write", write).add_edge(START, "write")
"""


async def test_a_graph_with_messages_and_fields_gets_them_or_says_how_to_give_them(bench: AuthorsBench) -> None:
    bench.bring(FIELDS)
    await bench.open()
    named = "the graph's input also has topic, report; if a node needs one, give --input '{\"topic\": …}'"
    payload = "the payload becomes text of the message; for the field topic, give --input '{\"topic\": …}'"
    for given, warned in (
        ({"prompt": "go"}, [named]),
        ({"prompt": "go", "payload_json": '{"topic": "roofs"}'}, [payload]),
        ({"prompt": "go", "input_json": '{"topic": "roofs"}'}, []),
        ({"input_json": '{"topic": "roofs"}'}, []),
    ):
        asked = wire.ListGraphsRequest(inputs=[wire.FireRequest(**given)])
        assert list((await bench.service.ListGraphs(asked, None)).warnings) == warned
    failed = await bench.run(prompt="go")
    assert failed.error == "KeyError: 'topic'; if the input lacks this field, give --input '{\"topic\": …}'"
    event = await bench.run(2, prompt="", input_json='{"topic": "roofs"}')
    assert (event.state, event.summary) == (STATES.SUCCEEDED, "Written."), event.error
    (_, turn) = await bench.conversation()
    assert turn.messages[-1].text == '{"report": "about roofs"}'


async def first_checkpoint(bench: AuthorsBench) -> str:
    """Run three turns on a thread. Return a checkpoint at the end of the first one."""
    await bench.run(1, prompt="one")
    saved = bench.runtime.checkpoints.aget_tuple
    first = await saved({"configurable": {"thread_id": "thread-a"}})
    assert first is not None
    await bench.run(2, prompt="two")
    await bench.run(3, prompt="three")
    return str(first.config["configurable"]["checkpoint_id"])


async def heard(bench: AuthorsBench) -> list[str]:
    """Return what the newest checkpoint of the thread holds of the author's messages."""
    found = await bench.runtime.checkpoints.aget_tuple({"configurable": {"thread_id": "thread-a"}})
    assert found is not None
    said = found.checkpoint["channel_values"]["messages"]
    return [one.content for one in said if one.type == "human" and one.name != "turnkeeper"]


async def test_without_the_list_of_reserved_keys_a_context_loses_a_thread(
    bench: AuthorsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "is_reserved", lambda _: False)
    first = await first_checkpoint(bench)
    await bench.run(4, prompt="four", context_json=json.dumps({"checkpoint_id": first}))
    assert await heard(bench) == ["four"]


async def test_a_context_that_an_earlier_version_took_fails_its_turn_and_leaves_the_thread_as_it_is(
    bench: AuthorsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await first_checkpoint(bench)
    with monkeypatch.context() as earlier:
        earlier.setattr(requests, "check_configurable", lambda found, _: found)
        event = await bench.run(4, prompt="four", context_json=json.dumps({"checkpoint_id": first}))
    assert event.state == STATES.FAILED
    assert event.error == "context: 'checkpoint_id' is set by Turnkeeper or LangGraph; leave it out"
    assert await heard(bench) == ["one", "two", "three"]
    sent = await bench.send("five", thread_id="thread-a")  # with the context of the turn before, as far as it may
    assert (await bench.stopped(sent.turn_id)).state == STATES.SUCCEEDED
    assert await heard(bench) == ["one", "two", "three", "five"]


OF_ANOTHER: dict[str, Any] = {
    "removes all": {"type": "remove", "id": "__remove_all__", "content": ""},
    "removes one": {"type": "remove", "id": "{first}", "content": ""},
    "changes one": {"type": "human", "id": "{first}", "content": "other"},
    "says it as the agent": {"type": "ai", "content": "other"},
}


@pytest.mark.parametrize("message", OF_ANOTHER)
async def test_no_message_comes_with_the_input_where_it_could_remove_or_change_others(
    bench: AuthorsBench, message: str
) -> None:
    first = await bench.run(1, prompt="one")
    given = json.dumps({"messages": [OF_ANOTHER[message]]}).replace("{first}", first.turn_id)
    event = await bench.run(2, prompt="two", input_json=given)
    assert (event.state, await heard(bench)) == (STATES.FAILED, ["one"])
    assert event.error == "messages: the messages are made from the prompt; omit them and give a prompt"
    await bench.run(3, prompt="three")
    assert await heard(bench) == ["one", "three"]
