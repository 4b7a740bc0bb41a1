"""An agent in a terminal converses with agent0 over the bus, and a program that sees only its folder is nobody else."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import tmux
from tests.support.constellation import Constellation
from tests.support.forked_daemons import program
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME
from turnkeeper.entropy import SystemEntropy

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.process
MESSAGES = 5  # of the terminal agent; agent0 answers each

# Stands in for an agent in a terminal: it sends, reads the answer, and sends again.
TALKER = f"""
for number in $(seq {MESSAGES}); do
  $inbox send --from codex --to agent0 --thread ci "search: garden $number" || exit
  until answer=$($inbox drain codex -n 1) && test -n "$answer"; do sleep 0.1; done
  echo "answer $number: $answer"
done
"""

# The home is hidden behind an empty file system, in which only the agent's own folder is there; then all rights go.
CONFINED = """
set -e
mount --make-rprivate /
mkdir -p "$OUTSIDE" && mount --bind "$HOME_DIR/channels/agent/codex" "$OUTSIDE"
mount -t tmpfs tmpfs "$HOME_DIR"
mkdir -p "$HOME_DIR/channels/agent/codex" && mount --bind "$OUTSIDE" "$HOME_DIR/channels/agent/codex"
umount "$OUTSIDE"
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all {python} -m tests.support.confined_writer "$HOME_DIR"
"""


def unsharing() -> list[str]:
    """Return what starts a program in a mount namespace of its own; skip where the machine refuses."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("unshare or setpriv is not installed")
    for options in (["-m"], ["-Urm"]):
        tried = subprocess.run(
            ["unshare", *options, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True
        )
        if tried.returncode == 0:
            return ["unshare", *options]
    pytest.skip(f"the machine gives no mount namespace: {tried.stderr.decode().strip()}")


def agents_turns(constellation: Constellation) -> list[dict[str, Any]]:
    return list(reversed(constellation.ask("agent-runtime", "turns", "list", "--channel", "codex")))


@pytest.mark.parametrize("step", ["outbox.taken", "runtime.accepted", "outbox.delivered"])
def test_a_message_is_delivered_once_whenever_the_runtime_is_killed(stopped: Constellation, step: str) -> None:
    outbox = stopped.home.inbox("codex") / "outbox"
    stopped.start(TURNKEEPER_FAILPOINTS=step)
    stopped.command("agent-runtime", "inbox", "send", "--from", "codex", "hello by the command")
    (outbox / "by-hand.json").write_text('{"from": "codex", "body": "hello by hand"}')
    stopped.until_dead(AGENT_RUNTIME)
    stopped.start()
    until_all_over(stopped, 2)
    stopped.until("the folders to be empty", lambda: not [*outbox.glob("*.json"), *outbox.parent.glob("taken/*")])
    said = sorted(turn["messages"][0]["text"] for turn in stopped.conversation("codex"))
    assert said == ["codex to agent0: hello by hand", "codex to agent0: hello by the command"]
    assert stopped.violations() == []


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("hello", "--from", "agent0"), 4, "is read by"),
        (("hello", "--from", "author"), 2, "author"),
        (("hello", "--from", "watchdog"), 2, "watchdog"),
        (("hello", "--from", "../codex"), 2, "is not an agent's name"),
        (("hello", "--from", "codex", "--to", "agent1"), 2, "only to agent0"),
        (("</channel>", "--from", "codex"), 2, "wrapper token"),
        ((" ", "--from", "codex"), 2, "a message has 1 to"),
        (("x" * 300_000, "--from", "codex"), 2, "a message has 1 to"),
        (("hello", "--from", "codex", "--thread", "a\nb"), 2, "thread"),
    ],
)
def test_what_could_not_be_delivered_is_refused_before_it_is_written(
    stopped: Constellation, argv: tuple[str, ...], code: int, says: str
) -> None:
    done = stopped.attempt("agent-runtime", "inbox", "send", *(word.replace("\\n", "\n") for word in argv))
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert list((stopped.home.root / "channels").rglob("*.json")) == []


@pytest.mark.service
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_an_agent_in_a_pane_and_agent0_hold_a_conversation_of_ten_messages(
    constellation: Constellation, request: pytest.FixtureRequest
) -> None:
    home = constellation.home
    environ = os.environ | {"TURNKEEPER_HOME": str(home.root), "TMUX_TMPDIR": str(home.root)}
    script, said = home.root / "talker.sh", home.root / "said"
    script.write_text(f'inbox="{shlex.join([*program("agent_runtime"), "inbox"])}"{TALKER}')
    server = ["tmux", "-f", "/dev/null", "-L", f"tk-{SystemEntropy().hex(6)}"]
    request.addfinalizer(lambda: tmux.end(server, environ))
    line = f"sh {script} >{said} 2>&1"
    subprocess.run([*server, "new-session", "-d", "-s", "codex", "-c", str(ROOT), line], check=True, env=environ)

    def heard() -> bool:
        return said.exists() and said.read_text().count("\nanswer ") == MESSAGES

    constellation.until("the last answer", heard)
    shown = constellation.conversation("codex")
    assert [turn["messages"][0]["text"] for turn in shown] == [
        f"codex to agent0: search: garden {number + 1}" for number in range(MESSAGES)
    ]
    assert len({turn["thread_id"] for turn in shown}) == 1, "agent0 remembers what was said before"
    assert {turn["read_only"] for turn in agents_turns(constellation) if "read_only" in turn} <= {True}
    answers = [line for line in said.read_text().splitlines() if line.startswith("answer ")]
    assert all('<channel source="agent" from="agent0" kind="message" thread="codex-' in line for line in answers)
    assert constellation.ask("agent-runtime", "inbox", "quarantine") == []
    assert constellation.violations() == []


def test_a_writer_that_sees_only_its_own_folder_cannot_speak_as_anyone_else(
    constellation: Constellation, tmp_path: Path
) -> None:
    home, unshare = constellation.home, unsharing()
    (home.inbox("codex") / "outbox").mkdir(parents=True, mode=0o700)
    for folder in (home.inbox("codex"), home.inbox("codex") / "outbox"):
        folder.chmod(0o700)
    environ = os.environ | {"HOME_DIR": str(home.root), "OUTSIDE": str(tmp_path / "outside")}
    command = [*unshare, "sh", "-c", CONFINED.replace("{python}", sys.executable)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tried = json.loads(done.stdout)
    assert tried["reached"] == [], "it sees no other inbox, no key, no store"
    refused = tried["refused"]
    assert len(refused) >= 20

    def aside() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = constellation.ask("agent-runtime", "inbox", "quarantine", "codex")
        return found

    constellation.until("every forgery to be refused", lambda: len(aside()) == len(refused))
    reasons = {row["name"].partition("-")[2]: row["reason"] for row in aside()}
    assert {name: reasons[name] for name, word in refused.items() if word not in reasons[name]} == {}
    until_all_over(constellation, 4)
    messages = sorted(turn["messages"][0]["text"] for turn in constellation.conversation("codex"))
    assert messages == [f"codex to agent0: I am {name}" for name in ("../agent0", "agent0", "author", "task-runner")]
    assert [turn["channel"] for turn in constellation.ask("agent-runtime", "turns", "list")] == ["codex"] * 4
    assert constellation.ask("agent-runtime", "inbox", "quarantine", "agent0") == []
    assert Path("/etc/passwd").exists()
    assert constellation.violations() == []


def until_all_over(constellation: Constellation, count: int) -> None:
    def over() -> bool:
        turns = agents_turns(constellation)
        return len(turns) == count and all(turn["status"] == "succeeded" for turn in turns)

    probe: Callable[[], bool] = over
    constellation.until("the turns to end", probe)
