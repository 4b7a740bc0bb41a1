"""A LangGraph user's own threads come along: with their history, all or none, and they go on as any other."""

import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from agent_runtime.graph.checkpointer import threads_file
from tests.integration.runtime import authors_graphs
from tests.integration.runtime.attacks import Field
from tests.integration.runtime.authors_graphs import AuthorsBench
from tests.integration.runtime.harness import STATES, Bench
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.one_machine("the command writes the files of a home whose daemon is down")

bench = authors_graphs.bench


def node(state: Any) -> Any:
    """Say how many messages there are; a message that begins with `ask` is asked back first."""
    text = str(state["messages"][-1].content)
    answer = f" and you said {interrupt({'question': f'really {text}?'})}" if text.startswith("ask") else ""
    return {"messages": [AIMessage(f"heard {len(state['messages'])}{answer}")]}


def compiled(saver: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", node)
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver, **options)


def converse(file: Path, **said: list[str]) -> sqlite3.Connection:
    """Let a user's own program hold conversations, by thread; return its connection, still open."""
    connection = sqlite3.connect(file, check_same_thread=False)
    graph = compiled(SqliteSaver(connection))
    for thread_id, texts in said.items():
        for text in texts:
            config = {"configurable": {"thread_id": thread_id.replace("_", "-")}}
            graph.invoke({"messages": [("user", text)]}, config)
    return connection


def looks(folder: Path) -> dict[str, str]:
    """Return a digest of every file but SQLite's shared memory, by name."""
    files = (path for path in folder.iterdir() if path.is_file())
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if not path.name.endswith("-shm")
    }


@pytest_asyncio.fixture
async def field(home: Home, place: Path | str) -> AsyncIterator[Field]:
    made = Field(home, place=place)
    made.graph = compiled  # type: ignore[assignment]
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs" / "checkpoints.sqlite"


async def bring(field: Bench, file: Path, *thread_ids: str, **more: Any) -> list[tuple[str, str, int, bool]]:
    request = wire.ImportThreadsRequest(path=str(file), thread_ids=thread_ids, **more)
    found = await field.service.ImportThreads(request, None)
    return [(one.thread_id, one.state, one.turns, one.waits) for one in found.threads]


async def threads(field: Bench) -> list[str]:
    return sorted(one.thread_id for one in (await field.service.ListThreads(wire.ListThreadsRequest(), None)).threads)


async def lines(field: Bench, channel: str) -> list[list[str]]:
    found = await field.service.GetConversation(wire.GetConversationRequest(channel=channel), None)
    return [[line.text for line in turn.messages] for turn in found.turns]


def checkpoints(saver: Any, thread_id: str) -> list[Any]:
    return [
        (one.config["configurable"]["checkpoint_id"], one.checkpoint, one.metadata, one.pending_writes)
        for one in saver.list({"configurable": {"thread_id": thread_id}})
    ]


async def here(field: Bench, thread_id: str) -> list[Any]:
    saver = field.runtime.checkpoints
    return [
        (one.config["configurable"]["checkpoint_id"], one.checkpoint, one.metadata, one.pending_writes)
        async for one in saver.alist({"configurable": {"thread_id": thread_id}})
    ]


async def test_threads_come_with_their_history_and_go_on(field: Field, file: Path) -> None:
    with closing(converse(file, talk=["hello", "again"], waits=["hi", "ask me"])) as theirs:
        assert file.with_name(f"{file.name}-wal").stat().st_size, "what was written last is only in the log"
        before = looks(file.parent)
        assert await bring(field, file, dry_run=True) == [
            ("talk", "imported", 2, False),
            ("waits", "imported", 2, True),
        ]
        assert await threads(field) == []
        assert await bring(field, file) == [("talk", "imported", 2, False), ("waits", "imported", 2, True)]
        assert looks(file.parent) == before
        assert await here(field, "talk") == checkpoints(SqliteSaver(theirs), "talk")
    assert await threads(field) == ["talk", "waits"]
    assert await lines(field, "talk") == [["hello", "heard 1"], ["again", "heard 3"]]

    asked = await field.events(until=lambda event: event.state == STATES.INTERRUPTED)
    (question,) = await field.pending()
    assert (question.thread_id, question.channel, question.question) == ("waits", "waits", "really ask me?")
    await field.resolve(question.interrupt_id, "answer", message="yes")
    await field.stopped(question.turn_id, after=asked[-1].sequence)
    assert await lines(field, "waits") == [["hi", "heard 1"], ["ask me", "yes", "heard 3 and you said yes"]]

    sent = await field.service.SendMessage(wire.SendMessageRequest(channel="talk", text="go on"), None)
    assert sent.thread_id == "talk"
    await field.stopped(sent.turn_id)
    fired = await field.run(thread_id="talk", channel="talk", prompt="a fire")
    assert fired.state == STATES.SUCCEEDED
    assert (await lines(field, "talk"))[2:] == [["go on", "heard 5"], ["a fire", "heard 7"]]
    assert await bring(field, file) == [("talk", "unchanged", 2, False), ("waits", "unchanged", 2, True)]
    assert len(await lines(field, "talk")) == 4


async def test_a_question_of_an_imported_thread_is_asked_after_a_crash_too(field: Field, file: Path) -> None:
    converse(file, waits=["ask me"]).close()
    service: Any = field.service
    field.runtime.worker.answered = lambda _thread_id: None  # type: ignore[method-assign]  as if it died here
    service.__init__(field.runtime)
    await bring(field, file)
    await field.crash()
    await field.events(until=lambda event: event.state == STATES.INTERRUPTED)
    (question,) = await field.pending()
    assert question.question == "really ask me?"


PROJECT = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [AIMessage(f"heard {len(state['messages'])}")]})
builder.add_edge(START, "model")
graph = builder.compile(interrupt_before=["model"])
"""


async def test_a_thread_that_stopped_before_a_step_waits_for_its_author(bench: AuthorsBench, file: Path) -> None:
    bench.bring(PROJECT)
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        config: Any = {"configurable": {"thread_id": "stopped"}}
        graph = compiled(SqliteSaver(connection), interrupt_before=["model"])
        graph.invoke({"messages": [("user", "hi")]}, config)
    await bench.open()
    with pytest.raises(Conflict, match="no graph or assistant 'other'"):
        await bring(bench, file, graph="other")
    assert await bring(bench, file) == [("stopped", "imported", 1, True)]
    asked = await bench.events(until=lambda event: event.state == STATES.INTERRUPTED)
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "approve", args_hash=question.args_hash)
    await bench.stopped(question.turn_id, after=asked[-1].sequence)
    assert (await lines(bench, "stopped"))[0][-1] == "heard 1"


async def test_all_threads_come_or_none(field: Field, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(converse(file, one=["a"], two=["b"])) as theirs:
        await field.run(thread_id="two", prompt="ours")
        for dry_run in (True, False):
            with pytest.raises(Conflict, match="thread 'two' exists here with another history"):
                await bring(field, file, dry_run=dry_run)
        assert (await threads(field), await here(field, "one")) == (["two"], [])
        assert await bring(field, file, "one") == [("one", "imported", 1, False)]
        converse(file, one=["more"], three=["c"]).close()
        with pytest.raises(Conflict, match="thread 'one' continued there after its import"):
            await bring(field, file, "one", "three")
        assert (await threads(field), await here(field, "three")) == (["one", "two"], [])

        def fails(*_args: Any, **_fields: Any) -> None:
            raise SystemError("no")

        monkeypatch.setattr("agent_runtime.store.turn_writes.put_transcript", fails)
        with pytest.raises(SystemError):
            await bring(field, file, "three")
        assert (await threads(field), await here(field, "three")) == (["one", "two"], []), "its checkpoints went too"
        monkeypatch.setattr("agent_runtime.service.threads.import_all", fails)
        monkeypatch.setattr(threads_file, "take_out", lambda *_args: None)  # as if killed between the two stores
        with pytest.raises(SystemError):
            await bring(field, file, "three")
        assert await threads(field) == ["one", "two"]
        monkeypatch.undo()
        assert await bring(field, file, "three", channel="old") == [("three", "imported", 1, False)]
        assert await here(field, "three") == checkpoints(SqliteSaver(theirs), "three")
        assert await lines(field, "old") == [["c", "heard 1"]]


async def test_checkpoints_of_another_history_are_left_as_they_are(field: Field, file: Path) -> None:
    converse(file, one=["a"], two=["b"]).close()
    await field.runtime.checkpoints.acopy_thread("none", "none")
    await compiled(field.runtime.checkpoints).ainvoke(
        {"messages": [("user", "elsewhere")]}, {"configurable": {"thread_id": "two"}}
    )
    left = await here(field, "two")
    with pytest.raises(Conflict, match="another history"):
        await bring(field, file)
    assert (await threads(field), await here(field, "one"), await here(field, "two")) == ([], [], left)


built: list[str] = []


@dataclass
class Bomb:
    """What a crafted file may name: to make one is to run code."""

    text: str

    def __post_init__(self) -> None:
        built.append(self.text)


async def test_a_file_builds_no_object_of_a_class_that_it_names(field: Field, file: Path) -> None:
    builder = StateGraph(TypedDict("State", {"thing": Any}))
    builder.add_node("put", lambda _state: {"thing": Bomb("crafted")})
    builder.add_edge(START, "put")
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        builder.compile(checkpointer=SqliteSaver(connection)).invoke({}, {"configurable": {"thread_id": "crafted"}})
    built.clear()
    assert await bring(field, file) == [("crafted", "imported", 1, False)]
    assert await field.service.GetConversation(wire.GetConversationRequest(channel="crafted"), None)
    assert (len(await here(field, "crafted")), built) == (3, [])
    saver = SqliteSaver(sqlite3.connect(file), serde=JsonPlusSerializer(allowed_msgpack_modules=True))
    list(saver.list(None))
    assert built, "a saver that trusts the file builds it"


def changed(statement: str, *values: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        converse(file, one=["a"]).close()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(statement, values)
            connection.commit()

    return change


def torn(file: Path) -> None:
    converse(file, one=["a" * 50_000], two=["b"]).close()
    data = bytearray(file.read_bytes())
    data[8192:16384] = b"\xff" * 8192
    file.write_bytes(data)


WRONG: dict[str, tuple[Callable[[Path], Any], type[TurnkeeperError], str]] = {
    "no file": (lambda _file: None, NotFound, "no such file"),
    "a folder": (lambda file: file.mkdir(), InvalidInput, "cannot be read as a file"),
    "text": (lambda file: file.write_text("no database, but long enough" * 99), InvalidInput, "is not a SQLite file"),
    "empty": (lambda file: file.write_bytes(b""), InvalidInput, "it has no table checkpoints"),
    "another database": (
        lambda file: sqlite3.connect(file).execute("CREATE TABLE a (b)"), InvalidInput, "it has no table checkpoints"
    ),
    "another layout": (changed("ALTER TABLE checkpoints DROP COLUMN metadata"), InvalidInput, "lacks metadata"),
    "damaged": (torn, InvalidInput, "damaged"),
    "no checkpoint": (changed("UPDATE checkpoints SET checkpoint = ?", b"\xc1"), InvalidInput, "thread 'one' is damaged"),
    "encrypted": (changed("UPDATE checkpoints SET type = 'msgpack+aes'"), InvalidInput, "in a format that cannot be read"),
    "pickled": (changed("UPDATE writes SET type = 'pickle'"), InvalidInput, "Unknown serialization type: pickle"),
    "a path as id": (changed("UPDATE checkpoints SET thread_id = 'a/b'"), InvalidInput, "has an id that is not valid here"),
    "of the future": (
        changed("UPDATE checkpoints SET checkpoint_id = 'ffffffff-ffff-6fff-8000-000000000000' WHERE rowid = 1"),
        TurnkeeperError,
        "has a time in the future",
    ),
}  # fmt: skip


async def test_what_cannot_be_imported_is_named_and_nothing_is_written(
    field: Field, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (name, (make, error, said)) in enumerate(WRONG.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "checkpoints.sqlite")
        before = looks(folder)
        with pytest.raises(error) as raised:
            await bring(field, folder / "checkpoints.sqlite")
        assert said in str(raised.value), name
        assert looks(folder) == before, name
    good = tmp_path / "good.sqlite"
    converse(good, one=["a"]).close()
    for wanted, error, said in [
        ({"thread_ids": ["none"]}, NotFound, "has no thread 'none'; it has one"),
        ({"channel": "a/b"}, InvalidInput, "looks like a path"),
        ({"category": "none"}, Conflict, "none"),
    ]:
        with pytest.raises(error, match=said):
            await field.service.ImportThreads(wire.ImportThreadsRequest(path=str(good), **wanted), None)
    with pytest.raises(InvalidInput, match="not an absolute path"):
        await bring(field, Path("good.sqlite"))
    ticks = iter(range(100))
    monkeypatch.setattr(threads_file, "_state", lambda _path: [(next(ticks), 0, 0)])
    with pytest.raises(Conflict, match="changed during reading"):
        await bring(field, good)
    assert (await threads(field), await here(field, "one")) == ([], [])


async def test_a_file_of_an_older_saver_and_a_state_without_messages_are_read(field: Field, file: Path) -> None:
    builder = StateGraph(TypedDict("State", {"depth": int}))
    builder.add_node("count", lambda state: {"depth": state["depth"] + 1})
    builder.add_edge(START, "count")
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        graph = builder.compile(checkpointer=SqliteSaver(connection))
        graph.invoke({"depth": 3}, {"configurable": {"thread_id": "deep"}})
        connection.execute("ALTER TABLE writes DROP COLUMN task_path")
        connection.execute("UPDATE checkpoints SET metadata = CAST(metadata AS TEXT)")
        connection.commit()
        connection.execute("PRAGMA journal_mode=DELETE")
    before = looks(file.parent)
    assert await bring(field, file) == [("deep", "imported", 1, False)]
    assert looks(file.parent) == before
    ((prompt, state),) = await lines(field, "deep")
    assert (prompt, json.loads(state)["depth"]) == ("(imported)", 4)
    assert len(await here(field, "deep")) == 3
