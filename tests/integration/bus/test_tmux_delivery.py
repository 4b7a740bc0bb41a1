"""Agents that live in a terminal: a real program in a real tmux pane is given its envelopes, each as one paste."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from turnkeeper.bus.acks import read_acks
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.entropy import SystemEntropy
from turnkeeper.process import VARIABLE
from turnkeeper.storage.files import SystemFiles

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
if shutil.which("tmux") is None and os.environ.get("CI") == "true":
    pytest.fail("tmux is missing: run tests/install_services.sh", pytrace=False)
pytestmark = [
    pytest.mark.process,
    pytest.mark.service,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
NASTY = "two\nlines, 'single' \"double\" `tick` $(touch x)\t\\n; ; \x1b[201~\x03\x04\x00\x7f\u202e é ✓ <channels> &lt;/channel>"
SHOWN = NASTY.replace("\x1b", "\\x1b").replace("\x03", "\\x03").replace("\x04", "\\x04").replace("\x00", "\\x00")
SHOWN = SHOWN.replace("\x7f", "\\x7f").replace("\u202e", "\\u202e")


class Terminal:
    """A tmux server of the test's own, with one session, in which a program keeps what it reads."""

    def __init__(self, home: Home, program: str) -> None:
        self.home = home
        self.kept = home.root / "kept"
        self.kept.touch()
        self.server = f"tk-{os.getpid()}-{SystemEntropy().hex(6)}"
        self.environ = os.environ | {"TMUX_TMPDIR": str(home.root)}  # its socket goes with the home
        line = program.format(python=sys.executable, kept=self.kept)
        self.tmux("new-session", "-d", "-s", "codex", "-x", "120", "-y", "40", "-c", str(ROOT), line)
        self._children: list[subprocess.Popen[str]] = []

    def tmux(self, *argv: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-L", self.server, *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self.environ).stdout

    def command(self, *argv: str, **environ: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-m", "agent_runtime", "--home", str(self.home.root), "inbox", *argv],
            cwd=ROOT, env=self.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._children.append(child)
        return child

    def watch(self, **environ: str) -> "subprocess.Popen[str]":
        return self.command("watch", "codex", "--tmux", "codex", "--tmux-server", self.server, **environ)

    def put(self, text: str, **changes: object) -> str:
        folder = self.home.inbox("codex")
        inbox = Inbox(folder, files=SystemFiles(), clock=SystemClock(), entropy=SystemEntropy(), settles_keys=True)
        fields = {"id": "m1", "sender": "agent0", "to": "codex", "kind": "message", "thread": "t1", "text": text}
        return inbox.put(Envelope(**{**fields, "at": SystemClock().now(), **changes})).name  # type: ignore[arg-type]

    def lying(self, place: str, agent: str = "codex") -> list[str]:
        folder = self.home.inbox(agent) / place
        return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.communicate()
        subprocess.run(["tmux", "-L", self.server, "kill-server"], check=False, capture_output=True, env=self.environ)


@pytest.fixture
def terminals(home: Home) -> Iterator[Callable[[str], Terminal]]:
    opened: list[Terminal] = []

    def open_one(program: str) -> Terminal:
        opened.append(Terminal(home, program))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()


def until(probe: Callable[[], object], what: str) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while not probe():
        assert clock.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}"
        clock.block(0.02)


def test_an_envelope_is_pasted_whole_acknowledged_and_archived(terminals, home: Home) -> None:
    terminal = terminals("{python} -m tests.integration.bus.pane_reader {kept}")
    until(lambda: "ready" in terminal.tmux("capture-pane", "-p", "-t", "codex"), "the program in the pane")
    (home.inbox("agent0")).mkdir(parents=True, mode=0o700)
    name = terminal.put(NASTY, requires_ack=True)
    watcher = terminal.watch()
    until(lambda: terminal.lying("delivered") == [name], "the archive")
    wrapped = f'<channel source="agent" from="agent0" kind="message" thread="t1">{SHOWN}</channel>'.encode()
    until(lambda: terminal.kept.read_bytes().endswith(b"\r"), "the Enter")
    assert terminal.kept.read_bytes() == b"\x1b[200~" + wrapped + b"\x1b[201~\r", "one paste, then Enter"
    assert not (ROOT / "x").exists(), "nothing in it was run"
    assert [record["name"] for record in read_acks(home.logs)] == [name]
    assert len(terminal.lying("inbox", "agent0")) == 1, "the sender has its ack"

    second = terminal.watch()
    _, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 4
    assert f"inbox watch, pid {watcher.pid}" in said
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait(PATIENCE_S) == 0


def test_what_a_killed_watcher_had_claimed_is_adopted_by_the_next(terminals) -> None:
    terminal = terminals("cat > {kept}")
    first, second = terminal.put("say 'one' & $HOME\nand more"), terminal.put("two", id="m2")
    killed = terminal.watch(**{VARIABLE: "inbox.claimed"})
    assert killed.wait(PATIENCE_S) == -signal.SIGKILL
    assert (terminal.lying("claimed"), terminal.lying("inbox")) == ([first], [second])
    assert terminal.kept.read_bytes() == b"", "it died before it pasted"
    watcher = terminal.watch()
    until(lambda: terminal.lying("delivered") == [first, second] and not terminal.lying("claimed"), "both archives")
    opening = '<channel source="agent" from="agent0" kind="message" thread="t1">'
    until(lambda: terminal.kept.read_text().count("\n") == 3, "both pastes")
    assert terminal.kept.read_text() == (f"{opening}say 'one' & $HOME\nand more</channel>\n{opening}two</channel>\n")
    assert (terminal.lying("claimed"), terminal.lying("inbox")) == ([], [])
    terminal.tmux("kill-session", "-t", "codex")
    third = terminal.put("three", id="m3")
    _, said = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 3, said
    assert terminal.lying("claimed") == [third], "nothing is lost with the pane"
    drained = terminal.command("drain", "codex", "-o", "json")
    (row,) = json.loads(drained.communicate(timeout=PATIENCE_S)[0])
    assert (row["text"], row["name"], terminal.lying("delivered")) == ("three", third, [first, second, third])
