"""A graph that keeps memories under `("memories", USER)`, as LangGraph's own template does, runs end to end.

Its model is a stub of OpenAI's protocol; it searches its store before each model call and writes what the model saves.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.runtime.authors_graphs import AuthorsBench
from tests.integration.runtime.harness import STATES
from tests.support.chat_server import ChatServer, Reply, serving
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AgentSettings, CategorySettings, MemorySettings, Settings
from turnkeeper.v1 import agent_runtime_pb2 as wire

GRAPH = """
import asyncio
import os
import uuid
from dataclasses import dataclass, field
from typing import Annotated

from langchain.chat_models import init_chat_model
from langchain_core.messages import AnyMessage
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.runtime import Runtime


@dataclass(kw_only=True)
class Whose:
    user: str = field(default_factory=lambda: os.environ.get("REMEMBERED_USER", "nobody"))


@dataclass(kw_only=True)
class Talk:
    messages: Annotated[list[AnyMessage], add_messages]


async def remember(content: str, why: str) -> str:
    "Save what is worth knowing of the user."


async def answer(state: Talk, runtime: Runtime[Whose]):
    said = str([message.content for message in state.messages[-3:]])
    known = await runtime.store.asearch(("memories", runtime.context.user), query=said, limit=10)
    lines = [f"[{item.key}] {item.value['content']}" for item in known]
    model = init_chat_model(os.environ["REMEMBERING_MODEL"]).bind_tools([remember])
    return {"messages": [await model.ainvoke([("system", "Known: " + "; ".join(lines)), *state.messages])]}


async def save(state: Talk, runtime: Runtime[Whose]):
    async def put(call):
        await runtime.store.aput(("memories", runtime.context.user), str(uuid.uuid4()), call["args"])
        return {"role": "tool", "content": "saved", "tool_call_id": call["id"]}
    return {"messages": await asyncio.gather(*map(put, state.messages[-1].tool_calls))}


builder = StateGraph(Talk, context_schema=Whose)
builder.add_node(answer)
builder.add_node(save)
builder.add_edge(START, "answer")
builder.add_conditional_edges("answer", lambda state: "save" if state.messages[-1].tool_calls else END, ["save", END])
builder.add_edge("save", "answer")
graph = builder.compile()
"""
EMBED = """
async def letters(texts):
    return [[float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
"""
GRANTED = 'tools = ["memory.read", "memory.search", "memory.put"]\nmemory = ["account"]\n'
OWN = GRANTED.replace("account", "graph")
BOB = Reply(calls=[("remember", {"content": "is called Bob", "why": "said so"}),
                   ("remember", {"content": "keeps a dog", "why": "said so"})])  # fmt: skip


class Project(AuthorsBench):
    """A project folder with a `langgraph.json`, its own keys, and a category that grants its store."""

    def lay_out(self, folder: Path, server: ChatServer, store: Any = None, granted: str = GRANTED) -> None:
        folder.mkdir()
        name = f"remembering_{self.home.root.parent.name[3:].replace('-', '_')}"
        (folder / f"{name}.py").write_text(GRAPH)
        (folder / f"{name}_embed.py").write_text(EMBED)
        keys = {"OPENAI_API_KEY": "sk-stub", "OPENAI_BASE_URL": server.url, "REMEMBERING_MODEL": "openai:stub"}
        project = {"graphs": {"agent": f"./{name}.py:graph"}, "dependencies": ["."], "env": keys, "store": store}
        if store:
            store["index"]["embed"] = f"./{name}_embed.py:letters"
        (folder / "langgraph.json").write_text(json.dumps(project))
        (self.home.categories / "work.toml").write_text(f'name = "work"\nautonomous = true\n[scopes]\n{granted}')
        self.settings = Settings(
            agents={"agent0": AgentSettings(graph=f"{folder}/langgraph.json:agent")},
            categories=CategorySettings(autonomous_allowed=("work",)),
            memory=MemorySettings(default_tier="account"),
        )

    async def kept(self) -> dict[str, str]:
        found = await self.service.ListMemory(wire.ListMemoryRequest(tier="account"), None)
        return {json.loads(entry.text)["content"]: entry.key for entry in found.entries}


@pytest.fixture
def server() -> Any:
    with serving() as state:
        yield state


@pytest_asyncio.fixture
async def project(home: Home, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Project]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "REMEMBERING_MODEL", "REMEMBERED_USER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    made = Project(home)
    yield made
    if hasattr(made, "runtime"):
        await made.close()


def told(server: ChatServer) -> list[str]:
    """Return what the model was told to know, call by call."""
    return [request["messages"][0]["content"] for request in server.requests]


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("granted", [GRANTED, OWN], ids=["tier", "own"])
async def test_what_one_fire_saves_a_later_one_on_another_thread_knows(
    project: Project, server: ChatServer, tmp_path: Path, index: bool, granted: str
) -> None:
    project.lay_out(tmp_path / "memories", server, {"index": {"dims": 26}} if index else None, granted)
    await project.open()
    server.script += [BOB, Reply(text="Hello Bob"), Reply(text="You keep a dog")]
    assert (await project.run(1, prompt="I am Bob, I keep a dog")).state == STATES.SUCCEEDED
    kept = await project.kept()
    assert sorted(kept) == ["is called Bob", "keeps a dog"]
    assert {key.rpartition("/")[0] for key in kept.values()} == {"graph:memories.agent/memories/nobody"}
    await project.crash()
    event = await project.run(2, prompt="Who am I?", thread_id="thread-b", task="b")
    assert (event.state, event.summary) == (STATES.SUCCEEDED, "You keep a dog")
    first, second, later = told(server)
    assert first == "Known: "
    assert [content for content in kept if content not in second or content not in later] == []
    assert "memory.embedding_failed" not in "".join(log.read_text() for log in project.home.logs.glob("*.jsonl"))


async def test_without_a_grant_each_use_of_the_store_asks_and_names_the_tier(
    project: Project, server: ChatServer, tmp_path: Path
) -> None:
    project.lay_out(tmp_path / "memories", server, granted="tools = []\n")
    await project.open()
    assert (await project.run(1, prompt="I am Bob")).state == STATES.INTERRUPTED
    (asked,) = await project.pending()
    assert (asked.tool, asked.missing_scope) == ("memory_search", "memory.search")
    assert json.loads(asked.args_json) == {"tier": "account", "query": "['I am Bob']"}
    assert server.requests == []


ELSEWHERE = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

class State(TypedDict, total=False):
    prompt: str
    found: list

async def keep(state, runtime: Runtime):
    store = runtime.store
    await store.aput(("mine",), "one", {"n": 1})
    await store.aput(("mine", "more"), "two", {"n": 2})
    own = [*await store.alist_namespaces(), *[one.key for one in await store.asearch(())]]
    name, *labels = state["prompt"].split()
    found = {"get": lambda: store.aget(labels, "one"), "put": lambda: store.aput(labels, "one", {"n": 3}),
             "search": lambda: store.asearch(labels), "delete": lambda: store.adelete(labels, "one")}
    return {"found": own + [str(await found[name]())]}

graph = StateGraph(State)
graph.add_node("keep", keep)
graph.add_edge(START, "keep")
"""
REACHES = [
    *(f"{act} account mine" for act in ("get", "put", "search", "delete")),
    *("put account graph:other", "search account", "get workspace mine"),
]


@pytest.mark.parametrize("prompt", [*REACHES, "get mine", "search mine", "delete mine"])
async def test_a_grant_of_the_graphs_own_part_reaches_nothing_beside_it(project: Project, prompt: str) -> None:
    bench = project
    bench.bring(ELSEWHERE)
    bench.settings = bench.settings.model_copy(update={"memory": MemorySettings(default_tier="account")})
    scopes = OWN.replace('"memory.put"', '"memory.put", "memory.forget"')
    (bench.home.categories / "work.toml").write_text(f'name = "work"\nautonomous = true\n[scopes]\n{scopes}')
    await bench.open()
    own = f"{bench.file.parent.name}.{bench.file.stem}.graph"
    event = await bench.run(1, prompt=prompt)
    if prompt in REACHES:
        assert event.state == STATES.INTERRUPTED, event.summary
        (asked,) = await bench.pending()
        assert asked.missing_scope == f"memory:{prompt.split()[1]}"
    else:
        assert event.state == STATES.SUCCEEDED, event.error
    kept = (await bench.service.ListMemory(wire.ListMemoryRequest(tier="account"), None)).entries
    assert {one.key.split("/")[0] for one in kept} == {f"graph:{own}"}
