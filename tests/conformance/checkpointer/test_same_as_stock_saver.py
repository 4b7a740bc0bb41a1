"""Whatever sequence of calls: ours answers as LangGraph's own SQLite saver does, and each reads the other's file."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from tests.support.postgres import Places
from tests.support.saving import at, checkpoint

Saver = BaseCheckpointSaver[Any]
Call = Callable[[Saver], Any]

threads = st.sampled_from(["a", "a", "a", "b"])  # mostly one, so that calls meet
spaces = st.sampled_from(["", "", "", "child:1"])
numbers = st.integers(0, 2).map(lambda number: f"id-{number}")
values = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.lists(st.integers(0, 2), max_size=2)
channels = st.sampled_from(["x", "y", "__error__", "__interrupt__", "__resume__"])


@st.composite
def puts(draw: st.DrawFn) -> Call:
    parent = at(draw(threads), draw(st.just("") | numbers), draw(spaces))
    metadata: Any = {"source": "loop", "step": draw(st.integers(-1, 2)), "run_id": draw(st.sampled_from("rs"))}
    made = checkpoint(draw(numbers), x=draw(values), y=draw(values))
    return lambda saver: saver.put(parent, made, metadata, {})


@st.composite
def put_writes(draw: st.DrawFn) -> Call:
    place = at(draw(threads), draw(numbers), draw(spaces))
    written = draw(st.lists(st.tuples(channels, values), min_size=1, max_size=3))
    task, path = draw(st.sampled_from("mn")), draw(st.sampled_from(["", "~2", "~1"]))
    return lambda saver: saver.put_writes(place, written, task, path)


@st.composite
def gets(draw: st.DrawFn) -> Call:
    place = at(draw(threads), draw(st.just("") | numbers), draw(spaces))
    return lambda saver: flat(saver.get_tuple(place))


@st.composite
def lists(draw: st.DrawFn) -> Call:
    # Within one namespace: the order of equal ids is nobody's promise.
    place = at(draw(threads), "", draw(spaces))
    wanted = draw(
        st.none() | st.fixed_dictionaries({}, optional={"step": st.integers(-1, 2) | st.none(), "run_id": st.just("r")})
    )
    before = draw(st.none() | numbers.map(lambda number: at("any", number)))
    limit = draw(st.none() | st.integers(0, 3))
    return lambda saver: [flat(each) for each in saver.list(place, filter=wanted, before=before, limit=limit)]


@st.composite
def histories(draw: st.DrawFn) -> Call:
    place = at(draw(threads), draw(st.just("") | numbers), draw(spaces))
    return lambda saver: saver.get_delta_channel_history(config=place, channels=["x", "y", "z"])


deletes = threads.map(lambda thread: lambda saver: saver.delete_thread(thread))
asked = gets() | lists() | histories()
calls = st.lists(puts() | puts() | put_writes() | put_writes() | asked | (asked | deletes), min_size=15, max_size=30)


def flat(found: CheckpointTuple | None) -> Any:
    return None if found is None else tuple(found)


@pytest.fixture
def pair(tmp_path: Path, place_of: Places) -> Iterator[tuple[Saver, Saver]]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    ours = GroupedSaver(place_of(tmp_path / "checkpoints.db"))
    yield ours, SqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    ours.close()
    connection.close()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=calls)
def test_ours_and_the_stock_saver_give_equal_answers(pair: tuple[Saver, Saver], calls: list[Call]) -> None:
    for saver in pair:
        for thread in ("a", "b"):
            saver.delete_thread(thread)
    for call in calls:
        ours, stock = (call(saver) for saver in pair)
        assert ours == stock
    for place in (at(thread, "", space) for thread in ("a", "b") for space in ("", "child:1")):
        ours, stock = ([flat(each) for each in saver.list(place)] for saver in pair)
        assert ours == stock


def test_a_file_of_the_stock_saver_is_opened_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    connection = sqlite3.connect(path, check_same_thread=False)
    stock = SqliteSaver(connection)
    stock.put(at(), checkpoint("1", x="theirs"), {"source": "loop", "step": 1}, {})
    stock.put_writes(at("t", "1"), [("x", "pending")], "task")
    connection.close()
    ours = GroupedSaver(path)
    found = ours.get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": "theirs"}
    assert found.pending_writes == [("task", "x", "pending")]
    assert ours.get_next_version(stock.get_next_version(None, None), None).startswith(f"{2:032}.")
    ours.close()


def test_the_stock_saver_opens_a_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    ours = GroupedSaver(path)
    ours.put(at(), checkpoint("1", x="ours"), {"source": "loop", "step": 1}, {})
    ours.close()
    connection = sqlite3.connect(path, check_same_thread=False)
    found = SqliteSaver(connection).get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": "ours"}
    connection.close()
