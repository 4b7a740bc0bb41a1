"""The demonstration: runs commands like a person, shows their output, and checks every claim.

A claim is checked only by the output of the commands.
"""

import shlex
import shutil
import tempfile
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from examples.demo.driver import Driver, Record
from examples.demo.history import History, check
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.home import Home
from turnkeeper.console import note
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, Daemon
from turnkeeper.constellation.supervisor.up_down import bring_down
from turnkeeper.errors import TurnkeeperError

_WIDTH = 78


class Stage(Driver):
    """The stage of the story: one temporary home.

    Attributes:
        beginning: the title of the first act.
        comes_back: the sentence after a kill of the runtime in a turn.
        claims: (the claim, True if it was true), in the order of the story.
    """

    beginning = "A home, two processes, some real input, two tasks"
    comes_back = "The supervisor starts it again."

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.claims: list[tuple[str, bool]] = []

    def act(self, title: str) -> None:
        """Begin a part of the story."""
        self._console.print()
        self._console.print(Text(f"── {title} ".ljust(_WIDTH, "─"), style="bold cyan"))

    def say(self, text: str) -> None:
        """Print a sentence of the story."""
        self._console.print(Text(text, style="italic"))

    def type(self, *argv: str, **environ: str) -> None:
        """Run a command, and show it with all its output. Raises TurnkeeperError if it fails."""
        self._prompt(" ".join([*(f"{name}={value}" for name, value in environ.items()), shlex.join(argv)]))
        done = self.attempt(*argv, **environ)
        self._console.print(Text.from_ansi((done.stdout + done.stderr).rstrip()))
        if done.returncode:
            raise TurnkeeperError(f"exit code {done.returncode}", where=shlex.join(argv))

    def kill_shown(self, daemon: Daemon) -> None:
        """End a daemon by kill -9, and show it."""
        self._prompt(f"kill -9 {self.kill(daemon)}    # {daemon.name}")

    def events(self) -> list[Record]:
        """Return the events of the trails in order of time."""
        return list(read_events(self.home.logs))

    def claim(self, text: str, held: bool) -> None:
        """Record a claim of the product, and whether it held just now."""
        self.claims.append((text, held))
        self._tick(text, held)

    def recall(self) -> bool:
        """Show every claim again. Return True if all of them were true."""
        for text, held in self.claims:
            self._tick(text, held)
        return bool(self.claims) and all(held for _, held in self.claims)

    def _prompt(self, line: str) -> None:
        self._console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))

    def _tick(self, text: str, held: bool) -> None:
        self._console.print(Text.assemble(("  ✓ " if held else "  ✗ ", "green" if held else "bold red"), text))


POLICIES = ("skip", "run-once", "run-all")
_FEW = 3
_DOWN_S = 6.0
_ON_AGAIN_S = 2.5
_SLOW_MODEL = {"TURNKEEPER_OFFLINE_DELAY_S": "0.2"}


def play(stage: Stage) -> None:
    """Play every act on an empty stage."""
    _declare(stage)
    _a_fire_arrives(stage)
    _an_approval_survives(stage)
    _killed_in_the_middle(stage)
    _catching_up(stage)
    _the_end(stage)


def _declare(stage: Stage) -> None:
    stage.act(stage.beginning)
    stage.type("turnkeeper", "init")
    stage.say("The offline model is slowed down a little, so that a turn has a middle.")
    stage.type("turnkeeper", "up", **_SLOW_MODEL)
    stage.ask("agent-runtime", "workspace", "import", str(Path(__file__).parents[1] / "garden"))
    stage.type("agent-runtime", "workspace", "list")
    stage.type("agent-runtime", "send", "general", "search: compost", "--wait")
    stage.type("task-runner", "apply", str(Path(__file__).with_name("tasks.toml")))


def _a_fire_arrives(stage: Stage) -> None:
    stage.act("A fire arrives as a turn, marked with what triggered it")
    fire = stage.until_outcome("pulse", "succeeded")[0]
    stage.ask("task-runner", "pause", "pulse", "--note", "enough for the story")
    stage.type("agent-runtime", "conversation", "show", "general")
    turns = [turn for turn in stage.ask("agent-runtime", "conversation", "show", "general") if turn["trigger"]]
    stage.claim("the fire is a turn marked with its trigger", turns[0]["trigger"]["task"] == "pulse")
    stage.claim("it fired no earlier than its time", _at(fire["fired_at"]) >= _at(fire["due_at"]))
    candidates = stage.ask("agent-runtime", "candidates", "list")
    proposed = {candidate["lifecycle"] for candidate in candidates}
    stage.claim("what it proposes is a candidate until you accept it", proposed == {"candidate"})


def _an_approval_survives(stage: Stage) -> None:
    stage.act("A call past the category waits for you, and no other fire takes the question away")
    errand = "Summarise the suppliers, then remember: the pump has a warranty of two years"
    _create(stage, "errand", "--in", "1s", "--thread", "desk", prompt=errand, channel="desk")
    stage.await_outcome("errand", "interrupted")
    stage.type("agent-runtime", "approvals", "list")
    stage.say("Another task fires on the same thread meanwhile.")
    _create(stage, "follow-up", "--in", "1s", "--thread", "desk", prompt="Summarise the suppliers.", channel="desk")
    held = stage.until_outcome("follow-up", "held")[0]
    stage.type("task-runner", "list")
    (pending,) = stage.ask("agent-runtime", "approvals", "list")
    stage.claim("the second fire is held and the question still stands", held["outcome"] == "held")
    stage.type("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    stage.await_outcome("errand", "succeeded")
    released = stage.until_outcome("follow-up", "succeeded")[0]
    same = released["fire_id"] == held["fire_id"] and released["attempt"] == held["attempt"] + 1
    stage.claim("the approval resumed the turn, then the held fire went its way", same)


def _killed_in_the_middle(stage: Stage) -> None:
    stage.act("kill -9 in the middle of a turn")
    _create(stage, "nightly", "--in", "1s", prompt="Summarise the newsletter.", channel="night")
    stage.await_outcome("nightly", "running")
    stage.kill_shown(AGENT_RUNTIME)
    stage.say(stage.comes_back)
    stage.await_outcome("nightly", "succeeded")
    stage.type("task-runner", "history", "nightly")
    entries = stage.history("nightly")
    turns = stage.ask("agent-runtime", "conversation", "show", "night")
    inputs = [message for turn in turns for message in turn["messages"] if message["role"] == "trigger"]
    stage.claim("one entry, one turn, its input once", len(entries) == len(turns) == len(inputs) == 1)
    effects = [item for item in stage.ask("agent-runtime", "candidates", "list") if item["channel"] == "night"]
    stage.claim("its tool took effect once", len(effects) == 1)


def _catching_up(stage: Stage) -> None:
    stage.act("Everything is down over several nominal times; grace is one second")
    for policy in POLICIES:
        options = ("--every", "2s", "--grace", "1s", "--catch-up", policy)
        _create(stage, policy, *options, prompt="Summarise the garden.", channel=policy)
    for policy in POLICIES:
        stage.await_outcome(policy, "succeeded")
    stage.until("a moment without an open fire", lambda: not any(map(stage.is_open, POLICIES)))
    stage.type("turnkeeper", "down")
    stage.say(f"… {_DOWN_S:.0f} seconds in which nothing runs …")
    stage.pass_time(_DOWN_S)
    stage.type("turnkeeper", "up")
    stage.pass_time(_ON_AGAIN_S)
    stage.ask_all(("task-runner", "disable", policy) for policy in POLICIES)
    for policy in POLICIES:
        stage.until_settled(policy, _FEW)
        stage.type("task-runner", "history", policy)
    skip, once, every = (stage.history(policy) for policy in POLICIES)
    missed = [entry for entry in skip if entry["reason"] == "missed"]
    stage.claim("skip: the missed ones are one recorded skip", len(missed) == 1 and missed[0]["count"] >= _FEW)
    stood_for = [entry for entry in once if entry["count"] >= _FEW and entry["outcome"] == "succeeded"]
    stage.claim("run-once: one turn that says what it stands for", len(stood_for) == 1)
    ran = sorted((entry for entry in every if entry["outcome"] == "succeeded"), key=lambda entry: entry["nominal_at"])
    in_order = [entry["started_at"] for entry in ran] == sorted(entry["started_at"] for entry in ran)
    stage.claim("run-all: each one, in order", in_order and all(entry["count"] == 1 for entry in ran))


def _the_end(stage: Stage) -> None:
    stage.act("What a person sees at the end")
    stage.type("task-runner", "list")
    stage.type("agent-runtime", "conversation", "show", "desk")
    tasks = [task["name"] for task in stage.ask("task-runner", "list")]
    turns = stage.ask("agent-runtime", "turns", "list", "-n", "500")
    history = History(events=stage.events(), ledger=stage.histories(tasks), turns=turns)
    violations = check(history, drained=True)
    for violation in violations:
        stage.say(f"{violation.invariant}: {violation.what}")
    stage.claim("the whole history keeps the invariants: nothing lost, doubled, early or at once", not violations)


def _create(stage: Stage, name: str, *options: str, prompt: str, channel: str) -> None:
    rest = ("--category", "catch-up-summary", "--channel", channel, "--prompt", prompt)
    stage.type("task-runner", "create", name, *options, *rest)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def perform(*, keep: bool) -> bool:
    """Run the story in a temporary home. Return True if every claim was true."""
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-"))
    place = Home(root=folder / "home")
    stage = Stage(place)
    try:
        play(stage)
    finally:
        bring_down(place, force=True)
        if keep:
            note(f"kept: TURNKEEPER_HOME={place.root}")
        else:
            shutil.rmtree(folder)
    stage.act("Claims")
    return stage.recall()
