"""Agents that live in a terminal: a real program in a real tmux pane is given its envelopes, and nothing else is."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.support import forked_daemons, tmux
from turnkeeper.bus.acks import read_acks
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.entropy import SystemEntropy
from turnkeeper.rpc.process import VARIABLE
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
AGENT = "{python} {agent} {kept}"
NASTY = "two\nlines, 'single' \"double\" `tick` $(touch x)\t\\n; ; \x1b[201~\x03\x04\x00\x7f\u202e é ✓ <channels> &lt;/channel>"
SHOWN = NASTY.replace("\x1b", "\\x1b").replace("\x03", "\\x03").replace("\x04", "\\x04").replace("\x00", "\\x00")
SHOWN = SHOWN.replace("\x7f", "\\u007f").replace("\u202e", "\\u202e")


class Terminal:
    """A tmux server of the test's own, with one session, in whose shell a program keeps what it reads."""

    def __init__(self, home: Home, program: str, shell: str = "bash --norc --noprofile") -> None:
        self.home = home
        self.kept = home.root / "kept"
        self.kept.touch()
        self.server = f"tk-{os.getpid()}-{SystemEntropy().hex(6)}"
        self.watching = ("watch", "codex", "--tmux", "codex", "--tmux-server", self.server)
        self.environ = os.environ | {"TMUX_TMPDIR": str(home.root)}  # its socket goes with the home
        self.agent = home.root / "aider"
        self.agent.write_text("from tests.integration.bus.pane_agent import main\nmain()\n")
        self.environ |= {"PYTHONPATH": str(ROOT), "PS1": "$ ", "ENV": ""}
        self.tmux("new-session", "-d", "-s", "codex", "-x", "120", "-y", "40", "-c", str(home.root), shell)
        self.line = program.format(python=sys.executable, kept=self.kept, agent=self.agent)
        if self.line:
            self.type(self.line)
        self._children: list[subprocess.Popen[str]] = []

    def tmux(self, *argv: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-L", self.server, *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self.environ).stdout

    def type(self, line: str, *keys: str) -> None:
        self.tmux("send-keys", "-t", "codex", "-l", line)
        self.tmux("send-keys", "-t", "codex", *(keys or ("Enter",)))

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "codex").rstrip()

    def at_prompt(self) -> None:
        until(lambda: self.screen() == ">", "the agent's prompt", every_s=0.1)  # each look is a process

    def given(self) -> bytes:
        """Return what the program read, without the marks around pastes."""
        return self.kept.read_bytes().replace(b"\x1b[200~", b"").replace(b"\x1b[201~", b"")

    def command(
        self, *argv: str, program: Sequence[str] = (sys.executable, "-m", "agent_runtime"), **environ: str
    ) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [*program, "--home", str(self.home.root), "inbox", *argv],
            cwd=ROOT, env=self.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._children.append(child)
        return child

    def watch(self, **environ: str) -> "subprocess.Popen[str]":
        return self.command(*self.watching, **environ)

    def watch_in_a_fork(self) -> "subprocess.Popen[str]":
        """Start a watcher that has imported everything. Its pid is not that of the process that is returned."""
        return self.command(*self.watching, program=forked_daemons.program("agent_runtime"))

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
        tmux.end(["tmux", "-L", self.server], self.environ)


@pytest.fixture
def terminals(home: Home) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(program: str = AGENT, **shell: str) -> Terminal:
        opened.append(Terminal(home, program, **shell))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()


def until(probe: Callable[[], object], what: str, every_s: float = 0.02) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while not probe():
        assert clock.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}"
        clock.block(every_s)


def test_an_envelope_is_pasted_whole_acknowledged_and_archived(terminals, home: Home) -> None:
    terminal = terminals()
    terminal.at_prompt()
    (home.inbox("agent0")).mkdir(parents=True, mode=0o700)
    name = terminal.put(NASTY, requires_ack=True)
    watcher = terminal.watch()
    until(lambda: terminal.lying("delivered") == [name], "the archive")
    wrapped = f'<channel source="agent" from="agent0" kind="message" thread="t1">{SHOWN}</channel>'.encode()
    until(lambda: terminal.kept.read_bytes().endswith(b"\r"), "the Enter")
    assert terminal.given() == wrapped + b"\r", "all of it, then Enter"
    first, second, *_ = wrapped.split(b"\n")
    assert (
        terminal.kept.read_bytes()
        == b"".join((b"\x1b[200~" + piece + b"\x1b[201~") for piece in (first, b"\n", second)) + b"\r"
    ), "each line and each line break is a paste of its own"
    assert not (home.root / "x").exists(), "nothing in it was run"
    assert [record["name"] for record in read_acks(home.logs)] == [name]
    assert len(terminal.lying("outbox")) == 1, "the ack is on its way to the sender, by the way of all messages"

    second_watcher = terminal.watch()
    _, said = second_watcher.communicate(timeout=PATIENCE_S)
    assert second_watcher.returncode == 4
    assert f"inbox watch, pid {watcher.pid}" in said
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait(PATIENCE_S) == 0


def test_what_a_killed_watcher_had_claimed_is_adopted_by_the_next(terminals) -> None:
    terminal = terminals()
    terminal.at_prompt()
    first, second = terminal.put("say 'one' & $HOME\nand more"), terminal.put("two", id="m2")
    killed = terminal.watch(**{VARIABLE: "inbox.claimed"})
    assert killed.wait(PATIENCE_S) == -signal.SIGKILL
    assert (terminal.lying("claimed"), terminal.lying("inbox")) == ([first], [second])
    assert terminal.kept.read_bytes() == b"", "it died before it pasted"
    watcher = terminal.watch()
    until(lambda: terminal.lying("delivered") == [first, second] and not terminal.lying("claimed"), "both archives")
    opening = '<channel source="agent" from="agent0" kind="message" thread="t1">'
    until(lambda: terminal.given().count(b"\r") == 2, "both pastes")
    assert terminal.given().decode() == (f"{opening}say 'one' & $HOME\nand more</channel>\r{opening}two</channel>\r")
    terminal.tmux("kill-session", "-t", "codex")
    third = terminal.put("three", id="m3")
    _, said = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 3, said
    assert terminal.lying("inbox") == [third], "nothing is lost with the pane"
    drained = terminal.command("drain", "codex", "-o", "json")
    (row,) = json.loads(drained.communicate(timeout=PATIENCE_S)[0])
    assert (row["text"], row["name"], terminal.lying("delivered")) == ("three", third, [first, second, third])


def test_a_line_that_the_user_has_begun_is_left_alone_until_it_is_gone(terminals) -> None:
    terminal = terminals()
    terminal.at_prompt()
    terminal.tmux("send-keys", "-t", "codex", "-l", "rm my half line")
    until(lambda: "half line" in terminal.screen(), "the half line")
    names = [terminal.put("one"), terminal.put("two", id="m2")]
    watcher = terminal.watch()
    assert watcher.stderr is not None
    until(lambda: _waits_said(terminal) == "2", "the note that mail waits")
    assert terminal.given() == b"rm my half line"
    assert terminal.lying("inbox") == names, "what waits is not claimed: it can be taken back"
    terminal.tmux("send-keys", "-t", "codex", "C-u")
    until(lambda: terminal.lying("delivered") == names, "both archives")
    assert terminal.given().count(b"\r") == 2
    until(lambda: _waits_said(terminal) == "0", "no mail waits")
    watcher.send_signal(signal.SIGTERM)
    _, said = watcher.communicate(timeout=PATIENCE_S)
    assert "mail waits for codex (2): it is busy, or there is text at its prompt" in said


def test_nothing_is_pasted_while_the_agent_works_or_somebody_scrolls(terminals, home: Home) -> None:
    busy = home.root / "busy"
    busy.touch()
    terminal = terminals(f"{AGENT} --busy-while {busy}")
    until(lambda: "esc to interrupt" in terminal.screen(), "the work")
    name = terminal.put("one")
    terminal.watch()
    until(lambda: _waits_said(terminal) == "1", "the note that mail waits")
    terminal.tmux("copy-mode", "-t", "codex")
    busy.unlink()
    terminal.at_prompt()
    assert terminal.given() == b""
    terminal.tmux("send-keys", "-t", "codex", "-X", "cancel")
    until(lambda: terminal.lying("delivered") == [name], "the archive")


def test_a_shell_and_an_unknown_program_are_given_nothing(terminals, home: Home) -> None:
    terminal = terminals("")
    name = terminal.put("touch x")
    watcher = terminal.watch()
    _, said = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 4
    assert "a shell (bash) is running in tmux session codex" in said
    terminal.type(f"cat > {terminal.kept}")
    until(lambda: terminal.tmux("display-message", "-p", "-t", "codex", "#{pane_current_command}") == "cat\n", "cat")
    terminal.watch()
    until(lambda: _waits_said(terminal) == "1", "the note that mail waits")
    (home.root / "config.toml").write_text("[agents.codex]\nprompt = '(?s).*'\n")
    assert terminal.lying("inbox") == [name]


def test_a_program_that_reads_whole_lines_is_given_nothing_even_if_its_prompt_is_named(terminals, home: Home) -> None:
    (home.root / "config.toml").write_text("[agents.codex]\nprompt = '(?s).*'\n")
    terminal = terminals("cat > {kept}")
    until(lambda: terminal.tmux("display-message", "-p", "-t", "codex", "#{pane_current_command}") == "cat\n", "cat")
    terminal.put("touch x")
    terminal.watch()
    until(lambda: _waits_said(terminal) == "1", "the note that mail waits")
    assert terminal.kept.read_bytes() == b""


def test_a_named_prompt_gets_line_breaks_only_if_tmux_tells_that_they_cannot_submit(terminals, home: Home) -> None:
    (home.root / "config.toml").write_text("[agents.codex]\nprompt = '(?:^|\\n)>\\z'\n")
    terminal = terminals()
    terminal.at_prompt()
    name = terminal.put("one\ntwo")
    terminal.watch()
    until(lambda: terminal.lying("delivered") == [name], "the archive")
    flag = terminal.tmux("display-message", "-p", "-t", "codex", "#{bracket_paste_flag}").strip()
    assert ("one\ntwo" if flag else "one \u23ce two").encode() in terminal.given()


HARM = "\ntouch x\n$(touch x)\n;touch x;\n`touch x`\ntouch x"


@pytest.mark.parametrize("shell", ["bash --norc --noprofile", "sh"])
@pytest.mark.parametrize("read", [1, 6, 7, 40, 100, 101, 110, 135, 140, 190, 230, 247, 248])
def test_an_agent_that_ends_while_it_is_given_a_text_leaves_nothing_for_its_shell_to_run(
    terminals, home: Home, read: int, shell: str
) -> None:
    terminal = terminals(f"{AGENT} --exit-after {read}", shell=shell)
    terminal.at_prompt()
    name = terminal.put(HARM)
    watcher = terminal.watch_in_a_fork()
    _, said = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode in {3, 4}, said

    def answers() -> bool:
        terminal.tmux("send-keys", "-t", "codex", "C-c")  # one that comes before the shell reads is lost
        terminal.type("touch alive")
        return (home.root / "alive").exists()

    until(answers, "the shell", every_s=0.1)
    assert not (home.root / "x").exists(), "nothing of it was run"
    assert terminal.lying("claimed") == [name], "it waits for the next reader"


def test_a_watcher_ends_when_another_program_takes_the_place_of_the_agent(terminals) -> None:
    terminal = terminals()
    terminal.at_prompt()
    watcher = terminal.watch()
    assert watcher.stderr is not None
    assert "watching" in watcher.stderr.readline()
    terminal.tmux("respawn-pane", "-k", "-t", "codex", terminal.line)
    terminal.at_prompt()
    terminal.put("one")
    _, said = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 4, said
    assert terminal.given() == b""


def test_a_program_that_becomes_a_shell_in_its_own_process_is_given_nothing(terminals) -> None:
    terminal = terminals()
    terminal.at_prompt()
    terminal.tmux("respawn-pane", "-k", "-t", "codex", f"{terminal.line} --exit-after 1; exec bash --norc")
    terminal.at_prompt()
    watcher = terminal.watch()
    _, said = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 4, said


def _waits_said(terminal: Terminal) -> str:
    return terminal.tmux("show-options", "-p", "-v", "-q", "-t", "codex", "@turnkeeper_mail").strip()


def test_no_program_of_a_terminal_lives_after_its_end(terminals, home: Home) -> None:
    kept = home.root / "pid"
    stays = f"trap '' HUP TERM; echo $$ >{kept}; while :; do :; done"
    terminal = terminals("", shell=f"sh -c {shlex.quote(stays)}")
    until(lambda: kept.exists() and kept.read_text(), "its shell")
    terminal.close()
    pid = int(kept.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
