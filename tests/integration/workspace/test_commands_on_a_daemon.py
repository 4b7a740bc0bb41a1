"""The `agent-runtime` command line against a real daemon, and beside its store when it is down."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.cli import app
from tests.support.constellation import AGENT_RUNTIME, Constellation
from turnkeeper.config.home import Home
from turnkeeper.console import run
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import Caller
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.process
NOMINAL = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)


class Commands:
    """Runs commands in this process, as `main` does, and keeps what they printed."""

    def __init__(self, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
        self._home = home
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *argv: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = run(app, ["--home", str(self._home.root), *argv])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, f"{argv} exited with {found}: {self.out}{self.err}"
        return self.out

    def json(self, *argv: str) -> Any:
        return json.loads(self(*argv, "-o", "json"))


@pytest.fixture(scope="module")
def daemon() -> Iterator[Constellation]:
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    made = Constellation(Home(root=folder / "home"))
    made.home.create()
    made.start(AGENT_RUNTIME)
    yield made
    made.stop(AGENT_RUNTIME)
    shutil.rmtree(folder)


@pytest.fixture
def ar(daemon: Constellation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("NO_COLOR", "1")
    return Commands(daemon.home, capsys)


@pytest.fixture
def down(home: Home, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(home, capsys)


Fire = Callable[..., str]


@pytest.fixture
def fire(daemon: Constellation) -> Fire:
    """Send a fire as the runner does, and wait until its turn has ended or waits."""
    runner = Identity.of_daemon("task-runner", "agent-runtime", daemon.home)
    caller = Caller(daemon.home, via=runner)

    def send(name: str, prompt: str, *, channel: str, stands_for: int = 1, late_s: int = 0) -> str:
        request = wire.FireRequest(
            fire_id=f"{name}@1", task_id=name, task_name=name, thread_id=f"thread-{name}", channel=channel, agent="agent0",
            category="catch-up-summary", prompt=prompt, kind="scheduled", attempt=1, timezone="America/New_York",
        )  # fmt: skip
        request.nominal_at.FromDatetime(NOMINAL)
        request.fired_at.FromDatetime(NOMINAL + timedelta(seconds=late_s))
        request.catch_up.policy, request.catch_up.count = "run-once", stands_for
        turn_id: str = caller.Fire(request).turn_id
        settled = {"succeeded", "interrupted", "failed"}
        daemon.until(
            f"{name} to settle", lambda: caller.GetTurn(wire.GetTurnRequest(turn_id=turn_id)).status in settled
        )
        return turn_id

    return send


def test_a_page_is_put_listed_and_shown(ar: Commands, tmp_path: Path) -> None:
    page = tmp_path / "garden.md"
    page.write_text("# Community garden\n\nThe compost is turned on Mondays.\n")
    ar("workspace", "put", "garden", "--file", str(page), "--tag", "outdoors")
    (row,) = ar.json("workspace", "list", "--tag", "outdoors")
    assert (row["page_id"], row["title"], row["lifecycle"], row["origin"]) == (
        ("garden", "Community garden", "canonical", "authored")
    )
    assert "body" not in row
    assert "turned on Mondays" in ar("workspace", "show", "garden")
    ar("workspace", "put", "garden", "--body", "Changed.", "--title", "Garden")
    assert ar.json("workspace", "show", "garden")["version"] == 2
    assert ar("workspace", "list", "-o", "name").split() == ["garden"]


def test_sending_and_waiting_prints_the_answer_and_echoes_the_thread(ar: Commands) -> None:
    ar("send", "talk", "remember: buckets are blue", "--wait")
    assert "Remembered in the channel memory" in ar.out
    assert ar.err.startswith("begins thread ")
    thread = ar.err.split()[2]
    ar("send", "talk", "search: zeppelins", "--wait")
    assert ar.err.startswith(f"continues thread {thread} ")
    ar("send", "talk", "hello", "--new", "--wait")
    assert ar.err.startswith("begins thread ")
    ar("send", "talk", "hello", "--thread", thread)
    assert ar.err.startswith(f"continues thread {thread} ")
    turns = ar.json("conversation", "show", "talk")
    assert [turn["trigger"] for turn in turns] == [None] * len(turns)
    assert turns[0]["messages"][0] | {"at": ""} == {"role": "author", "text": "remember: buckets are blue", "at": ""}
    assert "talk" in [row["channel"] for row in ar.json("conversation", "list")]


def test_a_fire_is_shown_with_its_mark_and_its_proposal_can_be_accepted(ar: Commands, fire: Fire) -> None:
    turn_id = fire("digest", "Summarise the garden.", channel="daily", stands_for=3, late_s=7200)
    shown = ar("conversation", "show", "daily")
    mark = "triggered by digest at 2026-11-20 09:00 America/New_York, 2h late, stands for 3 fires"
    assert mark in shown
    assert "stands for 3 missed fires" in shown
    (candidate,) = ar.json("candidates", "list", "--channel", "daily")
    assert f"turnkeeper candidates accept {candidate['candidate_id']}" in shown
    (turn,) = ar.json("conversation", "show", "daily")
    assert (turn["turn_id"], turn["trigger"]["stands_for"]) == (turn_id, 3)
    assert candidate["turn_id"] == turn_id
    prefix = candidate["candidate_id"][:8]
    assert candidate["body"] in ar.json("candidates", "show", prefix)["body"]
    ar("candidates", "accept", prefix, "--note", "good")
    assert ar.json("candidates", "list", "--channel", "daily") == []
    (decided,) = ar.json("candidates", "list", "--channel", "daily", "--all")
    assert (decided["lifecycle"], decided["note"]) == ("canonical", "good")
    ar("candidates", "reject", prefix, code=4)


def test_what_waits_for_the_author_is_shown_with_the_command_that_answers_it(ar: Commands, fire: Fire) -> None:
    turn_id = fire("errand", "Summarise the garden, then remember: the pump was replaced", channel="desk")
    (pending,) = ar.json("approvals", "list", "--channel", "desk")
    assert (pending["tool"], pending["missing_scope"], pending["status"]) == ("memory_put", "memory.put", "pending")
    assert ar.json("interrupts", "list", "--channel", "desk") == [pending], "the command's earlier name is an alias"
    assert "interrupts" not in ar("--help")
    for said in (ar("turns", "list", "--channel", "desk"), ar("threads", "list"), ar("conversation", "show", "desk")):
        assert "waits for you" in said
        assert "interrupted" not in said
    (turn,) = ar.json("turns", "list", "--status", "waits for you", "--channel", "desk")
    assert turn["status"] == "interrupted", "what scripts read stays"
    prefix = pending["interrupt_id"][:10]
    command = f"turnkeeper approvals resolve {prefix} --approve"
    assert command in ar("conversation", "show", "desk")
    assert command in ar("approvals", "show", prefix)
    assert "1 decision waiting" in (ar("conversation", "list"), ar.err)[1]

    ar("send", "desk", "hello", "--wait", code=7)
    assert "the message waits for your decision" in ar.err
    ar("approvals", "resolve", prefix, code=2)
    ar("approvals", "resolve", prefix, "--approve", "--reject", code=2)
    ar("approvals", "resolve", prefix, "why", "--approve", code=2)
    ar("approvals", "resolve", prefix, "--edit", "[1]", code=2)
    ar("approvals", "resolve", prefix, "--answer", "yes", code=2)

    ar("approvals", "resolve", prefix, "--edit", '{"tier": "channel", "text": "the pump is new"}')
    ended = {"succeeded", "failed"}
    Constellation.until(
        _constellation(ar), "the turn to end", lambda: ar.json("turns", "show", turn_id)["status"] in ended
    )
    texts = [message["text"] for turn in ar.json("conversation", "show", "desk") for message in turn["messages"]]
    assert any("Remembered it in the channel memory" in text for text in texts)
    assert ar.json("approvals", "list", "--channel", "desk") == []
    for again in (("--approve",), ("--edit", '{"tier": "channel", "text": "the pump is new"}')):
        ar("approvals", "resolve", pending["interrupt_id"], *again, code=4)
        assert "was already decided: edit" in ar.err


def _constellation(ar: Commands) -> Constellation:
    return Constellation(ar._home)


def test_a_rejection_is_told_to_the_agent(ar: Commands, fire: Fire) -> None:
    turn_id = fire("refused", "Summarise, then remember: nothing", channel="refused")
    (pending,) = ar.json("approvals", "list", "--channel", "refused")
    ar("approvals", "resolve", pending["interrupt_id"], "--reject", "not now")
    _constellation(ar).until("the end", lambda: ar.json("turns", "show", turn_id)["status"] == "succeeded")
    assert "not now" in ar("conversation", "show", "refused")
    assert "[reject]" in ar.out


def test_memory_is_put_listed_changed_searched_and_forgotten(ar: Commands) -> None:
    ar("memory", "put", "tone", "Plain\x1b[31m words\u202e, short.", "--tier", "workspace")
    ar("send", "shed", "remember: the ladder is red", "--wait")
    (ladder,) = ar.json("memory", "list", "--channel", "shed")
    assert (ladder["tier"], ladder["owner"], ladder["origin"]) == ("channel", "shed", "agent-produced")
    assert ladder["turn_id"] == ar.json("turns", "list", "--channel", "shed")[0]["turn_id"]
    tone = ar.json("memory", "get", "tone", "--tier", "workspace")
    assert (tone["origin"], tone["written_by"], tone["turn_id"], tone["form"]) == ("authored", "author", "", "text")
    for shown in (
        ar("memory", "list"),
        ar("memory", "get", "tone", "--tier", "workspace"),
        ar("memory", "list", "-o", "wide"),
    ):
        assert "Plain\\x1b[31m words\\u202e" in shown, "written out, never obeyed"
        assert "\x1b" not in shown
    ar("memory", "list", "-n", "1")
    assert "of which 1 are shown; the next: --cursor" in ar.err
    assert [row["key"] for row in ar.json("memory", "search", "red LADDER")] == [ladder["key"]]
    assert ar.json("memory", "search", "ladder", "--tier", "workspace") == []
    ar("memory", "update", ladder["key"], "the ladder is blue", "--channel", "shed")
    changed = ar.json("memory", "get", ladder["key"], "--channel", "shed")
    assert (changed["text"], changed["origin"], changed["entry_id"]) == (
        "the ladder is blue",
        "authored",
        ladder["entry_id"],
    )
    ar("memory", "forget", ladder["key"], "--channel", "shed")
    assert "the ladder is blue" in ar.err
    assert ar.json("memory", "list", "--channel", "shed") == []


def test_turns_are_listed_shown_by_prefix_and_cancelled(ar: Commands) -> None:
    ar("send", "turns", "hello", "--wait")
    (row,) = ar.json("turns", "list", "--channel", "turns")
    assert {"turn_id", "fire_id", "attempt", "status", "thread_id", "started_at", "ended_at"} <= set(row)
    assert ar.json("turns", "show", row["turn_id"][:12])["turn_id"] == row["turn_id"]
    assert ar.json("turns", "cancel", row["turn_id"])["status"] == "succeeded", "what is over stays as it was"
    assert "already ended" in ar.err
    assert ar.json("turns", "list", "--channel", "turns", "--status", "failed") == []
    assert "author" in ar("turns", "show", row["turn_id"])


def test_turns_of_all_channels_come_page_by_page_with_their_total(ar: Commands) -> None:
    for number in range(3):
        ar("send", f"page-{number}", "hello", "--wait")
    seen: list[str] = []
    cursor: list[str] = []
    for _ in range(99):
        seen += [row["turn_id"] for row in ar.json("turns", "list", "-n", "2", *cursor)]
        ar("turns", "list", "-n", "2", *cursor)
        if "--cursor" not in ar.err:
            break
        cursor = ["--cursor", ar.err.rpartition(" ")[2].strip()]
    every = [row["turn_id"] for row in ar.json("turns", "list", "-n", "999")]
    assert seen == every
    assert len(every) >= 3


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (("threads", "list"), "thread_id"),
        (("conversation", "list"), "channel"),
        (("memory", "list"), "entry_id"),
        (("memory", "search", "thing"), "entry_id"),
        (("approvals", "list", "--all"), "interrupt_id"),
        (("candidates", "list", "--all"), "candidate_id"),
        (("deviations", "list", "--all"), "deviation_id"),
        (("revalidation", "list", "--all"), "item_id"),
        (("workspace", "list"), "page_id"),
        (("workspace", "attachments", "paged"), "name"),
        (("categories", "list"), "name"),
        (("assistants", "list"), "name"),
        (("inbox", "list"), "agent"),
        (("inbox", "quarantine"), "name"),
    ],
)
def test_each_list_comes_page_by_page(ar: Commands, fire: Fire, argv: tuple[str, ...], key: str) -> None:
    if argv[0] == "workspace":
        ar("workspace", "put", "paged", "--body", "One.")
        ar("workspace", "put", "paged-too", "--body", "Two.")
    if not ar.json("candidates", "list", "--all"):
        fire("paged", "search: garden, then remember: one thing", channel="paged")
        ar("send", "paged", "remember: another thing", "--new", "--wait")
        ar("send", "paged-too", "hello", "--wait")
    every = [row[key] for row in ar.json(*argv, "-n", "999")]
    seen: list[str] = []
    cursor: list[str] = []
    for _ in range(len(every) + 1):
        seen += [row[key] for row in ar.json(*argv, "-n", "1", *cursor)]
        if "--cursor" not in ar.err:
            break
        assert f"{len(every)} in all, of which 1 are shown" in ar.err
        cursor = ["--cursor", ar.err.rpartition(" ")[2].strip()]
    assert seen == every
    assert (len(every) > 1) >= (key in {"thread_id", "channel"})


def test_a_page_and_an_entry_are_named_by_the_beginning_of_their_names(ar: Commands) -> None:
    ar("workspace", "put", "zebra-crossing", "--body", "White and black.")
    assert "White and black" in ar("workspace", "show", "zebra")
    assert "zebra stands for zebra-crossing" in ar.err
    ar("workspace", "show", "zebra-crosing", code=3)
    assert "did you mean zebra-crossing?" in ar.err
    ar("workspace", "put", "zebra-herd", "--body", "Many.")
    ar("workspace", "show", "zebra", code=4)
    assert "2 pages begin with 'zebra': zebra-crossing, zebra-herd" in ar.err
    ar("memory", "put", "quagga", "extinct", "--tier", "workspace")
    assert ar.json("memory", "get", "qua", "--tier", "workspace")["text"] == "extinct"
    ar("memory", "get", "quaga", "--tier", "workspace", code=3)
    assert "did you mean quagga?" in ar.err
    ar("memory", "update", "qua", "no more", "--tier", "workspace")
    ar("memory", "forget", "qua", "--tier", "workspace")
    assert "forgot quagga" in ar.err
    ar("memory", "put", "okapi", "striped", "--channel", "shed")
    ar("memory", "put", "okapi", "shy", "--tier", "workspace")
    ar("memory", "forget", "okapi", code=2)
    assert "2 entries have this key; give one of --channel shed, --tier workspace" in ar.err
    ar("memory", "forget", "okapi", "--tier", "workspace")
    ar("memory", "forget", "okapi")
    assert "forgot okapi, its text was: striped" in ar.err
    assert ar.json("categories", "show", "catch")["name"] == "catch-up-summary"
    ar("inbox", "list", "agemt0", code=3)
    assert "did you mean agent0?" in ar.err


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("threads", "list"), "succeeded"),
        (("approvals", "list"), "pending"),
        (("candidates", "list"), "candidate"),
        (("deviations", "list"), "open"),
        (("revalidation", "list"), "settled"),
    ],
)
def test_each_list_of_what_has_a_status_is_filtered_by_it(ar: Commands, argv: tuple[str, ...], status: str) -> None:
    found = ar.json(*argv, "--status", status)
    assert {row.get("status") or row.get("lifecycle") or row["state"] for row in found} <= {status}
    ar(*argv, "--status", "nosuch", code=2)
    assert "status" in ar.err


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("turns", "show", "nosuch"), 3, "nosuch"),
        (("turns", "cancel", "nosuch"), 3, "nosuch"),
        (("conversation", "show", "nosuch"), 3, "nosuch"),
        (("approvals", "show", "nosuch"), 3, "nosuch"),
        (("approvals", "resolve", "nosuch", "--approve"), 3, "nosuch"),
        (("candidates", "accept", "nosuch"), 3, "nosuch"),
        (("candidates", "show", ""), 3, "no candidate"),
        (("workspace", "show", "nosuch"), 3, "nosuch"),
        (("workspace", "put", "../x", "--body", "b"), 2, "../x"),
        (("workspace", "put", "x"), 2, "--file"),
        (("workspace", "put", "x", "--file", "/nosuch/file"), 3, "/nosuch/file"),
        (("categories", "show", "nosuch"), 3, "catch-up-summary"),
        (("memory", "get", "nosuch", "--tier", "workspace"), 3, "nosuch"),
        (("memory", "update", "nosuch", "x", "--tier", "workspace"), 3, "nosuch"),
        (("memory", "forget", "nosuch", "--channel", "general"), 3, "nosuch"),
        (("memory", "get", "x"), 3, "no memory entry 'x'"),
        (("memory", "put", "x", "y"), 2, "tier"),
        (("memory", "get", "x", "--tier", "attic"), 2, "attic"),
        (("memory", "list", "--tier", "attic"), 2, "attic"),
        (("memory", "put", "x", "y", "--tier", "channel"), 2, "--channel"),
        (("memory", "put", "x", "y", "--tier", "workspace", "--channel", "general"), 2, "--channel"),
        (("memory", "put", "x", "y", "--thread", "a", "--channel", "b"), 2, "--thread"),
        (("memory", "put", "x", " ", "--tier", "account"), 2, "empty"),
        (("memory", "put", "", "y", "--tier", "account"), 2, "key"),
        (("memory", "search", " "), 2, "words"),
        (("send", "general", "hi", "--new", "--thread", "x"), 2, "--thread"),
        (("send", "general", ""), 2, "text"),
        (("send", "general", "hi", "--wait", "--timeout", "soon"), 2, "duration"),
        (("turns", "lst"), 2, "list"),
        (("serve",), 4, "already runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_line_with_its_exit_code(ar: Commands, argv: tuple[str, ...], code: int, says: str) -> None:
    ar(*argv, code=code)
    assert ar.err.startswith("error: ")
    assert len(ar.err.splitlines()) == 1
    assert says in ar.err
    assert ar.out == ""


# A process that a shell started in the background ignores Ctrl-C, and so would its children, which the tests may be.
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("agent_runtime", run_name="__main__")
"""


def test_following_prints_what_comes_until_ctrl_c(ar: Commands, daemon: Constellation) -> None:
    ar("send", "live", "search: first", "--wait")
    argv = [sys.executable, "-c", INTERRUPTIBLE, "--home", str(daemon.home.root), "conversation", "show", "live", "-f"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert any("search: first" in line for line in iter(following.stdout.readline, ""))
        ar("send", "live", "search: second", "--wait")
        assert any("search: second" in line for line in iter(following.stdout.readline, ""))
        following.send_signal(2)
        following.communicate()
    assert following.returncode == 130


def test_beside_a_store_that_nobody_serves(daemon: Constellation, ar: Commands, down: Commands) -> None:
    """Reading works from a copy of the store; changing says how to start the daemon."""
    ar("send", "copy", "remember: this", "--wait")
    served = ar.json("conversation", "show", "copy")
    for name in ("agent.db", "agent.db-wal", "agent.db-shm"):
        if (source := daemon.home.agent_db.with_name(name)).exists():
            shutil.copy(source, down._home.agent_db.with_name(name))
    assert down.json("conversation", "show", "copy") == served
    assert "does not answer" in down.err
    (entry,) = down.json("memory", "list", "--channel", "copy")
    assert entry == down.json("memory", "get", entry["key"], "--channel", "copy")
    assert [entry] == down.json("memory", "search", "this", "--channel", "copy")
    turn_id = served[0]["turn_id"]
    assert down.json("turns", "show", turn_id)["turn_id"] == turn_id
    for listing in ("conversation", "turns", "approvals", "candidates", "workspace", "memory"):
        assert isinstance(down.json(listing, "list"), list)
    down("send", "copy", "hello", code=5)
    assert "turnkeeper up" in down.err
    for change in (
        ("turns", "cancel", turn_id), ("approvals", "resolve", "x", "--approve"), ("candidates", "accept", "x"),
        ("workspace", "put", "x", "--body", "b"), ("memory", "put", "x", "y", "--tier", "account"),
        ("memory", "update", "x", "y", "--tier", "account"), ("memory", "forget", "x", "--tier", "account"),
    ):  # fmt: skip
        down(*change, code=5)


def test_before_anything_ran_lists_are_empty(down: Commands) -> None:
    for listing in ("conversation", "turns", "approvals", "candidates", "workspace", "memory"):
        assert down.json(listing, "list") == []
    down("workspace", "show", "x", code=3)
    down("memory", "get", "x", "--tier", "account", code=3)


def test_categories_are_listed_shown_and_checked_without_a_daemon(down: Commands) -> None:
    down._home.categories.joinpath("broken.toml").write_text('name = "broken"\n[scopes]\ntools = ["nosuch"]\n')
    down._home.categories.joinpath("conversation.toml").write_text('name = "conversation"\n')
    rows = {row["name"]: row for row in down.json("categories", "list")}
    assert "broken.toml:3: scopes.tools" in rows["broken"]["problem"]
    assert rows["conversation"]["overrides_shipped"]
    assert "overrides the shipped category" in down("categories", "show", "conversation")
    down("categories", "check", code=2)
    assert "unknown scope 'nosuch'" in down.out
    down("categories", "check", str(down._home.categories / "conversation.toml"))


def test_a_command_starts_without_the_heavy_libraries() -> None:
    heavy = "{'langgraph', 'langchain', 'langchain_core', 'sqlalchemy', 'pydantic', 'alembic'}"
    code = f"import sys, agent_runtime.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_thread_is_described_found_and_read_by_itself(ar: Commands) -> None:
    made = ar.json("threads", "put", "--channel", "beds", "--metadata", "owner=ada", "--metadata", '{"n": {"a": 1}}')
    assert made["metadata"] == {"owner": "ada", "n": {"a": 1}}
    thread = made["thread_id"]
    assert ar("conversation", "show", "--thread", thread) == ""
    assert "no turn has begun here yet" in ar.err
    ar("send", "beds", "first", "--thread", thread, "--wait", "--category", "loop")
    ar("send", "beds", "elsewhere", "--new", "--wait")
    ar("send", "beds", "second", "--thread", thread, "--wait")
    assert [row["thread_id"] for row in ar.json("threads", "list", "--metadata", "owner=ada")] == [thread]
    assert ar.json("threads", "list", "--metadata", "owner=ben") == []
    assert "ada" in ar("threads", "show", thread)
    first, second = ar.json("conversation", "show", "--thread", thread)
    assert [row["messages"][0]["text"] for row in (first, second)] == ["first", "second"]
    assert [row["category"] for row in (first, second)] == ["loop", "conversation"]
    assert {row["via"] for row in (first, second)} == {"agent-runtime/cli"}
    assert [row["turn_id"] for row in ar.json("conversation", "show", "--thread", thread, "-n", "1")] == [
        second["turn_id"]
    ]
    cursor = ar.err.split("--cursor ")[1].split()[0]
    assert [row["turn_id"] for row in ar.json("conversation", "show", "--thread", thread, "--cursor", cursor)] == [
        first["turn_id"]
    ]
    ar("threads", "put", thread, "--new", code=4)
    ar("threads", "put", code=2)
    ar("threads", "put", thread, "--metadata", "nothing", code=2)
    ar("conversation", "show", code=2)
    ar("conversation", "show", "--thread", "nosuch", code=3)
    ar("send", "beds", "x", "--agent", "agent9", code=2)


def test_namespaces_of_the_memory_are_listed(ar: Commands) -> None:
    ar("memory", "put", "beds/north/first", '{"crop": "peas"}', "--tier", "workspace", "--as-json")
    ar("memory", "put", "beds/south/first", "beans", "--tier", "workspace")
    entry = ar.json("memory", "get", "beds/north/first", "--tier", "workspace")
    assert (entry["form"], entry["namespace"], entry["item_key"]) == ("json", ["workspace", "beds", "north"], "first")
    assert entry["via"] == "agent-runtime/cli"
    assert ar.json("memory", "namespaces", "workspace", "beds") == [
        {"namespace": ["workspace", "beds", "north"], "entries": 1},
        {"namespace": ["workspace", "beds", "south"], "entries": 1},
    ]
    assert ar.json("memory", "namespaces", "workspace", "--depth", "2", "--suffix", "south") == [
        {"namespace": ["workspace", "beds"], "entries": 1}
    ]
    assert "workspace / beds / north" in ar("memory", "namespaces")
    ar("memory", "put", "k", "{", "--tier", "workspace", "--as-json", code=2)
