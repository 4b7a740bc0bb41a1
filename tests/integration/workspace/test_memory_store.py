"""Memory as LangGraph's store: it answers as LangGraph's own does, and reaches what the turn's category reaches."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import environ
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from agent_runtime.graph.context import turn_around
from agent_runtime.graph.foreign.memory_store import MemoryStore
from agent_runtime.graph.guard import Gate, watching
from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import judge
from agent_runtime.workspace import memory as entries
from agent_runtime.workspace.memory import Namespaces, Shelf
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Begin, Told, call
from tests.support.clock import ManualClock
from turnkeeper.errors import Denied, Exhausted, InvalidInput

LABELS = ("a", "b", "c/d", "e%2F")
WORKSPACE = ("workspace",)


@pytest.fixture
def store(workspace: Workspace) -> MemoryStore:
    return MemoryStore(workspace, Gate({}, judge))


@pytest.fixture
def turn(begin: Begin) -> Iterator[TurnContext]:
    with turn_around(begin(named="conversation", thread_id="one")) as context:
        yield context


namespaces = st.one_of(
    st.lists(st.sampled_from(LABELS), max_size=2).map(lambda below: (*WORKSPACE, *below)),
    st.lists(st.sampled_from(LABELS), min_size=1, max_size=3).map(tuple),
)
keys = st.sampled_from(("k", "l", "m/n", "50%"))
values = st.one_of(
    st.sampled_from(("blue", "green")).map(lambda text: {"text": text}),
    st.fixed_dictionaries({"kind": st.sampled_from(("bed", "pump")), "size": st.integers(0, 5)}),
)
filters = st.one_of(
    st.none(),
    st.sampled_from(
        ({"kind": "bed"}, {"kind": {"$ne": "bed"}}, {"text": "blue"}, {"kind": {"$eq": "pump"}, "size": 3})
    ),
)
conditions = st.lists(
    st.builds(
        MatchCondition,
        match_type=st.sampled_from(("prefix", "suffix")),
        path=st.sampled_from((("workspace",), ("a",), ("workspace", "*"), ("*", "b"), ("b", "c/d"))),
    ),
    max_size=2,
).map(tuple)
depths = st.sampled_from((None, 1, 2))
operations = st.one_of(
    st.tuples(namespaces, keys, st.one_of(values, st.none())).map(lambda given: PutOp(*given)),
    st.tuples(namespaces, keys, values).map(lambda given: PutOp(*given)),
    st.tuples(namespaces, keys).map(lambda given: GetOp(*given)),
    st.tuples(st.one_of(st.just(()), namespaces), filters).map(lambda given: SearchOp(*given, limit=1000)),
    st.tuples(conditions, depths, st.integers(1, 9), st.integers(0, 3)).map(lambda given: ListNamespacesOp(*given)),
)


class Reference(InMemoryStore):
    """LangGraph's own, without the namespaces that it keeps when nothing is left in them."""

    def _handle_list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        for namespace in [namespace for namespace, items in self._data.items() if not items]:
            del self._data[namespace]
        return super()._handle_list_namespaces(op)


@given(batches=st.lists(st.lists(operations, max_size=6), max_size=5))
@settings(
    max_examples=int(environ.get("STORE_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_operation_answers_as_langgraphs_own_store_does(
    store: MemoryStore, turn: TurnContext, batches: list[list[Op]]
) -> None:
    for item in store.search((), limit=1000):
        store.delete(item.namespace, item.key)
    reference = Reference()
    for ops in batches:
        assert [told(one) for one in store.batch(ops)] == [told(one) for one in reference.batch(ops)], ops


def told(result: Any) -> Any:
    """Return what a result says but for times, found items in an order of their own."""
    if isinstance(result, list):
        return sorted((told(one) for one in result), key=str)
    return (result.namespace, result.key, result.value) if hasattr(result, "namespace") else result


def test_values_that_are_no_objects_are_kept_as_langgraphs_own_store_keeps_them(
    store: MemoryStore, turn: TurnContext
) -> None:
    for at, value in enumerate(("blue", 7, ["a", "b"], {}, False)):
        given: Any = value  # graphs write these too, although the types forbid it
        store.put(WORKSPACE, f"k{at}", given)
        assert store.get(WORKSPACE, f"k{at}").value == value  # type: ignore[union-attr]
    assert len(store.search(WORKSPACE)) == 5
    assert store.search(WORKSPACE, filter={"kind": "bed"}) == [], "only an object has fields"


async def test_the_loop_is_not_needed_and_not_blocked(store: MemoryStore, turn: TurnContext) -> None:
    await store.aput((*WORKSPACE, "beds"), "first", {"crop": "carrots", "rows": 4})
    item = await store.aget((*WORKSPACE, "beds"), "first")
    assert item is not None
    assert (item.value, item.key, item.namespace) == ({"crop": "carrots", "rows": 4}, "first", ("workspace", "beds"))
    assert item == store.get((*WORKSPACE, "beds"), "first")
    assert await store.alist_namespaces(prefix=("workspace",)) == [("workspace", "beds")]
    assert [found.key for found in await store.asearch(WORKSPACE, filter={"rows": {"$gte": 4}})] == ["first"]
    await store.adelete((*WORKSPACE, "beds"), "first")
    assert await store.aget((*WORKSPACE, "beds"), "first") is None


async def test_a_search_finds_words_the_best_match_first(store: MemoryStore, turn: TurnContext) -> None:
    for key, text in (("1", "the pump"), ("2", "the pump of the garden"), ("3", "nothing of it")):
        store.put(WORKSPACE, key, {"text": text})
    found = store.search(WORKSPACE, query="garden pump")
    assert [item.key for item in found] == ["2", "1"]
    assert found[0].score > found[1].score  # type: ignore[operator]
    assert [item.key for item in store.search(WORKSPACE, query="garden pump", limit=1, offset=1)] == ["1"]


async def test_graphs_tools_and_authors_see_the_same_entries(
    store: MemoryStore, workspace: Workspace, turn: TurnContext, clock: ManualClock, told: Told
) -> None:
    await workspace.memory.put(call(turn), tier="channel", text="blue", key="bucket", channel="")
    clock.advance(1)
    assert store.get(("channel",), "bucket").value == {"text": "blue"}  # type: ignore[union-attr]
    store.put(("channel", "general", "tools"), "ladder", {"colour": "red"})
    (ladder, bucket) = (await workspace.memory.read(call(turn), "channel", "")).entries
    assert (ladder.key, json.loads(ladder.text), bucket.key) == ("tools/ladder", {"colour": "red"}, "bucket")
    assert (ladder.written_by, ladder.turn_id, ladder.origin) == ("agent0", turn.turn_id, "agent-produced")
    shelf = Shelf(tier="channel", owner="general")
    await workspace.memory.author_puts(shelf, key="tools/ladder", text="mine now")
    assert store.get(("channel", "general", "tools"), "ladder").value == {"text": "mine now"}  # type: ignore[union-attr]
    with pytest.raises(Denied, match="author wrote"):
        store.put(("channel", "general", "tools"), "ladder", {"colour": "green"})
    with pytest.raises(Denied, match="author wrote"):
        store.delete(("channel", "general", "tools"), "ladder")
    assert [fields["scope"] for event, fields in told if event == "agent.wrote"] == ["memory.put", "memory.put"]


async def test_a_batch_with_one_write_that_fails_writes_nothing(
    store: MemoryStore, turn: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_ENTRIES", 1)
    with pytest.raises(Exhausted):
        store.batch([PutOp(WORKSPACE, "a", {"text": "x"}), PutOp(WORKSPACE, "b", {"text": "x"})])
    assert store.search(WORKSPACE) == []


async def test_a_search_stays_within_what_the_turn_reaches(store: MemoryStore, begin: Begin, turn: TurnContext) -> None:
    for namespace in (("conversation",), ("channel",), ("workspace",), ("account",)):
        store.put(namespace, "here", {"text": "x"})
    wide = replace(turn.category, channels=frozenset({"other"}))
    with turn_around(begin("b", category=wide, thread_id="two", channel="other")):
        assert sorted(item.namespace for item in store.search(())) == [("account",), ("workspace",)]
        assert store.list_namespaces() == [("account",), ("workspace",)]
        store.put(("channel",), "there", {"text": "y"})
    with turn_around(replace(turn, category=wide)):
        assert sorted(item.namespace for item in store.search(("channel",))) == [
            ("channel", "general"),
            ("channel", "other"),
        ]
    assert [item.namespace for item in store.search(("channel",))] == [("channel", "general")]
    narrow = replace(turn.category, memory=frozenset({"account"}))
    with turn_around(replace(turn, category=narrow)):
        assert [item.namespace for item in store.search(())] == [("account",)]


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [
        (("users", "1"), "k" * 200, {"text": "x"}),
        (("users", ""), "k", {"text": "x"}),
        ((), "k", {"text": "x"}),
        (("workspace",), "", {"text": "x"}),
        (("workspace",), " k", {"text": "x"}),
        (("workspace",), "k" * 201, {"text": "x"}),
        (("workspace",), "k", {"text": "x" * 5000}),
        (("workspace",), "k", {"at": object()}),
        (("workspace",), "k", {"size": float("nan")}),
        (("workspace",), "k", {"text": "\x00"}),
    ],
)
async def test_what_memory_does_not_take_is_refused_with_a_reason(
    store: MemoryStore, turn: TurnContext, namespace: tuple[str, ...], key: str, value: dict[str, Any]
) -> None:
    with pytest.raises((InvalidInput, InvalidNamespaceError)):
        store.put(namespace, key, value)
    assert store.search(()) == []


async def test_a_turn_that_is_over_writes_no_more(
    store: MemoryStore, turn: TurnContext, end: Callable[[str], None]
) -> None:
    store.put(WORKSPACE, "before", {"text": "x"})
    end(turn.turn_id)
    for attempt in (lambda: store.put(WORKSPACE, "after", {"text": "x"}), lambda: store.delete(WORKSPACE, "before")):
        with pytest.raises(Denied, match="can no longer write"):
            attempt()
    assert [item.key for item in store.search(WORKSPACE)] == ["before"]


NOTES = ("notes", "ada")


def of_graph(workspace: Workspace, graph: str, **names: Any) -> MemoryStore:
    return MemoryStore(workspace, Gate({}, judge), Namespaces(graph=graph, **names))


@pytest.mark.parametrize("tier", ["conversation", "channel", "workspace", "account"])
async def test_a_namespace_without_a_tier_is_in_the_default_tier_apart_by_graph(
    workspace: Workspace, turn: TurnContext, tier: str
) -> None:
    here, there = of_graph(workspace, "a.agent", tier=tier), of_graph(workspace, "b.agent", tier=tier)
    here.put(NOTES, "k", {"text": "of a"})
    there.put(NOTES, "k", {"text": "of b"})
    here.put(("workspace", "shared"), "k", {"text": "of both"})
    assert [here.get(NOTES, "k").value, there.get(NOTES, "k").value] == [{"text": "of a"}, {"text": "of b"}]  # type: ignore[union-attr]
    for store, said in ((here, "of a"), (there, "of b")):
        for prefix in (("notes",), NOTES):
            assert [(item.namespace, item.value["text"]) for item in store.search(prefix)] == [(NOTES, said)]
        assert {item.value["text"] for item in store.search(())} == {said, "of both"}
        assert {item.value["text"] for item in store.search(("workspace",))} == {"of both"}
        assert store.list_namespaces() == [NOTES, ("workspace", "shared")]
        assert store.list_namespaces(suffix=("ada",), max_depth=1) == [("notes",)]
    held = (await workspace.memory.read(call(turn), tier)).entries
    assert {entry.key for entry in held} >= {"graph:a.agent/notes/ada/k", "graph:b.agent/notes/ada/k"}
    here.delete(NOTES, "k")
    assert (here.search(NOTES), [item.value for item in there.search(NOTES)]) == ([], [{"text": "of b"}])


def test_a_turn_reaches_the_default_tier_only_within_its_category(workspace: Workspace, turn: TurnContext) -> None:
    store = of_graph(workspace, "a.agent", tier="account")
    store.put(NOTES, "k", {"text": "x"})
    narrow = replace(turn, category=replace(turn.category, memory=frozenset({"workspace"})))
    with turn_around(narrow):
        assert (store.search(()), store.list_namespaces()) == ([], [])
        for attempt in (
            lambda: store.get(NOTES, "k"),
            lambda: store.search(("notes",)),
            lambda: store.delete(NOTES, "k"),
        ):
            with pytest.raises(RuntimeError, match="get_config outside"):  # the guard asks, and no graph runs here
                attempt()


def test_a_graphs_own_part_and_the_rest_of_its_tier_take_no_room_from_each_other(
    workspace: Workspace, turn: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_ENTRIES", 1)
    monkeypatch.setattr(entries, "MOST_BYTES", 40)
    here, there = of_graph(workspace, "a.agent"), of_graph(workspace, "a.agent2")
    here.put(("notes",), "one", {"text": "x"})
    there.put(("notes",), "one", {"text": "x"})
    here.put(WORKSPACE, "one", {"text": "x"})
    for store, namespace, whose in ((here, ("notes",), " of graph:a.agent"), (here, WORKSPACE, "")):
        with pytest.raises(Exhausted, match=f"the workspace memory{whose} contains 1 entries"):
            store.put(namespace, "two", {"text": "x"})
        with pytest.raises(Exhausted, match=f"the workspace memory{whose} contains 1 bytes"):
            store.put(namespace, "one", {"text": "x" * 41})


def test_a_search_in_a_graphs_own_part_ends_with_what_does_not_fit_if_the_turn_may_read_it(
    store: MemoryStore, turn: TurnContext
) -> None:
    for namespace in (NOTES, ("workspace", "notes")):
        for key, text in (("1", "the pump"), ("2", "carrots")):
            store.put(namespace, key, {"text": text})
    found = store.search(NOTES, query="which pump")
    assert [(item.key, item.score is None) for item in found] == [("1", False), ("2", True)]
    assert [item.key for item in store.search(NOTES, query="which pump", limit=1)] == ["1"]
    assert [item.key for item in store.search(("workspace", "notes"), query="which pump")] == ["1"]
    narrow = replace(turn.category, tools=frozenset({"memory.search"}))
    with turn_around(replace(turn, category=narrow)):
        assert [item.key for item in store.search(NOTES, query="which pump")] == ["1"]


def letters(texts: Sequence[str]) -> list[list[float]]:
    """Embed a text by how often it has each letter."""
    return [[float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


@pytest.mark.parametrize("fields", [None, ["crop"], ["beds[*].crop"]])
async def test_with_embeddings_a_search_answers_as_langgraphs_own_store_does(
    workspace: Workspace, turn: TurnContext, fields: list[str] | None
) -> None:
    index: Any = {"dims": 26, "embed": letters} | ({"fields": fields} if fields else {})
    own, store = InMemoryStore(index=index), MemoryStore(workspace, Gate({}, judge), index=index)
    for number, crop in enumerate(("carrots", "beans", "tomatoes", "radish")):
        for one in (own, store):
            one.put(NOTES, str(number), {"crop": crop, "row": number, "beds": [{"crop": crop}]})

    def told(found: Any) -> Any:
        return [(item.namespace, item.key, item.value, round(item.score, 6)) for item in found]

    async def agree(namespace: tuple[str, ...], **wanted: Any) -> Any:
        expected = told(own.search(namespace, **wanted))
        assert told(store.search(namespace, **wanted)) == told(await store.asearch(namespace, **wanted)) == expected
        return [key for _, key, *_ in expected]

    assert (await agree(NOTES, query="radishes"))[0] == "3"
    assert await agree(("notes",), query="bean", limit=2, offset=1)
    assert await agree(NOTES, query="tomato", filter={"row": {"$lt": 2}})
    for one in (own, store):
        one.put(NOTES, "3", {"crop": "onions", "row": 3, "beds": [{"crop": "onions"}, {"crop": "leek"}]})
        one.delete(NOTES, "0")
    assert (await agree(NOTES, query="onion"))[0] == "3"
    assert store.search(("others",), query="onion") == []


def test_an_entry_that_was_changed_is_found_by_what_it_says_now_alone(workspace: Workspace, turn: TurnContext) -> None:
    index: Any = {"dims": 26, "embed": letters, "fields": ["beds[*]"]}
    changed, fresh = (MemoryStore(workspace, Gate({}, judge), index=index) for _ in range(2))
    changed.put(NOTES, "k", {"beds": ["carrots", "leek"]})
    assert changed.search(NOTES, query="leek")[0].score == pytest.approx(1)
    changed.put(NOTES, "k", {"beds": ["carrots"]})
    (now,), (expected,) = (store.search(NOTES, query="leek") for store in (changed, fresh))
    assert (now.value, now.score) == (expected.value, expected.score)


async def test_only_a_graphs_own_part_is_given_to_its_embeddings(workspace: Workspace, turn: TurnContext) -> None:
    given: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        given.extend(texts)
        return letters(texts)

    store = MemoryStore(workspace, Gate({}, judge), index={"dims": 26, "embed": embed})
    store.put(WORKSPACE, "k", {"text": "private"})
    store.put(NOTES, "k", {"text": "mine"})
    assert len(store.search((), query="private")) == 1
    assert [item.key for item in store.search(WORKSPACE, query="private")] == ["k"]
    store.search(NOTES, query="private")
    store.search(NOTES, query="other")
    assert given == ['{"text": "mine"}', "private", "other"], "an entry is embedded once"


async def test_a_search_goes_by_words_while_no_embeddings_can_be_made_and_says_so(
    workspace: Workspace, turn: TurnContext, told: Told
) -> None:
    def embed(_texts: Sequence[str]) -> list[list[float]]:
        raise ConnectionError("sk-secret is refused")

    store = MemoryStore(workspace, Gate({}, judge), index={"dims": 26, "embed": embed})
    for key, text in (("1", "the pump"), ("2", "carrots")):
        store.put(NOTES, key, {"text": text})
    told.clear()
    for found in (store.search(NOTES, query="pump"), await store.asearch(NOTES, query="pump")):
        assert [item.key for item in found] == ["1", "2"]
    assert told == [("memory.embedding_failed", {"error": "ConnectionError", "entries": 2})] * 2


def test_a_write_counts_as_a_tool_call_and_a_reading_does_not(store: MemoryStore, turn: TurnContext) -> None:
    gate = Gate({}, judge)
    with watching(gate), turn_around(replace(turn, category=replace(turn.category, tool_calls=2))):
        for number in range(2):
            store.put(NOTES, str(number), {"text": "x"})
        for _ in range(5):
            assert len(store.search(NOTES)) == 2
        for attempt in (lambda: store.put(NOTES, "3", {"text": "x"}), lambda: store.delete(NOTES, "1")):
            with pytest.raises(Denied, match="the category's limit of 2 tool calls a turn is used up"):
                attempt()
        assert len(store.search(NOTES)) == 2


async def test_outside_a_turn_there_is_no_memory(store: MemoryStore) -> None:
    for attempt in (lambda: store.put(WORKSPACE, "k", {"text": "x"}), lambda: store.search(())):
        with pytest.raises(Denied, match="only inside a turn"):
            attempt()
