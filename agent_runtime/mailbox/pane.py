"""A tmux pane with an agent's program, and the safe pasting of text at the program's prompt.

Any program that runs in a pane reads the typed text. So the first program is remembered, and no text is pasted after
another program has started. Text is pasted only while the program waits at an empty prompt and reads single keys. The
text is pasted line by line, each piece without a line break, and each only after the program has read the previous
piece. If the program ends in between, the shell after it gets at most a line without its end, or an end without its
line, and runs nothing.
"""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from turnkeeper.clock import SystemClock
from turnkeeper.console.unseen import prose
from turnkeeper.errors import Conflict, InvalidInput, NotFound, TurnkeeperError

PATIENCE_S = 30.0
TAKEN_WITHIN_S = 3.0
SETTLE_S = 0.15  # programs that detect pastes by their speed take an immediate Enter as part of the paste
LOOK_S = 0.01
MOST_LINES = 200
_BREAK = " \u23ce "  # replaces a line break that cannot be pasted
_LAST_LINES = 16
_TARGET = re.compile(r"%\d+|[^\s:.=%@$-][^\s:.]*(?::[^\s:.]+(?:\.\d+)?)?")
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}", re.ASCII)
_SHELLS = frozenset(
    (
        *("ash", "bash", "busybox", "csh", "dash", "elvish", "fish", "ksh", "login", "mksh", "nu", "osh", "pwsh"),
        *("rbash", "sh", "su", "sudo", "tcsh", "xonsh", "yash", "zsh"),
    )
)
_BUSY = r"(?i)\b(?:esc|ctrl\+c) to (?:interrupt|cancel)\b"
_CODEX_SUGGESTIONS = (
    r"(?:Ask Codex to do anything|Explain this codebase|Summarize recent commits|Implement \{feature\}|"
    r"Find and fix a bug in @filename|Write tests for @filename|Improve documentation in @filename|"
    r"Run /review on my current changes|Use /skills to list available skills)"
)
# An RE2 expression for each program. It matches the end of the screen while the program waits at an empty prompt.
PROMPTS = {
    "claude": r"(?:\x{2500}{10,}[^\n]*\n\x{276F}[\s\x{A0}]*(?:Try \"[^\"\n]*\")?\n\x{2500}{10,}"
    r"|╭\x{2500}+╮\n│ >[\s\x{A0}]*(?:Try \"[^\"\n]*\")?\s*│\n╰\x{2500}+╯)[^\n]*(?:\n[^\n│\x{276F}]*){0,5}\z",
    "codex": rf"(?:\A|\n) ?[\x{{203A}}▌] *{_CODEX_SUGGESTIONS}? *(?:\n[^\n▌\x{{203A}}]*){{0,4}}\z",
    "gemini": r"(?:\A|\n)[│ ]*[>*]\s+Type your message or @path/to/file[ │]*(?:\n[^\n]*){0,6}\z",
    "aider": r"(?:\A|\n)(?:ask|architect|code|context|help)?(?: multi)?> ?\z",
}


class Program(NamedTuple):
    """The program in the foreground of a pane.

    Attributes:
        pane: the pane's unique id.
        pane_pid: the process that the pane was opened with.
        pid: the leader of the terminal's foreground processes.
        started: when that process started, in seconds; unique together with the pid.
        words: the command line, which a program may change.
        shown: the name in tmux.
    """

    pane: str
    pane_pid: int
    tty: str
    pid: int
    started: float
    file: str
    words: tuple[str, ...]
    shown: str

    @property
    def name(self) -> str:
        return Path(self.words[0]).name.lstrip("-") if self.words else self.shown

    @property
    def is_shell(self) -> bool:
        return not _SHELLS.isdisjoint((self.name, self.shown.lstrip("-"), Path(self.file).name))

    def is_still(self, other: "Program") -> bool:
        """Return whether a later look-up found the same process with the same file."""
        return self[:6] == other[:6] and not other.is_shell


class Pane:
    """The active pane of a session, or the pane named by `SESSION:WINDOW.PANE` or `%ID`."""

    def __init__(self, target: str, *, server: str, prompt: str, clock: SystemClock) -> None:
        """Take the target, the name of its tmux server (empty for the default server), and the prompt's expression.

        Raises:
            InvalidInput: the target is not a session name, or the prompt is not an expression.
            NotFound: tmux is not installed.
        """
        if not _TARGET.fullmatch(target):
            raise InvalidInput(f"{target[:40]!r} is not a tmux session", where="--tmux", hint="see: tmux list-sessions")
        if server and not _SERVER.fullmatch(server):
            raise InvalidInput(f"{server[:40]!r} is not a tmux server's name", where="--tmux-server")
        program = shutil.which("tmux")
        if program is None:
            raise NotFound("tmux is not installed", hint="install it, for example: apt-get install tmux")
        self._program = [program, *(["-L", server] if server else [])]
        # `=` keeps tmux from matching the target as a prefix of another session's name.
        self._target = target if target.startswith("%") else f"={target}" if ":" in target else f"={target}:"
        self._name, self._clock = target, clock
        self._waits = _matcher(prompt) if prompt else None
        self._seen: Program | None = None
        self._is_known = False

    def open(self) -> Program:
        """Return the program in the pane, and remember the program as the agent.

        Raises:
            NotFound: no such pane exists, or its program has ended.
            Conflict: the program is a shell, which would run the text.
        """
        found = self._look()
        if found.is_shell:
            hint = "start the agent in it first; if a shell script starts the agent, end the script with: exec AGENT"
            raise Conflict(f"a shell ({found.name}) is running in tmux session {self._name}", hint=hint)
        self._target, self._seen = found.pane, found
        if self._waits is None:
            names = {Path(word).name for word in found.words[:3]}
            known = next((prompt for agent, prompt in PROMPTS.items() if agent in names), None)
            self._waits, self._is_known = (_matcher(known), True) if known else (None, False)
        return found

    def obstacle(self) -> str:
        """Return why the text cannot be pasted now; empty if the program waits at an empty prompt.

        Raises:
            NotFound, Conflict: the program has ended, or another program runs in the pane.
        """
        self._check()
        if self._waits is None:
            return "its prompt is not known: set [agents.NAME] prompt in config.toml"
        if self._run("display-message", "-p", "-t", self._target, "#{pane_in_mode}").strip() != "0":
            return "its pane is being scrolled"
        if not self._reads_keys():
            return "it is busy"
        screen = self._screen()
        if not self._waits(screen):
            return "it is busy, or there is text at its prompt"
        self._clock.block(SETTLE_S)
        return "" if self._screen() == screen and self._reads_keys() else "somebody types"

    def paste(self, text: str, *, buffer: str) -> None:
        """Paste the text line by line, then press Enter.

        Raises:
            NotFound, Conflict: another program runs in the pane, or the program does not read the text. In that case
                Enter was not pressed, and a part of the text may be in the pane.
        """
        before = self._screen()
        for piece in pieces(prose(text), breaks=self._takes_breaks()):
            self._insert(piece, buffer, "-p")
            self._until(self._has_taken_all)
        self._until(lambda: self._screen() != before and self._has_taken_all())
        self._clock.block(SETTLE_S)
        # Enter is pasted too, because `send-keys` is ignored while a person scrolls in the pane.
        self._insert("\r", buffer)

    def say(self, text: str, waiting: int) -> None:
        """Show `text`, if any, in tmux's status line, and store `waiting` in the pane's option @turnkeeper_mail."""
        self._run("set-option", "-p", "-t", self._target, "@turnkeeper_mail", str(waiting))
        if text:
            self._run("display-message", "-t", self._target, text.replace("#", "##"))

    def _insert(self, text: str, buffer: str, *options: str) -> None:
        """Paste the text without changing its line breaks; tmux checks the program in the same step."""
        self._check()
        assert self._seen is not None
        same = f"#{{==:#{{pane_pid}},{self._seen.pane_pid}}}"
        if _PLAIN_NAME.fullmatch(self._seen.shown):
            same = f"#{{&&:{same},#{{==:#{{pane_current_command}},{self._seen.shown}}}}}"
        # -r keeps a line break; tmux would otherwise send a carriage return, which is the key Enter.
        paste = " ".join(("paste-buffer", *options, "-r", "-d", "-b", buffer, "-t", self._target))
        said = self._run(
            "load-buffer", "-b", buffer, "-", ";",
            "if-shell", "-F", "-t", self._target, same, paste, "display-message -p changed",
            given=text,
        )  # fmt: skip
        if "changed" in said:
            self._run("delete-buffer", "-b", buffer)
            raise self._changed()

    def _until(self, probe: Callable[[], bool]) -> None:
        if not self._clock.poll(probe, timeout_s=TAKEN_WITHIN_S, every_s=LOOK_S):
            self._check()
            hint = "check the pane; the envelope was not archived"
            raise Conflict(f"the program in tmux session {self._name} does not read the text", hint=hint)
        self._check()

    def _check(self) -> None:
        found = self._look()
        if self._seen is None or not self._seen.is_still(found):
            raise self._changed()
        self._seen = found  # the program may have changed its name

    def _changed(self) -> Conflict:
        what = f"tmux session {self._name} now runs a program other than the watched one"
        return Conflict(what, hint="nothing was submitted to it; start the agent, then watch again")

    def _look(self) -> Program:
        fields = "#{pane_dead}\t#{pane_id}\t#{pane_pid}\t#{pane_tty}\t#{pane_current_command}"
        said = self._run("display-message", "-p", "-t", self._target, fields).rstrip("\n").split("\t")
        if len(said) != 5 or said[0] != "0":
            raise NotFound(f"the program in tmux session {self._name} has ended", hint="start it again")
        _, pane, pane_pid, tty, shown = said
        try:
            process = psutil.Process(_foreground(int(pane_pid)))
            words, started, file = tuple(process.cmdline()), process.create_time(), process.exe()
        except (psutil.Error, OSError, ValueError) as error:
            raise NotFound(f"the program in tmux session {self._name} has ended", hint="start it again") from error
        return Program(pane, int(pane_pid), tty, process.pid, started, file, words, shown)

    def _screen(self) -> str:
        lines = [line.rstrip() for line in self._run("capture-pane", "-p", "-t", self._target).splitlines()]
        while lines and not lines[-1]:
            lines.pop()
        return "\n".join(lines[-_LAST_LINES:])

    def _takes_breaks(self) -> bool:
        """Return whether the program accepts pasted line breaks. tmux before 3.7 does not tell; known agents do."""
        flag = self._run("display-message", "-p", "-t", self._target, "#{bracket_paste_flag}").strip()
        return flag == "1" or (not flag and self._is_known)

    def _has_taken_all(self) -> bool:
        """Return whether the pasted text was read; the caller then checks that the same program read it."""
        self._check()  # tmux writes the pasted text before it answers this query
        # For a program that reads lines, the terminal counts only whole lines.
        return self._unread() == 0 and self._reads_keys()

    def _reads_keys(self) -> bool:
        """Return whether the program reads single keys; otherwise the next program may read the text."""
        return not self._of_tty(lambda tty: termios.tcgetattr(tty)[3] & termios.ICANON)

    def _unread(self) -> int:
        """Return the number of bytes in the terminal that no program has read."""
        return self._of_tty(lambda tty: struct.unpack("i", fcntl.ioctl(tty, termios.FIONREAD, b"\0" * 4))[0])

    def _of_tty(self, ask: Callable[[int], int]) -> int:
        assert self._seen is not None
        try:
            tty = os.open(self._seen.tty, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NotFound(f"the program in tmux session {self._name} has ended", hint="start it again") from error
        try:
            return ask(tty)
        finally:
            os.close(tty)

    def _run(self, *argv: str, given: str = "") -> str:
        try:
            done = subprocess.run(  # noqa: S603  tmux, with arguments that were checked
                [*self._program, *argv], input=given.encode(), capture_output=True, timeout=PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise TurnkeeperError(f"tmux {argv[0]} took longer than {PATIENCE_S:.0f} s", where=self._name) from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise NotFound(f"tmux: {said}", where=self._name, hint="see: tmux list-sessions")
        return done.stdout.decode("utf-8", "replace")


def pieces(text: str, *, breaks: bool) -> list[str]:
    r"""Return the text in pieces to paste; a line break is always a separate piece.

    >>> pieces("a\n\nb", breaks=True)
    ['a', '\n', '\n', 'b']
    >>> pieces("a\nb", breaks=False)
    ['a ⏎ b']
    """
    lines = text.split("\n")
    if not breaks or len(lines) > MOST_LINES:
        return [_BREAK.join(lines)]
    return [piece for line in lines for piece in ("\n", line) if piece][1:]


def _matcher(prompt: str) -> Callable[[str], bool]:
    import re2  # noqa: PLC0415  slow to import

    try:
        found = re2.compile(prompt)
        busy = re2.compile(_BUSY)
    except re2.error as error:
        raise InvalidInput(f"{prompt[:80]!r} is not an RE2 expression: {error}", where="prompt") from error
    # A captured screen lacks the blank after its prompt, which an expression may contain.
    return lambda screen: any(map(found.search, (screen, f"{screen} "))) and not busy.search(screen)


def _foreground(pane_pid: int) -> int:
    """Return the leader of the foreground processes in a process's terminal."""
    if (stat := Path(f"/proc/{pane_pid}/stat")).exists():
        return int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[5])
    ps = ["ps", "-o", "tpgid=", "-p", str(pane_pid)]
    return int(subprocess.run(ps, capture_output=True, check=True, text=True).stdout)  # noqa: S603
