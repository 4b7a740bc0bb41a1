"""Two homes with keys of their own, real processes, TCP on loopback: work goes to a peer once, and its answer comes back once."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.constellation import Constellation
from tests.support.program import PEERS
from tests.support.web import free_port
from turnkeeper.config.home import Home
from turnkeeper.constellation.peers.__main__ import NICE
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, process_of

pytestmark = pytest.mark.process


class Pair:
    """Ada's home and Bob's, paired."""

    def __init__(self, folder: Path) -> None:
        self.ada, self.bob = (Constellation(Home(root=folder / name)) for name in ("ada", "bob"))
        for one in (self.ada, self.bob):
            one.home.create()
            one.home.config.write_text(
                f'[peers]\nenabled = true\nlisten = "127.0.0.1:{free_port()}"\n[watchdog]\ninterval_s = 1\n'
            )
            one.command("turnkeeper", "up")
        invitation = folder / "invitation"
        invitation.write_text(self.ada.command("turnkeeper", "peers", "invite", "bob"))
        self.bob.command("turnkeeper", "peers", "add", "ada", str(invitation))

    def stop(self) -> None:
        for one in (self.ada, self.bob):
            one.stop()

    def tell(self, text: str) -> None:
        """Let Ada's agent0 send a message to Bob's."""
        self.ada.command("agent-runtime", "send", "general", f"tell agent0@bob: {text}")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    made = Pair(folder)
    yield made
    made.stop()
    shutil.rmtree(folder)


def of_peer(constellation: Constellation, channel: str, peer: str) -> list[str]:
    """Return what a peer's agent said in a channel, one text for each turn about it."""
    if channel not in {one["channel"] for one in constellation.ask("agent-runtime", "conversation", "list")}:
        return []
    said = [str(turn["messages"][0]["text"]) for turn in constellation.conversation(channel, 500)]
    return [text for text in said if text.startswith(f"{peer} to agent0: ")]


def test_work_goes_there_and_its_answer_comes_back_to_who_asked(pair: Pair) -> None:
    pair.tell("boats")
    pair.ada.until("the answer", lambda: of_peer(pair.ada, "general", "agent0@bob"))
    assert of_peer(pair.bob, "agent0@ada", "agent0@ada") == ["agent0@ada to agent0: boats"]
    (said,) = of_peer(pair.ada, "general", "agent0@bob")
    assert "Nothing about boats" in said
    turns = [*pair.ada.ask("agent-runtime", "turns", "list"), *pair.bob.ask("agent-runtime", "turns", "list")]
    assert sorted(turn["category"] for turn in turns) == ["conversation", "peer", "peer"]

    pair.ada.create("ask", "--in", "1s", "--agent", "agent0@bob", "--prompt", "What of rivers?", channel="tasks")
    pair.ada.until("the fire's answer", lambda: of_peer(pair.ada, "tasks", "agent0@bob"))
    (fire,) = pair.ada.until(
        "the fire to be settled",
        lambda: [one for one in pair.ada.ask("task-runner", "history", "ask") if one["outcome"] != "accepted"],
    )
    assert (fire["outcome"], fire["reason"]) == ("succeeded", "delivered")
    assert [row["state"] for row in pair.ada.ask("turnkeeper", "peers", "status")] == ["reachable"]
    (process,) = filter(None, [process_of(pair.ada.home, PEERS)])
    lower = "strangers who connect take no time from fires"
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE), lower
    assert pair.ada.violations(drained=False) == pair.bob.violations(drained=False) == []


def test_what_a_peer_asks_for_beyond_its_category_waits_for_the_author_over_there(pair: Pair) -> None:
    before, heard = (
        len(pair.bob.ask("agent-runtime", "memory", "list")),
        len(of_peer(pair.ada, "general", "agent0@bob")),
    )
    pair.tell("remember: the boats are red")
    (asked,) = pair.bob.until("the question", lambda: pair.bob.ask("agent-runtime", "approvals", "list"))
    assert (asked["channel"], asked["tool"]) == ("agent0@ada", "memory_put")
    assert pair.ada.ask("agent-runtime", "approvals", "list") == [], "who asks decides nothing"
    assert len(pair.bob.ask("agent-runtime", "memory", "list")) == before
    pair.bob.command("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--reject", "not here")
    pair.ada.until("the answer", lambda: len(of_peer(pair.ada, "general", "agent0@bob")) == heard + 1)
    assert len(pair.bob.ask("agent-runtime", "memory", "list")) == before


def test_each_of_many_is_done_once_and_answered_once_while_processes_of_both_sides_are_killed(pair: Pair) -> None:
    done, back = len(of_peer(pair.bob, "agent0@ada", "agent0@ada")), len(of_peer(pair.ada, "general", "agent0@bob"))
    victims = [(pair.bob, PEERS), (pair.ada, PEERS), (pair.bob, AGENT_RUNTIME), (pair.bob, PEERS)]
    for number in range(3 * len(victims)):
        pair.tell(f"boat {number}")
        where, daemon = victims[number // 3]
        process = process_of(where.home, daemon) if number % 3 == 2 else None
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
    many = 3 * len(victims)
    answers = "every answer", lambda: len(of_peer(pair.ada, "general", "agent0@bob")) == back + many
    pair.ada.until(*answers, timeout_s=60)
    there = of_peer(pair.bob, "agent0@ada", "agent0@ada")[done:]
    assert sorted(there) == sorted(f"agent0@ada to agent0: boat {number}" for number in range(many))
    assert len(of_peer(pair.ada, "general", "agent0@bob")) == back + many

    def unanswered() -> list[int]:
        return [row["unanswered"] for row in pair.bob.ask("turnkeeper", "peers", "status")]

    pair.bob.until("the receipt of each answer", lambda: unanswered() == [0])


def test_a_peer_that_was_removed_comes_in_no_more(pair: Pair) -> None:
    pair.bob.command("turnkeeper", "peers", "delete", "ada", "--yes")
    assert pair.bob.ask("turnkeeper", "peers", "list") == []
    done = len(of_peer(pair.bob, "agent0@ada", "agent0@ada"))
    pair.bob.until("peers to forget it", lambda: not list(pair.bob.home.run.glob("p-*")))
    assert not pair.bob.home.inbox("agent0@ada").exists(), "who sends to it is told that there is no such worker"
    pair.tell("anybody there?")
    pair.ada.until(
        "it to be refused",
        lambda: [r["state"] for r in pair.ada.ask("turnkeeper", "peers", "status")] == ["unreachable"],
    )
    assert len(of_peer(pair.bob, "agent0@ada", "agent0@ada")) == done
    assert [row["waiting"] for row in pair.ada.ask("turnkeeper", "peers", "status")] == [1], "it waits"
