"""What the checkpointer promises beyond the interface: groups, crashes, full disks, crafted rows, foreign files."""

import asyncio
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

from agent_runtime.graph.checkpointer.saver import GroupedSaver, open_saver
from agent_runtime.graph.checkpointer.sqlite import SCHEMA
from tests.support.saving import at, checkpoint
from turnkeeper.errors import Corrupt

META: Any = {"source": "loop", "step": 1}
UNSTORABLE = "\ud800"  # has no UTF-8 form: SQLite cannot take it


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.db"


@pytest.fixture
def saver(path: Path) -> Iterator[GroupedSaver]:
    made = GroupedSaver(path)
    yield made
    made.close()


@asynccontextmanager
async def holding(saver: GroupedSaver) -> AsyncIterator[threading.Event]:
    """Keep the writer busy until the event is set, so that what is asked meanwhile makes up one batch."""
    begun, go = threading.Event(), threading.Event()

    def wait(_connection: sqlite3.Connection) -> None:
        begun.set()
        go.wait(60)

    busy = asyncio.create_task(saver._file.writer.run(wait))
    await asyncio.to_thread(begun.wait)
    try:
        yield go
    finally:
        go.set()
        await busy


@pytest.fixture
async def held(saver: GroupedSaver) -> AsyncIterator[threading.Event]:
    async with holding(saver) as go:
        yield go


async def put(saver: GroupedSaver, number: int, **values: Any) -> None:
    await saver.aput(at("t", f"{number - 1:03}" if number else ""), checkpoint(f"{number:03}", **values), META, {})


async def asked(*calls: Any) -> "list[asyncio.Task[Any]]":
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.to_thread(lambda: None)  # each has begun when the loop comes back to this
    return tasks


def committed(saver: GroupedSaver) -> list[str]:
    """Return the statements that end transactions, from now on."""
    ends: list[str] = []
    saver._file._writing.set_trace_callback(
        lambda statement: ends.append(statement) if statement.startswith(("COMMIT", "ROLLBACK")) else None
    )
    return ends


async def test_all_that_waits_shares_one_commit(saver: GroupedSaver, held: threading.Event) -> None:
    ends = committed(saver)
    tasks = await asked(
        *(put(saver, number) for number in range(20)), saver.aput_writes(at("t", "001"), [("x", 1)], "m")
    )
    held.set()
    await asyncio.gather(*tasks)
    assert ends == ["COMMIT", "COMMIT"]  # of what held the writer, and of all the rest
    assert len([each async for each in saver.alist(at())]) == 20


async def test_what_was_put_is_read_by_whoever_asks_next(saver: GroupedSaver) -> None:
    for number in range(30):
        await put(saver, number, x=number)
        found = await saver.aget_tuple(at())
        assert found is not None
        assert found.checkpoint["channel_values"]["x"] == number


async def test_a_write_that_fails_fails_alone(saver: GroupedSaver, held: threading.Event) -> None:
    bad = saver.aput_writes(at("t", "000"), [("x", 1), ("y", 1), (UNSTORABLE, 1)], "another")
    good = saver.aput_writes(at("t", "000"), [("x", 2)], "task")
    tasks = await asked(put(saver, 0), bad, good, put(saver, 1))
    held.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), UnicodeEncodeError, type(None), type(None)]
    found = await saver.aget_tuple(at("t", "000"))
    assert found is not None
    assert found.pending_writes == [("task", "x", 2)]


async def test_a_full_disk_is_told_to_everyone_and_ends_with_it(saver: GroupedSaver, held: threading.Event) -> None:
    def limit(pages: int) -> Any:
        return lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchall()

    tasks = await asked(saver._file.writer.run(limit(1)), *(put(saver, number, x="x" * 100_000) for number in range(3)))
    held.set()
    outcomes = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [sqlite3.OperationalError] * 3
    assert "full" in str(outcomes[0])
    assert await saver.aget_tuple(at()) is None
    await saver._file.writer.run(limit(1_000_000))
    await put(saver, 7)
    assert await saver.aget_tuple(at()) is not None


async def test_a_commit_that_fails_is_told_to_everyone(saver: GroupedSaver) -> None:
    saver._file._writing.execute("PRAGMA foreign_keys=ON")
    saver._file._writing.execute(
        "CREATE TABLE debts (owed INTEGER PRIMARY KEY, by_whom REFERENCES debts DEFERRABLE INITIALLY DEFERRED)"
    )
    async with holding(saver) as go:
        bad = saver._file.writer.run(lambda c: c.execute("INSERT INTO debts VALUES (1, 2)") and None)
        tasks = await asked(put(saver, 0), bad, put(saver, 1))
        go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [sqlite3.IntegrityError] * 3
    assert await saver.aget_tuple(at()) is None
    await put(saver, 7)
    assert await saver.aget_tuple(at()) is not None


async def test_closing_first_does_what_is_queued(path: Path) -> None:
    checkpoints = await open_saver(path)
    tasks = await asked(*(put(checkpoints, number) for number in range(50)))
    await checkpoints.aclose()
    await asyncio.gather(*tasks)
    with pytest.raises(RuntimeError, match="closed"):
        await put(checkpoints, 51)
    again = GroupedSaver(path)
    assert len([each async for each in again.alist(at())]) == 50
    again.close()


KILLED = """
import sys
from pathlib import Path
from agent_runtime.graph.checkpointer.saver import GroupedSaver
from tests.support.saving import at, checkpoint
saver = GroupedSaver(Path(sys.argv[1]))
for number in range(10_000):
    saver.put(at(), checkpoint(f"{number:05}", x="x" * 1000), {"source": "loop", "step": number}, {})
    print(number, flush=True)
"""


@pytest.mark.process
def test_kill_9_loses_nothing_that_was_answered(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(100):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    answered = 100 + len(process.stdout.read().splitlines())
    process.stdout.close()
    process.wait()
    saver = GroupedSaver(path)
    ids = {each.checkpoint["id"] for each in saver.list(at())}
    saver.close()
    assert {f"{number:05}" for number in range(answered)} <= ids


def test_threads_without_a_loop_use_the_methods_without_an_a(saver: GroupedSaver) -> None:
    place = saver.put(at(), checkpoint("1", x=1), META, {})
    saver.put_writes(place, [("x", 2)], "task")
    found = saver.get_tuple(at())
    assert found is not None
    assert found.pending_writes == [("task", "x", 2)]
    saver.copy_thread("t", "u")
    saver.prune(["t"], strategy="delete")
    assert saver.get_tuple(at()) is None
    assert [each.checkpoint["id"] for each in saver.list(None)] == ["1"]
    saver.delete_for_runs(["no such run"])
    saver.delete_thread("u")
    assert list(saver.list(None)) == []


async def test_on_an_event_loop_they_are_refused(saver: GroupedSaver) -> None:
    for call in (
        lambda: saver.get_tuple(at()),
        lambda: list(saver.list(None)),
        lambda: saver.put(at(), checkpoint("1"), META, {}),
        lambda: saver.put_writes(at("t", "1"), [("x", 1)], "task"),
        lambda: saver.delete_thread("t"),
        lambda: saver.get_delta_channel_history(config=at(), channels=["x"]),
    ):
        with pytest.raises(asyncio.InvalidStateError, match="await"):
            call()


def test_what_is_filtered_by_is_never_part_of_the_statement(saver: GroupedSaver) -> None:
    saver.put(at(), checkpoint("1"), {"source": "loop", "step": 1, "run_id": "' OR 1 --"}, {})
    assert len(list(saver.list(None, filter={"run_id": "' OR 1 --"}))) == 1
    assert list(saver.list(None, filter={"run_id": "x' OR '1'='1"})) == []
    for key in ("run_id') OR 1 --", "a b", "", 'a"b', "a\n"):
        with pytest.raises(ValueError, match="filter key"):
            list(saver.list(None, filter={key: 1}))


def test_pruning_has_two_ways(saver: GroupedSaver) -> None:
    with pytest.raises(ValueError, match="keep_latest or delete"):
        saver.prune(["t"], strategy="everything")


class Trap:
    """Sets itself off where it is built."""

    sprung: "list[str]" = []  # noqa: RUF012

    def __init__(self, text: str) -> None:
        self.sprung.append(text)

    def __reduce__(self) -> Any:
        return Trap, ("pickle",)


@pytest.mark.parametrize("column", ["checkpoint", "value"])
def test_a_crafted_row_builds_no_class(saver: GroupedSaver, path: Path, column: str) -> None:
    saver.put(at(), checkpoint("1", x=1), META, {})
    saver.put_writes(at("t", "1"), [("x", 1)], "task")
    call = ormsgpack.packb((Trap.__module__, Trap.__qualname__, "msgpack"))
    crafted = ormsgpack.packb(ormsgpack.Ext(0, call))
    table = {"checkpoint": "checkpoints", "value": "writes"}[column]
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET type = 'msgpack', {column} = ?", (crafted,))
    connection.close()
    Trap.sprung.clear()
    JsonPlusSerializer(allowed_msgpack_modules=True).loads_typed(("msgpack", crafted))
    assert Trap.sprung == ["msgpack"]  # the row is a working trap, for whoever does not look
    Trap.sprung.clear()
    saver.get_tuple(at())
    assert Trap.sprung == []


def test_a_pickled_row_is_refused(saver: GroupedSaver, path: Path) -> None:
    saver.put(at(), checkpoint("1", x=1), META, {})
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE checkpoints SET type = 'pickle', checkpoint = ?", (pickle.dumps(Trap("made")),))
    connection.close()
    Trap.sprung.clear()
    with pytest.raises(NotImplementedError, match="pickle"):
        saver.get_tuple(at())
    assert Trap.sprung == []


def test_tables_of_something_else_are_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE checkpoints (name TEXT)")
    connection.close()
    with pytest.raises(Corrupt, match="lacks"):
        GroupedSaver(path)


def test_a_file_from_before_task_paths_is_brought_up_to_date(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        for statement in SCHEMA:
            connection.execute(statement.replace("task_path TEXT NOT NULL DEFAULT '', ", ""))
    connection.close()
    saver = GroupedSaver(path)
    saver.put_writes(saver.put(at(), checkpoint("1"), META, {}), [("x", 1)], "task", "~1")
    found = saver.get_tuple(at())
    saver.close()
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]


@dataclass(frozen=True)
class Page:
    title: str


@dataclass(frozen=True)
class Unknown:
    title: str


class Shown(TypedDict):
    page: Page
    other: Any


def test_types_that_a_graph_declares_are_read_back_and_no_others(
    saver: GroupedSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph._internal._serde.STRICT_MSGPACK_ENABLED", True)  # as the daemon starts LangGraph
    graph = StateGraph(Shown)
    graph.add_node("show", lambda _state: {"page": Page("declared"), "other": Unknown("not declared")})
    graph.add_edge(START, "show")
    compiled = graph.compile(checkpointer=saver)
    compiled.invoke({"other": None}, at())
    values = compiled.get_state(at()).values
    assert values["page"] == Page("declared")
    assert values["other"] == {"title": "not declared"}
    plain = saver.get_tuple(at())
    assert plain is not None
    assert plain.checkpoint["channel_values"]["page"] == {"title": "declared"}


async def test_what_breaks_in_one_call_fails_alone_and_leaves_no_transaction_open(
    saver: GroupedSaver, held: threading.Event
) -> None:
    class Panic(BaseException):
        pass

    def broken(_connection: sqlite3.Connection) -> None:
        raise Panic

    tasks = await asked(put(saver, 0), saver._file.writer.run(broken), put(saver, 1))
    held.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), RuntimeError, type(None)]
    with pytest.raises(RuntimeError, match="Panic"):
        await saver._file.reader.run(broken)
    assert len([each async for each in saver.alist(at())]) == 2


async def test_a_number_that_json_lacks_does_not_hide_other_threads(saver: GroupedSaver, path: Path) -> None:
    odd: Any = {**META, "run_id": "mine", "score": float("nan"), "deep": [{"most": float("-inf"), "text": "NaN"}]}
    await saver.aput(at("odd"), checkpoint("001"), odd, {})
    (found,) = [each async for each in saver.alist(None, filter={"source": "loop"})]
    assert found.metadata == {**META, "run_id": "mine", "score": None, "deep": [{"most": None, "text": "NaN"}]}
    await put(saver, 1)
    with sqlite3.connect(path) as another:  # a file that another program wrote may hold one
        another.execute(
            """UPDATE checkpoints SET metadata = '{"source": "loop", "score": NaN}' WHERE thread_id = 't'"""
        )
    assert [each.config async for each in saver.alist(None, filter={"source": "loop"})] == [found.config]
    await saver.adelete_for_runs(["mine"])
    assert await saver.aget_tuple(at("odd")) is None
    assert await saver.aget_tuple(at()) is not None
