"""A program of the author reads and writes memory by the namespaces of LangGraph's store, as graphs themselves do."""

import json
from typing import Any

import pytest
import pytest_asyncio

from agent_runtime.service.workspace import WorkspaceService, with_reads
from agent_runtime.workspace.memory import Namespaces, value_of
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import call
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError
from turnkeeper.rpc.callers import answer_for, read_via
from turnkeeper.v1 import agent_runtime_pb2 as wire


@with_reads
class Served(WorkspaceService):
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.namespaces = {"default": Namespaces(graph="garden"), "loud": Namespaces(graph="x", tier="channel")}

    async def put(self, namespace: list[str], key: str, value: Any, **given: Any) -> wire.MemoryEntry:
        text = json.dumps(value)
        request = wire.PutMemoryRequest(namespace=namespace, key=key, text=text, form="json", **given)
        return await self.PutMemory(request, None)

    async def listed(self, *namespace: str, **given: Any) -> list[tuple[tuple[str, ...], str]]:
        found = await self.ListMemory(wire.ListMemoryRequest(namespace=namespace, **given), None)
        return sorted((tuple(one.namespace), one.item_key) for one in found.entries)

    async def namespaces_of(self, **given: Any) -> list[tuple[tuple[str, ...], int]]:
        found = await self.ListMemoryNamespaces(wire.ListMemoryNamespacesRequest(**given), None)
        return [(tuple(one.labels), one.entries) for one in found.namespaces]


@pytest_asyncio.fixture
async def served(workspace: Workspace) -> Served:
    made = Served(workspace)
    await made.put(["notes", "ada"], "one", {"colour": "blue"})
    await made.put(["notes", "ben"], "a/b", {"colour": "red"})
    await made.put(["workspace", "plans"], "p", {"n": 1})
    await made.put(["channel", "general", "deep", "er"], "d", ["x"])
    await made.put(["account"], "tone", {"text": "British"})
    return made


async def test_what_is_put_by_namespace_is_what_graphs_tools_and_commands_read(served: Served) -> None:
    found = await served.GetMemory(wire.GetMemoryRequest(namespace=["notes", "ben"], key="a/b"), None)
    assert (json.loads(found.text), found.form, list(found.namespace), found.item_key) == (
        {"colour": "red"}, "json", ["notes", "ben"], "a/b",
    )  # fmt: skip
    by_tier = wire.GetMemoryRequest(tier="workspace", key="graph:garden/notes/ben/a%2Fb")
    assert await served.GetMemory(by_tier, None) == found
    (tone,) = (await served.ListMemory(wire.ListMemoryRequest(tier="account"), None)).entries
    assert (tone.text, tone.form) == ("British", "text"), "as a graph's own would be"
    for entry in [found, tone]:
        assert value_of(entry) in ({"colour": "red"}, {"text": "British"})  # type: ignore[arg-type]


async def test_lists_and_searches_stay_below_a_namespace(served: Served) -> None:
    assert await served.listed("notes") == [(("notes", "ada"), "one"), (("notes", "ben"), "a/b")]
    assert await served.listed("notes", "ada") == [(("notes", "ada"), "one")]
    assert await served.listed("workspace") == [(("workspace", "plans"), "p")], "the graph's own part is none of it"
    assert await served.listed("channel") == [(("channel", "general", "deep", "er"), "d")]
    assert await served.listed("channel", "other") == []
    first = await served.ListMemory(wire.ListMemoryRequest(namespace=["notes"], limit=1), None)
    assert (first.total, len(first.entries)) == (2, 1)
    assert (
        len(
            (
                await served.ListMemory(wire.ListMemoryRequest(namespace=["notes"], cursor=first.next_cursor), None)
            ).entries
        )
        == 1
    )
    found = await served.SearchMemory(wire.SearchMemoryRequest(query="colour", namespace=["notes", "ben"]), None)
    assert [one.item_key for one in found.entries] == ["a/b"]


async def test_namespaces_are_listed_by_prefix_suffix_and_depth(served: Served) -> None:
    assert await served.namespaces_of() == [
        (("account",), 1),
        (("channel", "general", "deep", "er"), 1),
        (("notes", "ada"), 1),
        (("notes", "ben"), 1),
        (("workspace", "plans"), 1),
    ]
    assert await served.namespaces_of(prefix=["notes"]) == [(("notes", "ada"), 1), (("notes", "ben"), 1)]
    assert await served.namespaces_of(prefix=["*", "ben"]) == [(("notes", "ben"), 1)]
    assert await served.namespaces_of(suffix=["er"], max_depth=2) == [(("channel", "general"), 1)]
    assert await served.namespaces_of(max_depth=1) == [
        (("account",), 1),
        (("channel",), 1),
        (("notes",), 2),
        (("workspace",), 1),
    ]
    first = await served.ListMemoryNamespaces(wire.ListMemoryNamespacesRequest(limit=3), None)
    assert (first.total, len(first.namespaces)) == (5, 3)
    rest = await served.namespaces_of(limit=3, cursor=first.next_cursor)
    assert [labels for labels, _ in rest] == [("notes", "ben"), ("workspace", "plans")]


async def test_who_wrote_an_entry_is_kept_until_somebody_else_does(
    served: Served, workspace: Workspace, begin: Any
) -> None:
    answer_for(read_via("script/api/k2"))
    assert (await served.put(["workspace"], "bucket", {"text": "blue"})).via == "script/api/k2"
    turn = begin(named="loop")
    await workspace.memory.put(call(turn), tier="channel", text="of an agent", key="mine")
    entry = await served.GetMemory(wire.GetMemoryRequest(tier="channel", owner="general", key="mine"), None)
    assert (entry.via, entry.written_by) == ("", "agent0")
    gone = await served.ForgetMemory(wire.GetMemoryRequest(namespace=["notes", "ada"], key="one"), None)
    assert gone.item_key == "one"
    with pytest.raises(NotFound):
        await served.GetMemory(wire.GetMemoryRequest(namespace=["notes", "ada"], key="one"), None)


@pytest.mark.parametrize(
    ("method", "request_", "where"),
    [
        ("PutMemory", wire.PutMemoryRequest(namespace=["a", ""], key="k", text="t"), "namespace"),
        ("PutMemory", wire.PutMemoryRequest(namespace=["a"], tier="account", key="k", text="t"), "namespace"),
        ("PutMemory", wire.PutMemoryRequest(namespace=["a"], key="", text="t"), "key"),
        ("PutMemory", wire.PutMemoryRequest(namespace=["a"], key="k", text="{", form="json"), "text"),
        ("PutMemory", wire.PutMemoryRequest(namespace=["a"], key="k", text="t", form="yaml"), "form"),
        ("PutMemory", wire.PutMemoryRequest(namespace=["a"], key="k", text="t", graph="nosuch"), "graph"),
        ("PutMemory", wire.PutMemoryRequest(namespace=["a"], key="k", text="t", graph="loud"), "namespace"),
        ("GetMemory", wire.GetMemoryRequest(namespace=["channel"], key="k"), "tier"),
        ("ListMemoryNamespaces", wire.ListMemoryNamespacesRequest(max_depth=-1), "max_depth"),
        ("ListMemoryNamespaces", wire.ListMemoryNamespacesRequest(cursor="é"), "cursor"),
    ],
)  # fmt: skip
async def test_what_names_no_entry_is_refused_with_the_field(served: Served, method, request_, where) -> None:
    before = await served.listed()
    with pytest.raises(TurnkeeperError) as raised:
        await getattr(served, method)(request_, None)
    assert raised.value.where == where
    assert isinstance(raised.value, InvalidInput)
    assert await served.listed() == before
