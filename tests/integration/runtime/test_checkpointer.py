"""What the checkpointer promises beyond the interface: groups, crashes, full disks, crafted rows, foreign files."""

import asyncio
import base64
import hashlib
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph

from agent_runtime.graph.checkpointer import saver as savers
from agent_runtime.graph.checkpointer.saver import GroupedSaver, open_saver
from agent_runtime.graph.checkpointer.sqlite import SCHEMA, CheckpointFile
from agent_runtime.graph.engine import patches
from tests.support.awkward import NAMES, TEXTS
from tests.support.postgres import Places
from tests.support.saving import another, at, checkpoint
from turnkeeper.errors import Corrupt, MachineTrouble, Unreachable

META: Any = {"source": "loop", "step": 1}
UNSTORABLE = "\ud800"  # has no UTF-8 form: no database can take it


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.db"


@pytest.fixture
def place(path: Path, place_of: Places) -> Path | str:
    return place_of(path)


@pytest.fixture
def saver(place: Path | str) -> Iterator[GroupedSaver]:
    made = GroupedSaver(place)
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


class Recorded:
    """A connection, and the statements that ended its transactions."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.ends: list[str] = []

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(("COMMIT", "ROLLBACK")):
            self.ends.append(statement)
        return self._connection.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def committed(saver: GroupedSaver) -> list[str]:
    """Return the statements that end transactions, from now on."""
    recorded = saver._file._writing = Recorded(saver._file._writing)
    return recorded.ends


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


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_task_of_a_workflow_begins_once_what_those_before_it_returned_is_on_disk(
    saver: GroupedSaver, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    assert patches.AsyncPregelLoop.aaccept_push is patches._accept_push  # which importing the engine has put there
    monkeypatch.setattr(savers, "HELD_S", 3600.0)
    on_disk, begun = [], threading.Barrier(2 if blocking else 1)

    def note(name: str) -> str:
        found = saver._file.reader.run_blocking(lambda c: c.execute("SELECT count(*) FROM writes").fetchone())
        on_disk.append((name, found[0]))
        if name in {"three", "four"}:
            begun.wait(20)  # neither returns before the other has begun, and looked
        return name

    async def noting(name: str) -> str:
        return note(name)

    step: Any = task(note if blocking else noting)

    def work(_: str) -> list[str]:
        return [step("one").result(), step("two").result(), *(one.result() for one in [step("three"), step("four")])]

    async def working(_: str) -> list[str]:
        return [await step("one"), await step("two"), *await asyncio.gather(step("three"), step("four"))]

    graph: Any = entrypoint(checkpointer=saver)(work if blocking else working)
    assert await graph.ainvoke("go", at(), durability="sync") == ["one", "two", "three", "four"]
    assert on_disk[:2] == [("one", 0), ("two", 1)]
    assert sorted(on_disk[2:]) == [("four", 2), ("three", 2)]  # which begin at once, in either order


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


@pytest.mark.sqlite_only("a file is given a limit of pages")
async def test_a_full_disk_is_told_to_everyone_and_ends_with_it(saver: GroupedSaver, held: threading.Event) -> None:
    def limit(pages: int) -> Any:
        return lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchall()

    tasks = await asked(saver._file.writer.run(limit(1)), *(put(saver, number, x="x" * 100_000) for number in range(3)))
    held.set()
    outcomes = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MachineTrouble] * 3
    assert "full" in str(outcomes[0])
    assert await saver.aget_tuple(at()) is None
    await saver._file.writer.run(limit(1_000_000))
    await put(saver, 7)
    assert await saver.aget_tuple(at()) is not None


async def test_a_commit_that_fails_is_told_to_everyone(saver: GroupedSaver) -> None:
    if isinstance(saver._file, CheckpointFile):
        saver._file._writing.execute("PRAGMA foreign_keys=ON")
    saver._file._writing.execute(
        "CREATE TABLE debts (owed INTEGER PRIMARY KEY, by_whom INTEGER REFERENCES debts DEFERRABLE INITIALLY DEFERRED)"
    )
    async with holding(saver) as go:
        bad = saver._file.writer.run(lambda c: c.execute("INSERT INTO debts VALUES (1, 2)") and None)
        tasks = await asked(put(saver, 0), bad, put(saver, 1))
        go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert "IntegrityError" in {each.__name__ for each in type(outcome).__mro__}, outcome
    assert await saver.aget_tuple(at()) is None
    await put(saver, 7)
    assert await saver.aget_tuple(at()) is not None


async def test_closing_first_does_what_is_queued(place: Path | str) -> None:
    checkpoints = await open_saver(place)
    tasks = await asked(*(put(checkpoints, number) for number in range(50)))
    await checkpoints.aclose()
    await asyncio.gather(*tasks)
    with pytest.raises(RuntimeError, match="closed"):
        await put(checkpoints, 51)
    again = GroupedSaver(place)
    assert len([each async for each in again.alist(at())]) == 50
    again.close()


KILLED = """
import sys
from pathlib import Path
from agent_runtime.graph.checkpointer.saver import GroupedSaver
from tests.support.saving import at, checkpoint
saver = GroupedSaver(sys.argv[1] if "://" in sys.argv[1] else Path(sys.argv[1]))
for number in range(10_000):
    saver.put(at(), checkpoint(f"{number:05}", x="x" * 1000), {"source": "loop", "step": number}, {})
    print(number, flush=True)
"""


@pytest.mark.process
def test_kill_9_loses_nothing_that_was_answered(place: Path | str) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(100):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    answered = 100 + len(process.stdout.read().splitlines())
    process.stdout.close()
    process.wait()
    saver = GroupedSaver(place)
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


@pytest.mark.parametrize("text", list(TEXTS.values())[:-1], ids=list(TEXTS)[:-1])
def test_whatever_a_state_says_is_read_back(saver: GroupedSaver, text: str) -> None:
    place = saver.put(at(), checkpoint("1", said=text, raw=text.encode()), META, {})
    saver.put_writes(place, [("said", text)], "task")
    found = saver.get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"said": text, "raw": text.encode()}
    assert found.pending_writes == [("task", "said", text)]


def test_half_a_character_is_replaced_before_any_database_sees_it(saver: GroupedSaver) -> None:
    saver.put(at(), checkpoint("1", said="half \ud800"), META, {})
    found = saver.get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"said": "half ?"}


def test_names_are_kept_as_they_are_and_listed_by_their_bytes(saver: GroupedSaver) -> None:
    for name in NAMES:
        place = saver.put(at(name, "", name), checkpoint("1"), META, {})
        saver.put_writes(place, [(name, 1)], name, name)
    found = list(saver.list(None))
    assert [each.config["configurable"]["thread_id"] for each in found] == sorted(NAMES, key=str.encode)
    for each in found:
        name = each.config["configurable"]["thread_id"]
        assert each.config["configurable"]["checkpoint_ns"] == name
        assert each.pending_writes == [(name, name, 1)]
    newest = [each.config for each in saver.list(None, limit=2)]
    assert newest == [each.config for each in found[:2]]
    assert [each.config for each in saver.list(None, filter={"step": 1}, limit=2)] == newest


def test_a_name_that_no_database_takes_is_refused_by_each(saver: GroupedSaver) -> None:
    place = saver.put(at(), checkpoint("1"), META, {})
    refused: list[Callable[[], Any]] = [
        lambda: saver.get_tuple(at("a\0")),
        lambda: list(saver.list(at("a\0"))),
        lambda: list(saver.list(at(), before=at("t", "\0"))),
        lambda: saver.put(at("t", "", "a\0"), checkpoint("1"), META, {}),
        lambda: saver.put(at(), checkpoint("1\0"), META, {}),
        lambda: saver.put_writes(place, [("x\0", 1)], "task"),
        lambda: saver.put_writes(place, [("x", 1)], "task\0"),
        lambda: saver.delete_thread("t\0"),
        lambda: saver.copy_thread("t", "u\0"),
    ]
    for call in refused:
        with pytest.raises(ValueError, match="NUL"):
            call()
    for call in (
        lambda: saver.put(at("t" * 1_000, "", "é" * 1_000), checkpoint("1"), META, {}),
        lambda: saver.put_writes(place, [("x", 1)], "task" * 1_000),
        lambda: saver.copy_thread("t", "u" * 3_000),
    ):
        with pytest.raises(ValueError, match="exceed 2,500 bytes"):
            call()
    assert [each.config for each in saver.list(None)] == [place]
    longest = at(*random_words(2_400))
    assert saver.put(longest, checkpoint("1"), META, {}) is not None  # what a database compresses is no measure
    saver.put_writes(at("t", "1"), [("x" * 100_000, 1)], "task", "p" * 100_000)  # in no key


def random_words(length: int) -> tuple[str, str, str]:
    """Return a thread, no id and a namespace that take so many bytes and cannot be compressed."""
    words = base64.b85encode(hashlib.shake_256(b"names").digest(length)).decode()
    return words[:200], "", words[200:length]


def test_rows_with_one_key_in_one_call_are_one_row(saver: GroupedSaver) -> None:
    place = saver.put(at(), checkpoint("1"), META, {})
    saver.put_writes(place, [("__error__", "first"), ("__error__", "last")], "task")
    saver.put_writes(place, [("x", "first"), ("__resume__", 1), ("__resume__", 2)], "other")
    found = saver.get_tuple(at())
    assert found is not None
    assert found.pending_writes == [("other", "__resume__", 1), ("other", "x", "first"), ("task", "__error__", "last")]


def test_the_thread_that_reads_cannot_write(saver: GroupedSaver) -> None:
    with pytest.raises(Exception, match=r"read-?only"):
        saver._file.reader.run_blocking(lambda connection: connection.execute("DELETE FROM checkpoints"))


def test_a_saver_whose_connections_were_cut_goes_on(saver: GroupedSaver, place: Path | str) -> None:
    if isinstance(place, Path):
        pytest.skip("a file has no connection that can be cut")
    saver.put(at(), checkpoint("1"), META, {})
    cut(place)
    saver.put(at(), checkpoint("2"), META, {})
    assert [each.checkpoint["id"] for each in saver.list(at())] == ["2", "1"]


def test_a_call_whose_connection_is_cut_every_time_fails_and_leaves_nothing(
    saver: GroupedSaver, place: Path | str
) -> None:
    if isinstance(place, Path):
        pytest.skip("a file has no connection that can be cut")
    tried = []

    def work(connection: Any) -> None:
        connection.execute("DELETE FROM checkpoints")
        tried.append(1)
        cut(place)
        connection.execute("SELECT 1")

    saver.put(at(), checkpoint("1"), META, {})
    with pytest.raises(MachineTrouble, match="cannot be read or written"):
        saver._file.writer.run_blocking(work)
    assert len(tried) == 2
    saver.put(at(), checkpoint("2"), META, {})
    assert [each.checkpoint["id"] for each in saver.list(at())] == ["2", "1"]


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(Unreachable) as refused:
        GroupedSaver(f"postgresql://someone:secret@/store?host={tmp_path}")
    assert refused.value.where.startswith("postgresql://someone:***@/store")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def cut(place: str) -> None:
    """End every connection to a database but this one."""
    with another(place) as connection:
        ended = """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()"""
        assert connection.execute(ended).fetchall()


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
def test_a_crafted_row_builds_no_class(saver: GroupedSaver, place: Path | str, column: str) -> None:
    saver.put(at(), checkpoint("1", x=1), META, {})
    saver.put_writes(at("t", "1"), [("x", 1)], "task")
    call = ormsgpack.packb((Trap.__module__, Trap.__qualname__, "msgpack"))
    crafted = ormsgpack.packb(ormsgpack.Ext(0, call))
    table = {"checkpoint": "checkpoints", "value": "writes"}[column]
    with another(place) as connection:
        connection.execute(f"UPDATE {table} SET type = 'msgpack', {column} = ?1", (crafted,))
    Trap.sprung.clear()
    JsonPlusSerializer(allowed_msgpack_modules=True).loads_typed(("msgpack", crafted))
    assert Trap.sprung == ["msgpack"]  # the row is a working trap, for whoever does not look
    Trap.sprung.clear()
    saver.get_tuple(at())
    assert Trap.sprung == []


def test_a_pickled_row_is_refused(saver: GroupedSaver, place: Path | str) -> None:
    saver.put(at(), checkpoint("1", x=1), META, {})
    with another(place) as connection:
        connection.execute("UPDATE checkpoints SET type = 'pickle', checkpoint = ?1", (pickle.dumps(Trap("made")),))
    Trap.sprung.clear()
    with pytest.raises(NotImplementedError, match="pickle"):
        saver.get_tuple(at())
    assert Trap.sprung == []


def test_tables_of_something_else_are_refused(place: Path | str) -> None:
    with another(place) as connection:
        connection.execute("CREATE TABLE checkpoints (name TEXT)")
    with pytest.raises(Corrupt, match="lacks"):
        GroupedSaver(place)


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


async def test_a_number_that_json_lacks_does_not_hide_other_threads(saver: GroupedSaver, place: Path | str) -> None:
    odd: Any = {**META, "run_id": "mine", "score": float("nan"), "deep": [{"most": float("-inf"), "text": "NaN"}]}
    await saver.aput(at("odd"), checkpoint("001"), odd, {})
    (found,) = [each async for each in saver.alist(None, filter={"source": "loop"})]
    assert found.metadata == {**META, "run_id": "mine", "score": None, "deep": [{"most": None, "text": "NaN"}]}
    await put(saver, 1)
    with another(place) as connection:  # another program may have written one
        connection.execute(
            """UPDATE checkpoints SET metadata = '{"source": "loop", "score": NaN}' WHERE thread_id = 't'"""
        )
    assert [each.config async for each in saver.alist(None, filter={"source": "loop"})] == [found.config]
    await saver.adelete_for_runs(["mine"])
    assert await saver.aget_tuple(at("odd")) is None
    assert await saver.aget_tuple(at()) is not None
