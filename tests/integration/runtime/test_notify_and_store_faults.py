"""The edges: the notify command, the checkpoint file, a full disk, and reading beside the daemon."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent_runtime.graph.checkpointer.saver import open_saver
from agent_runtime.store.database import open_database
from agent_runtime.store.turn_reads import list_turns
from agent_runtime.turns.turns import Notification, Notifier
from tests.integration.runtime.harness import STATES, Bench, soon
from turnkeeper.bus.event_log import EventLog, read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import NotifySettings
from turnkeeper.errors import Corrupt, Exhausted, NotFound
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.one_machine("it is about files of the home")

NOTIFICATION = Notification(event="interrupt", task="digest", channel="main", turn_id="turn-1", interrupt_id="i-1")


async def told(home: Home, command: str, **settings: Any) -> list[dict[str, Any]]:
    notifier = Notifier(
        NotifySettings(command=command, **settings),
        EventLog(home.logs, "agent-runtime", SystemClock()),
        {"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "hush"},
    )
    notifier.notify(NOTIFICATION)
    await soon(asyncio.gather(*notifier._under_way), "the command")
    return [record for record in read_events(home.logs) if record["event"].startswith("notify.")]


async def test_the_notify_command_is_told_what_and_no_secret(home: Home) -> None:
    out = home.root / "out"
    (record,) = await told(home, f"env > {out}")
    said = dict(line.split("=", 1) for line in out.read_text().splitlines())
    assert record["event"] == "notify.done"
    assert {key: value for key, value in said.items() if key.startswith("TURNKEEPER_")} == {
        "TURNKEEPER_EVENT": "interrupt", "TURNKEEPER_TASK": "digest", "TURNKEEPER_CHANNEL": "main",
        "TURNKEEPER_TURN_ID": "turn-1", "TURNKEEPER_INTERRUPT_ID": "i-1",
    }  # fmt: skip
    assert "OPENAI_API_KEY" not in said


async def test_a_notify_command_that_fails_is_an_event_and_nothing_more(home: Home) -> None:
    (record,) = await told(home, "exit 3")
    assert (record["event"], record["reason"]) == ("notify.failed", "exit status 3")


async def test_only_what_was_asked_for_is_told(home: Home) -> None:
    assert await told(home, "exit 3", on=("failure",)) == []


async def test_checkpoints_are_synced_and_private(tmp_path: Path) -> None:
    checkpoints = await open_saver(tmp_path / "checkpoints.db")
    connection = checkpoints._file._writing
    found = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")]
    assert found == [("wal",), (2,)]
    assert (tmp_path / "checkpoints.db").stat().st_mode & 0o777 == 0o600
    await checkpoints.aclose()


async def test_a_crafted_checkpoint_builds_nothing(tmp_path: Path) -> None:
    loose = JsonPlusSerializer(allowed_msgpack_modules=True)
    crafted = loose.dumps_typed(NOTIFICATION)
    checkpoints = await open_saver(tmp_path / "checkpoints.db")
    assert not isinstance(checkpoints.serde.loads_typed(crafted), Notification)
    await checkpoints.aclose()


async def test_what_is_no_checkpoint_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.db").write_bytes(b"something else " * 100)
    with pytest.raises(Corrupt):
        await open_saver(tmp_path / "checkpoints.db")


async def test_a_long_thread_keeps_one_checkpoint(bench: Bench) -> None:
    for number in range(1, 5):
        assert (await bench.run(number)).state == STATES.SUCCEEDED
    await bench.stop()
    with sqlite3.connect(bench.home.checkpoints_db) as connection:
        (count,) = connection.execute("SELECT count(*) FROM checkpoints").fetchone()
    connection.close()
    assert count == 1


async def test_the_store_is_read_beside_the_daemon(bench: Bench) -> None:
    event = await bench.run()
    beside = open_database(bench.place, read_only=True)
    assert [turn.turn_id for turn in (await beside.run(list_turns))[0]] == [event.turn_id]
    beside.close()


def test_a_store_that_never_was_is_not_found(home: Home) -> None:
    with pytest.raises(NotFound):
        open_database(home.agent_db, read_only=True)


async def test_no_room_is_said_and_nothing_is_promised(bench: Bench) -> None:
    def full(*_args: object) -> None:
        raise Exhausted("no space left on device", where="inbox")

    files: Any = bench.runtime.mailboxes._files
    files.write_synced = full
    with pytest.raises(Exhausted):
        await bench.accept(bench.fire())
    del files.write_synced
    again = await bench.accept(bench.fire())
    assert again.disposition == wire.FireReceipt.ACCEPTED
    assert (await bench.stopped(again.turn_id)).state == STATES.SUCCEEDED
