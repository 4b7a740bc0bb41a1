"""The stage: types commands as a person would, shows what they print, and keeps a list of claims."""

import shlex

from rich.console import Console
from rich.text import Text

from constellation.demo.driver import Driver
from constellation.supervisor.daemons import Daemon
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError

_WIDTH = 78


class Stage(Driver):
    """Where the story is played: one throwaway home.

    Attributes:
        claims: (what was promised, whether it was seen to hold), in the order of the story.
    """

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.claims: list[tuple[str, bool]] = []

    def act(self, title: str) -> None:
        """Begin a part of the story."""
        self._console.print()
        self._console.print(Text(f"── {title} ".ljust(_WIDTH, "─"), style="bold cyan"))

    def say(self, text: str) -> None:
        """Tell what is going on."""
        self._console.print(Text(text, style="italic"))

    def type(self, *argv: str, **environ: str) -> None:
        """Run a command and show it with everything that it prints. Raises TurnkeeperError if it fails."""
        self._prompt(" ".join([*(f"{name}={value}" for name, value in environ.items()), shlex.join(argv)]))
        done = self.attempt(*argv, **environ)
        self._console.print(Text.from_ansi((done.stdout + done.stderr).rstrip()))
        if done.returncode:
            raise TurnkeeperError(f"exit code {done.returncode}", where=shlex.join(argv))

    def kill_shown(self, daemon: Daemon) -> None:
        """End a daemon by kill -9, and show it."""
        self._prompt(f"kill -9 {self.kill(daemon)}    # {daemon.name}")

    def claim(self, text: str, held: bool) -> None:
        """Note something that the product promises, and whether it was seen just now."""
        self.claims.append((text, held))
        self._tick(text, held)

    def recall(self) -> bool:
        """Show every claim once more, and return whether all of them held."""
        for text, held in self.claims:
            self._tick(text, held)
        return bool(self.claims) and all(held for _, held in self.claims)

    def _prompt(self, line: str) -> None:
        self._console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))

    def _tick(self, text: str, held: bool) -> None:
        self._console.print(Text.assemble(("  ✓ " if held else "  ✗ ", "green" if held else "bold red"), text))
