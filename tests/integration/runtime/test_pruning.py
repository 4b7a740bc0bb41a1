"""Pruning keeps all that going on needs: pending questions deep down, results of siblings, memories, changes."""

import itertools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agent_runtime.graph.checkpointer.saver import GroupedSaver, open_saver
from agent_runtime.graph.checkpointer.sqlite import CheckpointFile
from agent_runtime.graph.engine.inputs import OF_FIRE, Window, outgrown
from tests.integration.runtime.harness import STATES, Bench
from tests.support.postgres import Places
from tests.support.saving import at
from tests.support.scripted import calls

RAN: list[str] = []


class Notes(TypedDict):
    notes: Annotated[list[str], operator.add]


def chain(*nodes: tuple[str, Any], state: Any = Notes, **options: Any) -> Any:
    """Compile a graph whose nodes run one after the other."""
    graph = StateGraph(state)
    names = [START, *(name for name, _ in nodes), END]
    for name, node in nodes:
        graph.add_node(name, node)
    for before, after in itertools.pairwise(names):
        graph.add_edge(before, after)
    return graph.compile(**options)


def note(text: str) -> Callable[[Any], Any]:
    def node(_state: Any) -> Any:
        RAN.append(text)
        return {"notes": [text]}

    return node


def ask(_state: Notes) -> Notes:
    return {"notes": [interrupt("may I?")]}


def nested(saver: Any) -> Any:
    inner = chain(("first", note("inner")), ("ask", ask))
    middle = chain(("before", note("middle")), ("inner", inner))
    graph = StateGraph(Notes)
    graph.add_node("early", note("early"))
    graph.add_node("middle", middle)
    graph.add_node("beside", note("beside"))
    graph.add_node("late", note("late"))
    graph.add_edge(START, "early")
    graph.add_edge("early", "middle")
    graph.add_edge("early", "beside")
    graph.add_edge(["middle", "beside"], "late")
    return graph.compile(checkpointer=saver)


async def rows_of(checkpoints: GroupedSaver, table: str = "checkpoints") -> list[str]:
    query = f"SELECT checkpoint_ns FROM {table} ORDER BY checkpoint_ns"
    return [name for (name,) in await checkpoints._file.reader.run(lambda c: c.execute(query).fetchall())]


@pytest.fixture
def place(tmp_path: Path, place_of: Places) -> Path | str:
    RAN.clear()
    return place_of(tmp_path / "checkpoints.db")


async def test_a_question_in_a_nested_subgraph_is_answered_after_pruning_and_a_restart(place: Path | str) -> None:
    checkpoints = await open_saver(place)
    await nested(checkpoints).ainvoke({"notes": []}, at(), durability="sync")
    before = len(await rows_of(checkpoints))
    await checkpoints.aprune(["t"])
    spaces = await rows_of(checkpoints)
    assert len(spaces) == len(set(spaces)) == 3 < before  # one of the graph, one of each graph in it
    await checkpoints.aclose()

    checkpoints = await open_saver(place)
    graph = nested(checkpoints)
    (pending,) = (await graph.aget_state(at())).interrupts
    done = await graph.ainvoke(Command(resume={pending.id: "yes"}), at(), durability="sync")
    assert sorted(RAN) == ["beside", "early", "inner", "late", "middle"]  # nothing ran twice
    await checkpoints.aclose()

    unpruned = nested(InMemorySaver())
    (asked,) = (await unpruned.ainvoke({"notes": []}, at()))["__interrupt__"]
    assert done == await unpruned.ainvoke(Command(resume={asked.id: "yes"}), at())


async def test_at_its_end_a_thread_keeps_one_checkpoint_whatever_ran_in_it(place: Path | str) -> None:
    checkpoints = await open_saver(place)
    graph = nested(checkpoints)
    for _ in range(3):
        await graph.ainvoke({"notes": []}, at())
        (pending,) = (await graph.aget_state(at())).interrupts
        await graph.ainvoke(Command(resume={pending.id: "yes"}), at())
        await checkpoints.aprune_ended("t")
        assert await rows_of(checkpoints) == [""]
        assert await rows_of(checkpoints, "writes") == []
    assert not (await graph.aget_state(at())).next
    await checkpoints.aclose()


async def test_a_subgraph_that_remembers_still_does(place: Path | str) -> None:
    checkpoints = await open_saver(place)
    inner = chain(("count", lambda state: {"notes": [f"seen {len(state['notes'])}"]}), checkpointer=True)

    async def node(_state: Notes) -> Notes:
        return {"notes": (await inner.ainvoke({"notes": ["new"]}))["notes"][-1:]}

    graph = chain(("remember", node), checkpointer=checkpoints)
    for _ in range(3):
        found = await graph.ainvoke({"notes": []}, at())
        await checkpoints.aprune_ended("t")
    assert found["notes"] == ["seen 1", "seen 3", "seen 5"]
    assert len(await rows_of(checkpoints)) == 2
    await checkpoints.aclose()


def joined(state: list[str], written: list[list[str]]) -> list[str]:
    return [*state, *(text for texts in written for text in texts)]


class Changes(TypedDict):
    notes: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=5)]


async def test_a_channel_that_is_kept_as_changes_keeps_them_back_to_its_last_whole_value(place: Path | str) -> None:
    checkpoints = await open_saver(place)
    nodes = [(f"n{number}", note(f"n{number}")) for number in range(2)]
    graph = chain(*nodes, state=Changes, checkpointer=checkpoints)
    for turn in range(8):
        before = (await graph.ainvoke({"notes": [f"turn {turn}"]}, at()))["notes"]
        await checkpoints.aprune_ended("t")
        assert (await graph.aget_state(at())).values["notes"] == before
        assert len(before) == 3 * (turn + 1)
        assert len(await rows_of(checkpoints)) <= 12
    await checkpoints.aclose()


async def test_a_thread_of_another_run_is_left_alone(place: Path | str) -> None:
    checkpoints = await open_saver(place)
    graph = nested(checkpoints)
    await graph.ainvoke({"notes": []}, at("other"))
    before = await rows_of(checkpoints)
    await checkpoints.aprune_ended("t")
    assert await rows_of(checkpoints) == before
    await checkpoints.aclose()


async def test_a_long_thread_grows_by_what_was_said(place: Path | str) -> None:
    sizes: list[int] = []
    checkpoints = await open_saver(place)
    answers = [(name, lambda _state: {"messages": [AIMessage("so much was said " * 10)]}) for name in ("a", "b", "c")]
    graph = chain(*answers, state=MessagesState, checkpointer=checkpoints)
    for turn in range(1, 41):
        await graph.ainvoke({"messages": [HumanMessage("go")]}, at(), durability="sync")
        await checkpoints.aprune_ended("t")
        if turn in {20, 40}:
            sizes.append(await size(checkpoints))
    await checkpoints.aclose()
    assert sizes[1] <= 1.3 * 2 * sizes[0]
    assert sizes[1] / 40 <= 20_000


async def size(checkpoints: GroupedSaver) -> int:
    """Return how many bytes a file has, once the log is written back, or the rows of a database."""

    def of_file(connection: Any) -> int:
        counted, each = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return int(counted * each)

    def of_rows(connection: Any) -> int:  # a database keeps the room of deleted rows until it is cleaned up
        return int(
            connection.execute("SELECT sum(length(checkpoint) + length(metadata)) FROM checkpoints").fetchone()[0]
        )

    in_file = isinstance(checkpoints._file, CheckpointFile)
    return int(await checkpoints._file.reader.run(of_file if in_file else of_rows))


async def test_a_turn_is_given_the_newest_turns_and_the_conversation_keeps_all(bench: Bench) -> None:
    bench.script["go"] = [calls(("note", {"text": "x"}))]
    for number in range(1, 17):
        assert (await bench.run(number)).state == STATES.SUCCEEDED
    engine: Any = bench.runtime.worker._engines.of("")
    messages = (await engine._graph.aget_state(at("thread-a"))).values["messages"]
    assert len(messages) == 12 + 4  # three turns of four messages, and this one
    assert isinstance(messages[0], HumanMessage)
    assert len(await bench.conversation()) == 16


def test_the_newest_turn_stays_whole_however_long_it_is() -> None:
    said = [
        HumanMessage("old", id="0"),
        HumanMessage("new", id="1"),
        *(AIMessage("", id=f"{at}") for at in range(2, 9)),
    ]
    assert [removal.id for removal in outgrown(said, Window(messages=3))] == ["0"]
    assert outgrown(said[2:], Window(messages=3)) == []


def test_a_fire_is_given_three_turns_at_most_and_no_turn_that_is_too_long() -> None:
    short = [HumanMessage("go", id=f"{at}") for at in range(5)]
    assert [removal.id for removal in outgrown(short, OF_FIRE)] == ["0", "1"]
    long = [*short, HumanMessage("go", id="5"), AIMessage("x" * OF_FIRE.chars, id="6")]
    assert len(outgrown(long, OF_FIRE)) == len(long)
    assert outgrown(long[5:]) == [], "an author's message goes on from it"
