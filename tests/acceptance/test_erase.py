"""A person's texts are erased from a home: no byte of them is left in it, and the records still verify."""

import socket
from typing import Any

import pytest

from tests.support.constellation import Constellation
from turnkeeper.constellation.query.tables import TABLES
from turnkeeper.constellation.upkeep.erase import mask_of

pytestmark = pytest.mark.process

PERSON = "Zoë Ångström"
FACT = f'{PERSON} prefers "green" tea'
OF_JONAS = ("boat", "barn", "roof", "mill")


def spoken(constellation: Constellation) -> None:
    """Let the name into a prompt, an answer, a question with arguments, the memory, envelopes and checkpoints."""
    constellation.create("errand", "--in", "1s", "--prompt", f"Summarise the garden, then remember: {FACT}")
    constellation.until_outcome("errand", "interrupted")
    (pending,) = constellation.ask("agent-runtime", "approvals", "list")
    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    constellation.until_outcome("errand", "succeeded")
    constellation.command("agent-runtime", "send", "general", f"What do you know of {PERSON.upper()}?", "--wait")
    (newest, *_) = constellation.ask("agent-runtime", "turns", "list", "--channel", "general")
    about = ("--metadata", f"about={PERSON}", "--metadata", "plan=under the apple tree")
    constellation.command("agent-runtime", "threads", "put", newest["thread_id"], *about)
    constellation.command("agent-runtime", "send", "other", "What is the weather like in the garden?", "--wait")
    constellation.command("task-runner", "delete", "errand", "--yes")


def holding(constellation: Constellation, text: str) -> set[str]:
    """Return where a byte search finds a text, in any case and as JSON writes it."""
    root, mask = constellation.home.root, mask_of([text])
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path.name for path in files if mask.of_bytes(path.read_bytes()) is not None}


def shown(constellation: Constellation) -> str:
    """Return all that trails, logs, metrics, queries, the timeline and the report show."""
    home = constellation.home
    said = [path.read_text(errors="replace") for path in home.logs.iterdir()]
    for process in ("task-runner", "agent-runtime"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(home.http(process)))
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            said.append(b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode())
    asked = [("query", f"SELECT * FROM {table}", "-o", "json") for table in TABLES]
    said += [constellation.command("turnkeeper", *each) for each in asked]
    said.append(constellation.command("turnkeeper", "events", "--limit", "0", "-o", "json"))
    said.append(constellation.command("turnkeeper", "report", "-o", "html"))
    return "\n".join(said)


def erase(constellation: Constellation, *options: str, code: int = 0) -> Any:
    done = constellation.attempt("turnkeeper", "erase", *options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_name_is_erased_from_all_of_a_home_which_then_verifies_and_runs_on(constellation: Constellation) -> None:
    spoken(constellation)
    seen = shown(constellation)
    assert "errand" in seen
    assert "turnkeeper_turns_total" in seen
    assert mask_of([PERSON]).of(seen) is None, "words of people show nowhere, unless the author allows it"
    allowed = constellation.home.config.read_text().replace("[query]\n", "[query]\ntexts = true\n")
    constellation.home.config.write_text(allowed)
    assert PERSON in constellation.command("turnkeeper", "query", "SELECT text FROM messages")
    assert "runs" in erase(constellation, "--text", PERSON, "--yes", code=4).stderr
    constellation.stop()
    before = holding(constellation, PERSON)
    assert {"agent.db", "checkpoints.db", "schedules.db"} <= before
    assert "agent.db messages" in erase(constellation, "--text", PERSON, "--dry-run").stdout
    assert holding(constellation, PERSON) == before, "a rehearsal changes nothing"
    assert "give --yes" in erase(constellation, "--text", PERSON, code=2).stderr

    erase(constellation, "--text", PERSON, "--yes")
    assert holding(constellation, PERSON) == set()
    constellation.command("turnkeeper", "audit", "verify")
    constellation.start()
    constellation.command("agent-runtime", "send", "general", "Hello again", "--wait")
    assert holding(constellation, PERSON) == set()
    constellation.command("turnkeeper", "audit", "verify")


def test_all_that_was_said_in_a_channel_is_erased_and_nothing_of_another(constellation: Constellation) -> None:
    spoken(constellation)
    constellation.stop()
    erase(constellation, "--channel", "general", "--text", "green", "--yes")
    assert holding(constellation, FACT) == set()
    assert holding(constellation, "Summarise the garden, then remember") == set()
    assert holding(constellation, "under the apple tree") == set()
    assert "agent.db" in holding(constellation, "What is the weather like in the garden?")
    constellation.command("turnkeeper", "audit", "verify")
    constellation.start()
    (_, newest) = constellation.conversation("general")
    assert newest["status"] == "succeeded"
    constellation.command("agent-runtime", "send", "general", "Hello again", "--wait")


def test_what_is_open_keeps_what_it_needs(constellation: Constellation) -> None:
    constellation.create("errand", "--in", "1s", "--prompt", f"Summarise the garden, then remember: {FACT}")
    constellation.until_outcome("errand", "interrupted")
    constellation.stop()
    assert "is not over" in erase(constellation, "--text", PERSON, "--yes", code=4).stderr
    assert "is not over" in erase(constellation, "--channel", "general", "--yes", code=4).stderr
    assert "too short" in erase(constellation, "--text", "a", "--yes", code=2).stderr


def test_one_turn_one_thread_and_one_task_are_emptied_and_nothing_else(constellation: Constellation) -> None:
    words = {name: f"the {name} of Jonas Birkeland is {number} years old" for number, name in enumerate(OF_JONAS)}
    for name in ("boat", "barn", "roof"):  # the newer two share a thread
        options = ["--new"] if name != "roof" else []
        constellation.command("agent-runtime", "send", "general", words[name], *options, "--wait")
    constellation.create("errand", "--in", "1s", "--prompt", words["mill"], channel="tasks")
    constellation.until_outcome("errand", "succeeded")
    boat = constellation.conversation("general")
    constellation.stop()
    told = {name: text for name, text in words.items() if holding(constellation, text)}
    assert told == words
    by_text = {name: turn for turn in boat for name in words if words[name] in turn["messages"][0]["text"]}
    assert by_text["barn"]["thread_id"] == by_text["roof"]["thread_id"] != by_text["boat"]["thread_id"]
    erased = [
        (("--turn", by_text["boat"]["turn_id"]), {"boat"}),
        (("--thread", by_text["roof"]["thread_id"]), {"barn", "roof"}),
    ]
    gone: set[str] = set()
    for options, names in erased:
        erase(constellation, *options, "--yes")
        gone |= names
        assert {name for name in words if not holding(constellation, words[name])} == gone
        constellation.command("turnkeeper", "audit", "verify")
    told_so = erase(constellation, "--task", "errand", "--yes", code=1).stdout
    assert "stays: task errand: its definition; edit or delete it" in told_so
    constellation.start()
    constellation.command("task-runner", "delete", "errand", "--yes")
    constellation.stop()
    erase(constellation, "--task", "errand", "--yes")
    assert not [text for text in words.values() if holding(constellation, text)]
    constellation.command("turnkeeper", "audit", "verify")


def test_pages_their_proposals_and_attachments_are_erased_where_that_is_asked_for(constellation: Constellation) -> None:
    name = "Jonas Birkeland"
    file = constellation.home.root.parent / "phones.csv"
    file.write_text(f"{name},123\n")
    body = f"# Neighbours\n\n{name} lends his ladder.\n"
    for text in (body, "# Neighbours\n\nNobody lends a ladder.\n"):  # of which the earlier is kept as a version
        constellation.command("agent-runtime", "workspace", "put", "neighbours", "--body", text)
    constellation.command("agent-runtime", "workspace", "attach", "neighbours", str(file))
    constellation.stop()
    file.unlink()
    kept = erase(constellation, "--text", name, "--yes", code=1).stdout
    assert "give --pages" in kept
    assert "still in state/agent.db" in kept
    erase(constellation, "--text", name, "--pages", "--yes")
    assert holding(constellation, name) == set()
    constellation.command("turnkeeper", "audit", "verify")
    constellation.start()
    assert "Nobody lends" in constellation.command("agent-runtime", "workspace", "show", "neighbours")


@pytest.mark.sqlite_only("a setting names a server that need not be there")
def test_what_is_on_a_server_is_not_erased_from_here(stopped: Constellation) -> None:
    stopped.home.config.write_text('[store]\nurl = "postgresql://nobody@127.0.0.1:1/none"\n')
    assert "turns and checkpoints are on a server" in erase(stopped, "--text", PERSON, "--yes", code=2).stderr
