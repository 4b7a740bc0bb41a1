"""Agents in terminals of machines that share a database: each envelope is read once, by a watcher on any of them."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.mailbox import inbox as mailbox
from agent_runtime.mailbox import shared_inbox
from tests.integration.bus.test_inbox_commands import Commands
from tests.integration.bus.test_tmux_delivery import AGENT, Terminal, until
from tests.integration.cluster.shared import Cluster
from turnkeeper.bus.acks import read_acks
from turnkeeper.bus.envelope import Envelope
from turnkeeper.clock import SystemClock
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Unreachable
from turnkeeper.rpc.process import VARIABLE
from turnkeeper.storage.locking import ReaderLock
from turnkeeper.storage.server import inboxes
from turnkeeper.v1 import agent_runtime_pb2 as wire

PATIENCE_S = 60.0
PUT = "INSERT INTO runtime.inbox_envelopes (agent, key, envelope, state, at_us) VALUES (%s, %s, %s, 'waiting', %s)"


class Machine(Commands):
    """`turnkeeper inbox` on one home, in this process."""

    def reading(self, **how: bool) -> Any:
        around: dict[str, Any] = {"clock": SystemClock(), "entropy": SystemEntropy(), **how}
        return mailbox.reading(self.home, "codex", "inbox watch", **around)


@pytest.fixture
def pair(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Machine, Machine]:
    monkeypatch.setenv("NO_COLOR", "1")
    one, two = (Machine(cluster.home(number), capsys) for number in (1, 2))
    return one, two


def put(cluster: Cluster, key: str, agent: str = "codex", at_us: int = 1_790_000_000_000_000, **fields: Any) -> None:
    said = {"v": 1, "id": key, "from": "claude", "to": agent, "kind": "message", "thread": "t1", "swarm": ""}
    said |= {"idempotency_key": key, "text": key, "ts": "2026-11-22T09:52:42Z", "requires_ack": False, "meta": {}}
    cluster.sql.execute(PUT, (agent, key, json.dumps(said | fields).encode(), at_us))
    cluster.sql.execute("INSERT INTO runtime.inboxes VALUES (%s, 0, '', 0) ON CONFLICT DO NOTHING", (agent,))


def states(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.rows("SELECT key, state FROM runtime.inbox_envelopes ORDER BY number"))


def end_lease(cluster: Cluster) -> None:
    """Let every reader's time be over, as if it had been stopped for longer than its lease."""
    cluster.sql.execute("UPDATE runtime.inboxes SET until_us = 0")


def test_each_machine_lists_reads_and_puts_back_what_lies_in_the_database(
    pair: tuple[Machine, Machine], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    assert "no inbox" in one("list", "codex", code=3)[1]
    for key in ("a", "b", "c"):
        put(cluster, key)
    put(cluster, "torn", text=7)
    put(cluster, "d", requires_ack=True)
    put(cluster, "x", agent="claude")
    rows = [machine.json("list") for machine in pair]
    assert rows[0] == rows[1]
    assert {(row["agent"], row["waiting"], row["hosted"]) for row in rows[0]} == {
        ("agent0", 0, True),
        ("claude", 1, False),
        ("codex", 5, False),
    }
    with ReaderLock(one.home.inbox("agent0"), "agent-runtime"):
        read_by = [machine.json("list")[0]["reader"] for machine in pair]
    assert read_by == [f"agent-runtime, pid {os.getpid()}", None], "each machine tells of its own runtime"
    assert [(row["place"], row["name"], row["text"]) for row in one.json("list", "codex")] == [
        ("inbox", key, key) for key in ("a", "b", "c", "d")
    ]
    assert [row["text"] for row in one.json("drain", "codex", "-n", "2")] == ["a", "b"]
    with one.reading() as reader:
        (held,) = reader.claim()
        said = two("drain", "codex", code=4)[1]
        assert f"is read by inbox watch, pid {os.getpid()} on " in said
        (row,) = [row for row in two.json("list") if row["agent"] == "codex"]
        assert (row["waiting"], row["claimed"], row["delivered"]) == (2, 1, 2)
        assert row["reader"].startswith("inbox watch, pid ")
    assert held.name == "c"
    out, err = two("drain", "codex")
    assert [line.partition("</")[0].rpartition(">")[2] for line in out.splitlines()] == ["c", "d"]
    assert "1 in quarantine" in err
    assert {record["name"] for record in read_acks(two.home.logs)} == {"c", "d"}
    (ack,) = [row for row in one.json("list", "claude") if row["kind"] == "ack"]
    assert (ack["from"], ack["meta"]["envelope"]) == ("codex", "d")
    (aside,) = one.json("quarantine")
    assert (aside["agent"], aside["name"]) == ("codex", "torn")
    assert "has the wrong type" in one("requeue", "codex", "torn", code=2)[1]
    cluster.sql.execute("UPDATE runtime.inbox_envelopes SET state = 'quarantined' WHERE key = 'a'")
    assert one.json("requeue", "codex", "a")[0]["place"] == "inbox"
    assert [row["text"] for row in two.json("drain", "codex")] == ["a"]
    assert "agent0" in one("drain", "agent0", code=4)[1]
    monkeypatch.delattr(mailbox, "inbox_rows")
    assert mailbox.existing(one.home, "codex").name == "codex", "it counts what is in no inbox"


def test_who_reads_for_long_removes_what_was_read_long_ago(
    pair: tuple[Machine, Machine], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "PRUNE_EVERY", 2)
    for key in ("a", "b", "c"):
        put(cluster, key)
    with pair[0].reading() as reader:
        for _ in range(3):
            (item,) = reader.claim()
            reader.finish(item, lambda _: None)
            cluster.sql.execute("UPDATE runtime.inbox_envelopes SET at_us = 1 WHERE key = 'a' AND state = 'delivered'")
    assert states(cluster) == {"b": "delivered", "c": "delivered"}


def test_what_was_claimed_with_a_lost_answer_is_read_by_the_same_reader(
    pair: tuple[Machine, Machine], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is below one that was read: who put it committed later, or it was put back."""
    put(cluster, "late")
    put(cluster, "early")
    cluster.sql.execute("UPDATE runtime.inbox_envelopes SET state = 'quarantined' WHERE key = 'late'")
    with pair[0].reading() as reader:
        submit = reader._database.submit

        def lose(work: Any) -> Any:
            submit(work).result()
            raise Unreachable("was lost", where="the shared database")

        (item,) = reader.claim()
        reader.finish(item, lambda _: None)
        cluster.sql.execute("UPDATE runtime.inbox_envelopes SET state = 'waiting' WHERE key = 'late'")
        monkeypatch.setattr(reader._database, "submit", lose)
        with pytest.raises(Unreachable):
            reader.claim()
        monkeypatch.undo()
        assert states(cluster) == {"late": "claimed", "early": "delivered"}
        assert (reader.ready(), [item.name for item in reader.claim()]) == ("", ["late"])


def test_what_was_pasted_is_acknowledged_and_archived_although_the_database_was_away_meanwhile(
    pair: tuple[Machine, Machine], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_inbox, "LOOK_S", 0.0)
    put(cluster, "a", requires_ack=True)
    put(cluster, "b", agent="claude")
    pasted: list[str] = []
    with pair[0].reading() as reader:
        submit, times_away = reader._database.submit, iter([2, 1, 0] * 9)

        def sometimes(work: Any) -> Any:
            if next(times_away):
                raise Unreachable("is away", where="the shared database")
            return submit(work)

        def paste(envelope: Envelope) -> None:
            pasted.append(envelope.text)
            monkeypatch.setattr(reader._database, "submit", sometimes)

        (item,) = reader.claim()
        reader.finish(item, paste)
        monkeypatch.undo()
    assert pasted == ["a"]
    (ack,) = [row for row in pair[1].json("list", "claude") if row["kind"] == "ack"]
    assert (ack["meta"]["envelope"], states(cluster)["a"]) == ("a", "delivered")


def test_a_watcher_stands_by_until_the_reader_is_gone_and_one_that_was_stopped_delivers_nothing(
    pair: tuple[Machine, Machine], cluster: Cluster
) -> None:
    one, two = pair
    put(cluster, "a")
    put(cluster, "b")
    pasted: list[str] = []
    with one.reading() as first, two.reading(stand_by=True) as second:
        (held,) = first.claim()
        assert "is read by inbox watch" in second.ready()
        end_lease(cluster)
        assert second.ready() == ""
        (again,) = second.claim()
        assert again.name == held.name == "a"
        with pytest.raises(inboxes.NotReader):
            first.finish(held, lambda envelope: pasted.append(envelope.text))
        assert pasted == [], "it proves its lease before it delivers"
        second.finish(again, lambda envelope: pasted.append(envelope.text))
        with pytest.raises(inboxes.NotReader):
            first.claim()
        (last,) = second.claim()
        second.finish(last, lambda envelope: pasted.append(envelope.text))
    assert pasted == ["a", "b"]
    assert set(states(cluster).values()) == {"delivered"}


@pytest.fixture
def terminals(cluster: Cluster) -> Iterator[list[Terminal]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            made.append(Terminal(cluster.home(number), AGENT))
            stack.callback(made[-1].close)
        yield made


def fire(number: int) -> wire.FireRequest:
    request = wire.FireRequest(
        fire_id=f"task-00000001@{number}", attempt=1, task_id="task-00000001", task_name="digest", channel="main",
        kind="scheduled", category="loop", prompt=f"Say {number}.", thread_id="task-1", agent="codex",
    )  # fmt: skip
    request.nominal_at.FromSeconds(1_790_000_000 + number)
    return request


def hand_over(cluster: Cluster, number: int) -> None:
    """Put a fire as a runner does."""
    request = fire(number)
    cluster.sql.execute(
        "INSERT INTO runtime.envelopes (key, thread_id, agent, kind, envelope, state, not_before_us, at_us)"
        " VALUES (%s, 'task-1', 'codex', 'fire', %s, 'waiting', 0, 1)",
        (f"fire:{request.fire_id}:1", request.SerializeToString()),
    )


@pytest.mark.process
@pytest.mark.service
def test_a_watcher_of_another_machine_goes_on_where_one_was_killed(terminals: list[Terminal], cluster: Cluster) -> None:
    one, two = terminals
    with (one.home.config).open("a") as config:
        config.write('[categories]\nautonomous_allowed = ["loop"]\n')
    runtime = cluster.start_runtime(one.home)
    cluster.forget(runtime)
    try:
        for terminal in terminals:
            terminal.at_prompt()
        for number in (1, 2):
            hand_over(cluster, number)
        until(lambda: list(states(cluster).values()) == ["waiting", "waiting"], "both are laid out")
        killed = one.watch(**{VARIABLE: "inbox.claimed"})
        assert killed.wait(PATIENCE_S) == -signal.SIGKILL
        assert list(states(cluster).values()) == ["claimed", "waiting"]
        watcher = two.watch()
        assert watcher.stderr is not None
        until(lambda: "is read by inbox watch, pid" in watcher.stderr.readline(), "it stands by")
        end_lease(cluster)
        until(lambda: two.given().count(b"\r") == 2, "both pastes")
        assert [line.partition("</")[0].rpartition(">")[2] for line in two.given().decode().split("\r")] == [
            "Say 1.",
            "Say 2.",
            "",
        ]
        until(lambda: set(states(cluster).values()) == {"delivered"}, "both archives")
        assert one.given() == b""
        query = "SELECT fire_id, state FROM runtime.turn_events ORDER BY sequence"
        until(lambda: len(cluster.rows(query)) == 2, "both outcomes")
        assert cluster.rows(query) == [(fire(number).fire_id, "DELIVERED") for number in (1, 2)]
        watcher.send_signal(signal.SIGTERM)
        assert watcher.wait(PATIENCE_S) == 0
        assert cluster.value("SELECT until_us FROM runtime.inboxes") == 0, "another may read at once"
        assert not list((Path(one.home.inbox("codex"))).glob("inbox/*")), "files remain for a home of one machine"
    finally:
        runtime.kill()
        runtime.wait()
