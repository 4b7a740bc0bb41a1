"""`turnkeeper inbox` on real folders: what a person and a script see, and who is refused."""

import json
import shutil
from typing import Any

import pytest

from agent_runtime.cli import app
from tests.support.inboxes import message, put_all
from turnkeeper.bus.acks import read_acks
from turnkeeper.bus.envelope import encode
from turnkeeper.bus.event_log import read_events
from turnkeeper.bus.inbox import Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.console import run
from turnkeeper.entropy import SystemEntropy
from turnkeeper.storage.files import SystemFiles
from turnkeeper.storage.locking import ReaderLock


class Commands:
    """Runs `turnkeeper inbox` in this process, as `main` does."""

    def __init__(self, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def __call__(self, *argv: str, code: int = 0) -> tuple[str, str]:
        self._capsys.readouterr()
        found = run(app, ["--home", str(self.home.root), "inbox", *argv])
        out, err = self._capsys.readouterr()
        assert found == code, f"{argv} exited with {found}: {out}{err}"
        return out, err

    def json(self, *argv: str) -> Any:
        return json.loads(self(*argv, "-o", "json")[0])

    def open(self, agent: str) -> Inbox:
        folder = self.home.inbox(agent)
        return Inbox(folder, files=SystemFiles(), clock=SystemClock(), entropy=SystemEntropy(), settles_keys=True)

    def plant(self, agent: str, name: str, data: bytes) -> None:
        self.open(agent)
        (self.home.inbox(agent) / "inbox" / name).write_bytes(data)


@pytest.fixture
def inbox(home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("NO_COLOR", "1")
    return Commands(home, capsys)


def test_drain_prints_what_waits_as_it_is_to_be_read_and_archives_it(inbox: Commands) -> None:
    put_all(inbox.open("codex"), [message("one\x1b[31m", key="k1"), message("two")])
    out, err = inbox("drain", "codex", "-n", "1")
    assert out == '<channel source="agent" from="author" kind="message" thread="">one\\x1b[31m</channel>\n'
    assert "1 envelope archived" in err
    (row,) = inbox.json("drain", "codex")
    assert (row["text"], row["from"], row["kind"], row["at"]) == ("two", "author", "message", "2026-03-02T09:00:00Z")
    assert inbox.json("drain", "codex") == []
    assert len(list(read_acks(inbox.home.logs))) == 2
    assert inbox.json("list")[0] | {"oldest_at": None} == {
        "agent": "codex", "waiting": 0, "claimed": 0, "delivered": 2, "quarantined": 0, "oldest_at": None,
        "hosted": False, "reader": None,
    }  # fmt: skip


def test_drain_adopts_what_a_reader_that_died_had_claimed(inbox: Commands) -> None:
    put_all(inbox.open("codex"), [message("one"), message("two")])
    inbox.open("codex").claim(1)
    assert [json.loads(line)["text"] for line in inbox("drain", "codex", "-o", "jsonl")[0].splitlines()] == [
        "one",
        "two",
    ]


def test_list_shows_inboxes_and_what_waits_in_one_without_taking_it(inbox: Commands) -> None:
    assert inbox.json("list") == []
    for agent in ("codex", "agent10", "agent2"):
        inbox.open(agent).put(message("hello\nthere", key="k"))
    assert [row["agent"] for row in inbox.json("list")] == ["agent2", "agent10", "codex"]
    (row,) = inbox.json("list", "codex")
    assert (row["place"], row["text"], row["idempotency_key"]) == ("inbox", "hello\nthere", "k")
    assert inbox("list", "codex", "-o", "name")[0].strip() == row["name"]
    assert "hello there" in inbox("list", "codex")[0]
    assert not (inbox.home.inbox("agent0")).exists(), "looking makes nothing"
    inbox("list", "nobody", code=3)
    inbox("list", "../x", code=2)


def test_an_inbox_has_one_reader_and_says_who_it_is(inbox: Commands) -> None:
    inbox.open("codex").put(message("one"))
    with ReaderLock(inbox.home.inbox("codex"), "inbox watch"):
        assert inbox.json("list")[0]["reader"].startswith("inbox watch, pid ")
        assert "is read by inbox watch, pid " in inbox("drain", "codex", code=4)[1]
    inbox("drain", "codex")


def test_the_inbox_of_an_agent_that_the_runtime_hosts_is_not_drained_whether_it_runs_or_not(inbox: Commands) -> None:
    inbox.home.config.write_text("[agents.agent0]\nworkers = 2\n")
    inbox.open("agent2").put(message("one"))
    assert "agent-runtime, which is not running" in inbox("drain", "agent2", code=4)[1]
    with ReaderLock(inbox.home.inbox("agent2"), "agent-runtime"):
        assert "is read by agent-runtime, pid " in inbox("drain", "agent2", code=4)[1]
    inbox("drain", "agent0", code=4)
    inbox("drain", "author", code=2)
    inbox("drain", "agent3", code=3)
    assert inbox.open("agent2").waiting() == 1


def test_what_is_set_aside_is_listed_with_its_reason_and_waits_again_once_it_is_valid(inbox: Commands) -> None:
    inbox.plant("codex", "0-bad.json", b"{")
    inbox.plant("codex", "1-good.json", encode(message("good")))
    assert [row["text"] for row in inbox.json("drain", "codex")] == ["good"]
    (row,) = inbox.json("quarantine")
    assert (row["agent"], row["name"]) == ("codex", "0-bad.json")
    assert "not JSON" in row["reason"]
    inbox("requeue", "codex", "0-bad", code=2)
    inbox("requeue", "codex", code=2)
    inbox("requeue", "codex", "9", code=3)
    (inbox.home.inbox("codex") / "quarantine" / "0-bad.json").write_bytes(encode(message("repaired")))
    assert [row["name"] for row in inbox.json("requeue", "codex", "--all")] == ["0-bad.json"]
    acts = [one for one in read_events(inbox.home.logs) if one["event"] == "act.done"]
    requeued = ("inbox requeue", "codex 0-bad.json", "agent-runtime/cli")
    assert [(one["method"], one["subject"], one["via"]) for one in acts] == [requeued], "what was refused is no act"
    assert [row["text"] for row in inbox.json("drain", "codex")] == ["repaired"]
    assert inbox.json("quarantine", "codex") == []


def test_what_is_sent_or_vouched_for_is_on_record_and_sent_also_where_no_log_is_seen(inbox: Commands) -> None:
    _, said = inbox("send", "--from", "codex", "hello")
    inbox.plant("agent0", "0-forged.json", encode(message("hello")))
    (claimed,) = inbox.open("agent0").claim(1)
    inbox.open("agent0").quarantine(claimed.name, "has none")
    inbox("requeue", "agent0", "0-forged", "--seal")
    acts = [one for one in read_events(inbox.home.logs) if one["event"] == "act.done"]
    assert [(one["method"], one["subject"], one["via"]) for one in acts] == [
        ("inbox send", f"codex {said.split()[0]}", "agent-runtime/cli"),
        ("inbox requeue --seal", "agent0 0-forged.json", "agent-runtime/cli"),
    ]
    shutil.rmtree(inbox.home.logs)
    assert "warning" not in inbox("send", "--from", "codex", "hello")[1]
    assert not inbox.home.logs.exists()


def test_a_session_that_is_not_there_is_named(inbox: Commands) -> None:
    inbox("watch", "codex", "--tmux", "bad name", code=2)
    inbox("watch", "codex", "--tmux", "x", "--tmux-server", f"tk-{SystemEntropy().hex(8)}", code=3)
