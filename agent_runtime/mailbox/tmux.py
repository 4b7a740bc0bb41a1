"""A pane of tmux as the place where an agent reads: text goes in as one bracketed paste, then Enter.

What is pasted is text and stays text: every control character but a line break and a tab is written out, so that none
ends the paste, moves the cursor or becomes a key.
"""

import re
import shutil
import subprocess

from turnkeeper.clock import SystemClock
from turnkeeper.console import plain
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError

PATIENCE_S = 30.0
SETTLE_S = 0.15  # programs that guess at pastes by their speed take an Enter that comes at once for a part of it
_TARGET = re.compile(r"%\d+|[^\s:.=%@$-][^\s:.]*(?::[^\s:.]+(?:\.\d+)?)?")
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Pane:
    """The active pane of a session, or the one that `SESSION:WINDOW.PANE` or `%ID` names."""

    def __init__(self, target: str, *, server: str, clock: SystemClock) -> None:
        """Take the target, and the name of the tmux server it is on; empty for the default one.

        Raises:
            InvalidInput: it is no name of a session.
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
        # `=` keeps tmux from taking the beginning of another session's name for it.
        self._target = target if target.startswith("%") else f"={target}" if ":" in target else f"={target}:"
        self._name = target
        self._clock = clock

    def check(self) -> None:
        """Raise NotFound unless the pane is there and a program runs in it."""
        if self._run("display-message", "-p", "-t", self._target, "#{pane_dead}").strip() != "0":
            raise NotFound(f"the program in tmux session {self._name} has ended", hint="start it again")

    def paste(self, text: str, *, buffer: str) -> None:
        """Paste a text by way of a tmux buffer, then press Enter. Raises NotFound without the pane."""
        self.check()
        self._run("load-buffer", "-b", buffer, "-", given=plain(text))
        # -r: a line break stays one, since the carriage return that tmux would make of it is a key, Enter.
        self._run("paste-buffer", "-p", "-r", "-d", "-b", buffer, "-t", self._target)
        self._clock.block(SETTLE_S)
        # As a paste too: `send-keys` is swallowed while somebody scrolls in the pane.
        self._run("load-buffer", "-b", buffer, "-", given="\r")
        self._run("paste-buffer", "-r", "-d", "-b", buffer, "-t", self._target)

    def _run(self, *argv: str, given: str = "") -> str:
        try:
            done = subprocess.run(  # noqa: S603  tmux, with arguments that were checked
                [*self._program, *argv],
                input=given.encode(),
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TurnkeeperError(f"tmux {argv[0]} took longer than {PATIENCE_S:.0f} s", where=self._name) from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise NotFound(f"tmux: {said}", where=self._name, hint="see: tmux list-sessions")
        return done.stdout.decode("utf-8", "replace")
