"""kill -9 at a random moment of a turn, as often as asked: `python -m tests.integration.runtime.turn_kills --rounds 200`.

Each round sends one or two fires to a real daemon, kills it up to three times, at a named failpoint or after a random
time, and lets the last process finish. In some rounds the turn has to be approved by its author on the way, in some it
is cancelled. Then each fire must have ended in one turn with one input message, its history must be valid, and what its
tools wrote must be there once. Only the model is scripted. What a round does depends on nothing but its seed, which is
printed with what it found.

A daemon is forked from a nursery, a fork of `forked_daemons` that has started nothing: a process of its own, with its own
files, locks and threads, that takes a tenth of the time to start.
"""

import argparse
import atexit
import contextlib
import gc
import json
import os
import random  # noqa: TID251  a round is what its seed says
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from agent_runtime.daemon import __main__ as daemon
from agent_runtime.graph.models import make
from agent_runtime.store.turn_events import REVIEWS
from tests.support.forked_daemons import program
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.rpc.process import VARIABLE
from turnkeeper.v1 import agent_runtime_pb2 as wire

CLOCK = SystemClock()
PATIENCE_S = 60.0
MOST_KILLS = 3  # a turn is given up after its fifth try
LONGEST_DELAY_S = 0.25  # a turn takes about half of it
PASSES = {"accepted": 1, "claimed": 1, "started": 1, "turn_step": 8, "finished": 1, "recorded": 1}
OVER = ("SUCCEEDED", "SILENT", "FAILED", "CANCELLED")
CONFIG = '[categories]\nautonomous_allowed = ["work"]\n'
KINDS = ("plain", "plain", "approved", "cancelled")
CATEGORY = """
name = "{name}"
autonomous = {autonomous}
silent = false
[scopes]
tools = ["memory.put", "page.propose", "summary.propose"]
writes = ["candidate-page", "candidate-summary"]
memory = ["channel"]
"""
WRITES = ["memory.put", "memory.put", "page.propose", "summary.propose"]


class Steps(BaseChatModel):
    """Three rounds of tool calls, the first with two at once, then a last word; always the same for a prompt.

    It thinks, in a thread, for as long as the file `hang` lies in its home, and says so by a file `hanging`.
    """

    folder: Path

    @property
    def _llm_type(self) -> str:
        return "steps"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        while (self.folder / "hang").exists():
            (self.folder / "hanging").touch()
            CLOCK.block(0.01)
        asked = max(at for at, message in enumerate(messages) if isinstance(message, HumanMessage))
        prompt = str(messages[asked].content)
        said = sum(isinstance(message, AIMessage) for message in messages[asked:])
        return ChatResult(generations=[ChatGeneration(message=self._line(prompt, said))])

    def _line(self, prompt: str, said: int) -> AIMessage:
        note = ("memory_put", {"tier": "channel", "text": f"{prompt}, {said}"})
        page = ("page_propose", {"title": prompt, "body": "text"})
        summary = ("summary_propose", {"title": prompt, "body": "text"})
        lines = [[note, page], [note], [summary]]
        if said >= len(lines):
            return AIMessage(f"done with {prompt}")
        made = [
            {"name": name, "args": args, "id": f"{prompt}-{said}-{at}".replace(" ", "-")}
            for at, (name, args) in enumerate(lines[said])
        ]
        return AIMessage("", tool_calls=made)


def nurse() -> None:
    """Fork daemons, and end them, as standard input asks; each line a JSON object, each answered by one."""
    os.environ.update(daemon.ENVIRONMENT)
    import agent_runtime.daemon.assembly  # noqa: F401  what a daemon imports is imported here, once

    untyped: Any = make
    untyped.make_model = lambda _settings, home, **_fields: Steps(folder=home.root)
    gc.freeze()
    pid = 0
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "start":
            pid = os.fork()
            if not pid:
                be_daemon(asked["home"], asked["failpoint"], asked["grace_s"])
            answer: Any = pid
        else:
            if asked["signal"]:
                os.kill(pid, asked["signal"])
            gone, status = os.waitpid(pid, 0 if asked["do"] == "wait" else os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if gone else None
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def be_daemon(home: str, failpoint: str, grace_s: float) -> None:
    """Be the daemon, until killed."""
    from agent_runtime.daemon import assembly

    untyped: Any = assembly
    untyped.DRAIN_GRACE_S = grace_s
    code = 1
    try:
        silence, errors = (
            os.open(os.devnull, os.O_RDWR),
            os.open(f"{home}/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        )
        for descriptor, target in ((silence, 0), (silence, 1), (errors, 2)):
            os.dup2(descriptor, target)
        os.environ[VARIABLE] = failpoint
        code = daemon.main(["--home", home])
    finally:
        os._exit(code)


@cache
def warm() -> "subprocess.Popen[str]":
    """Return the process that forks daemons; it has imported everything once, for all homes."""
    process = subprocess.Popen(
        [*program("tests.integration.runtime.turn_kills"), "--nursery"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate, timeout=PATIENCE_S)
    return process


class Nursery:
    """One daemon at a time, on one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._process = warm()
        self.lives = False

    def start(self, failpoint: str = "", *, grace_s: float = 10.0) -> None:
        self._ask(do="start", home=str(self.home.root), failpoint=failpoint, grace_s=grace_s)
        self.lives = True

    def terminate(self) -> None:
        """Ask the daemon to stop; it goes on for as long as it takes to come to a good end."""
        assert self._ask(do="poll", signal=signal.SIGTERM) is None

    def wait(self) -> int:
        """Wait until the daemon ends by itself; return its exit code."""
        self.lives = False
        code: int = self._ask(do="wait", signal=0)
        return code

    def kill(self) -> None:
        """Kill the daemon, and wait until it is gone."""
        if self.lives:
            assert self._ask(do="wait", signal=signal.SIGKILL) == -signal.SIGKILL, self.errors()
        self.lives = False

    def died(self) -> bool:
        """Return whether a failpoint was met."""
        if self.lives and (code := self._ask(do="poll", signal=0)) is not None:
            assert code == -signal.SIGKILL, f"the daemon ended with {code}: {self.errors()}"
            self.lives = False
        return not self.lives

    def serving(self) -> Caller | None:
        """Wait until the daemon answers; None if it died before."""
        deadline = CLOCK.monotonic() + PATIENCE_S
        while not is_serving(self.home.socket("agent-runtime")):
            if self.died():
                return None
            assert CLOCK.monotonic() < deadline, "the daemon does not answer"
            CLOCK.block(0.01)
        runner = Identity.of_daemon("task-runner", "agent-runtime", self.home)
        return Caller(self.home, via=runner)

    def errors(self) -> str:
        path = self.home.root / "stderr"
        return path.read_text()[-2000:] if path.exists() else ""

    def close(self) -> None:
        self.kill()

    def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@dataclass
class Sent:
    """A fire, as its sender knows it."""

    request: wire.FireRequest
    turn_id: str = ""


@dataclass
class Kills:
    """Rounds on one home."""

    home: Home
    done: int = 0
    nursery: Nursery = field(init=False)

    def __post_init__(self) -> None:
        (self.home.root / "config.toml").write_text(CONFIG)
        for name, autonomous in (("work", "true"), ("careful", "false")):
            text = CATEGORY.format(name=name, autonomous=autonomous)
            (self.home.categories / f"{name}.toml").write_text(text)
        self.nursery = Nursery(self.home)

    def round(self, seed: int) -> str:
        """Run one round; return what it did. Raises AssertionError when something was lost, doubled or invalid."""
        drawn, kind = random.Random(seed), random.Random(f"kind of {seed}").choice(KINDS)
        self.done += 1
        thread = f"thread-{drawn.randrange(3)}"
        count, category = drawn.choice([1, 1, 2]), "careful" if kind == "approved" else "work"
        numbers = range(10 * self.done, 10 * self.done + (count if kind == "plain" else 1))
        fires = [Sent(request=fire(number, thread, category)) for number in numbers]
        plans = [plan(drawn) for _ in range(drawn.randint(1, MOST_KILLS))]
        cancel_in = random.Random(f"cancel of {seed}").randrange(len(plans)) if kind == "cancelled" else -1
        for at, (failpoint, delay_s) in enumerate(plans):
            self._life(fires, failpoint, delay_s, cancel=at == cancel_in)
        self.last_life(fires)
        told = "; ".join(failpoint or f"{delay_s:.3f} s" for failpoint, delay_s in plans)
        self._check_round(fires, kind)
        self._check_thread(thread)
        self._check_rest()
        return f"{len(fires)} {kind} fire(s) on {thread}, killed at {told}"

    def close(self) -> None:
        self.nursery.close()

    def _life(self, fires: list[Sent], failpoint: str, delay_s: float, *, cancel: bool) -> None:
        if failpoint or not self.nursery.lives:
            self.nursery.kill()
            self.nursery.start(failpoint)
        caller = self.nursery.serving()
        if caller is not None:
            self.send(caller, fires)
            left_s = delay_s or 2 * LONGEST_DELAY_S
            begun = CLOCK.monotonic()
            while not self.nursery.died() and CLOCK.monotonic() < begun + left_s:
                self._approve(caller, fires)
                if cancel and CLOCK.monotonic() > begun + left_s / 3:
                    cancel = False
                    self._cancel(caller, fires)
                CLOCK.block(0.002)
        self.nursery.kill()

    def last_life(self, fires: list[Sent]) -> None:
        self.nursery.kill()
        self.nursery.start()
        caller = self.nursery.serving()
        assert caller is not None, self.nursery.errors()
        self.send(caller, fires)
        assert all(sent.turn_id for sent in fires)
        deadline = CLOCK.monotonic() + PATIENCE_S
        while not all(set(self.states(sent)) & set(OVER) for sent in fires) or self.lying("claimed"):
            self._approve(caller, fires)
            assert CLOCK.monotonic() < deadline, f"no end: {[self.states(sent) for sent in fires]}"
            CLOCK.block(0.01)

    def send(self, caller: Caller, fires: list[Sent]) -> None:
        """Send what has no receipt yet, in order, as the runner does."""
        with contextlib.suppress(TurnkeeperError):  # killed meanwhile: whether it arrived is unknown
            for sent in fires:
                if not sent.turn_id:
                    sent.turn_id = caller.Fire(sent.request).turn_id

    def _approve(self, caller: Caller, fires: list[Sent]) -> None:
        if fires[0].request.category == "careful":
            with contextlib.suppress(TurnkeeperError):
                for asked in caller.ListInterrupts(wire.ListInterruptsRequest()).interrupts:
                    answer = wire.ResolveInterruptRequest(interrupt_id=asked.interrupt_id, decision="approve")
                    caller.ResolveInterrupt(answer)

    def _cancel(self, caller: Caller, fires: list[Sent]) -> None:
        with contextlib.suppress(TurnkeeperError):
            caller.CancelTurn(wire.CancelTurnRequest(fire_id=fires[0].request.fire_id, attempt=1))

    def _check_round(self, fires: list[Sent], kind: str) -> None:
        for sent in fires:
            if kind == "cancelled" and self.states(sent)[-1] == "CANCELLED":
                assert self.states(sent) in (["STARTED", "CANCELLED"], ["CANCELLED"])
                assert not Counter(self._written(sent)) - Counter(WRITES), "something was written twice"
            else:
                self.check(sent)
        if kind == "cancelled":
            number = int(fires[0].request.fire_id.partition("@")[2]) + 5
            after = Sent(request=fire(number, fires[0].request.thread_id))
            self.last_life([after])
            self.check(after)

    def check(self, sent: Sent) -> None:
        """Hold a fire that ended well against all that it must have come to."""
        asked = ["INTERRUPTED", "RESUMED"] if sent.request.category == "careful" else []
        assert self.states(sent) == ["STARTED", *asked, "SUCCEEDED"], self.states(sent)
        turn = (sent.turn_id,)
        assert self._written(sent) == WRITES, self._written(sent)
        assert len(self._column("SELECT entry_id FROM memory WHERE turn_id = ?", turn)) == WRITES.count("memory.put")
        kinds = self._column("SELECT kind FROM candidates WHERE turn_id = ? ORDER BY kind", turn)
        assert kinds == ["candidate-page", "candidate-summary"], kinds
        roles = self._column("SELECT role FROM messages WHERE turn_id = ? ORDER BY position", turn)
        assert roles == ["trigger", "agent", "tool", "tool", "agent", "tool", "agent", "tool", "agent"], roles

    def _written(self, sent: Sent) -> list[str]:
        return self._column("SELECT scope FROM effects WHERE turn_id = ? ORDER BY scope", (sent.turn_id,))

    def _check_thread(self, thread: str) -> None:
        ended = "SELECT turn_id FROM turns WHERE thread_id = ? AND status {} 'cancelled' ORDER BY number"
        whole = self._column(ended.format("<>"), (thread,))
        cut = self._column(ended.format("="), (thread,))
        messages = self._history(thread)
        inputs = [str(message.id) for message in messages if isinstance(message, HumanMessage)]
        inputs = [each for each in inputs if not each.endswith("-note")]
        kept = [each for each in inputs if each not in cut]
        assert kept, "no input"
        assert kept == whole[-len(kept) :], "each fire's input is there once, in order, but for turns long past"
        assert len(set(inputs)) == len(inputs), "a cancelled fire's input is there twice"
        open_calls: list[str] = []
        for message in messages:
            if isinstance(message, ToolMessage):
                assert message.tool_call_id in open_calls, "an answer to nothing"
                open_calls.remove(message.tool_call_id)
            else:
                assert not open_calls, "a call without an answer"
                open_calls = [str(call["id"]) for call in getattr(message, "tool_calls", [])]
        assert not open_calls, "a call without an answer"

    def _check_rest(self) -> None:
        for folder in ("inbox", "claimed", "quarantine"):
            assert not self.lying(folder), folder

    def _history(self, thread: str) -> list[BaseMessage]:
        from agent_runtime.graph.checkpointer.saver import GroupedSaver

        saver = GroupedSaver(self.home.checkpoints_db)
        try:
            found = saver.get_tuple({"configurable": {"thread_id": thread}})
            assert found is not None
            assert not found.pending_writes
            return list(found.checkpoint["channel_values"]["messages"])
        finally:
            saver.close()

    def states(self, sent: Sent) -> list[str]:
        """Return the states of a fire's turns, in order; what became of what they proposed is no state."""
        query = "SELECT state FROM turn_events WHERE fire_id = ? ORDER BY sequence"
        return [state for state in self._column(query, (sent.request.fire_id,)) if state not in REVIEWS]

    def _column(self, query: str, values: tuple[str, ...]) -> list[str]:
        with contextlib.closing(
            sqlite3.connect(f"file:{self.home.agent_db}?mode=ro", uri=True, timeout=10)
        ) as connection:
            return [row[0] for row in connection.execute(query, values)]

    def lying(self, folder: str) -> list[str]:
        return [path.name for path in (self.home.inbox("agent0") / folder).glob("*.json")]


def plan(drawn: random.Random) -> tuple[str, float]:
    """Return where to kill: at a failpoint, or after a time."""
    if drawn.random() < 0.5:
        return "", drawn.uniform(0.0, LONGEST_DELAY_S)
    name = drawn.choice(list(PASSES))
    return f"runtime.{name}:{drawn.randint(1, PASSES[name])}", 0.0


def fire(number: int, thread: str, category: str = "work") -> wire.FireRequest:
    request = wire.FireRequest(
        fire_id=f"task-0000000a@{number}", task_id="task-0000000a", task_name="digest", thread_id=thread,
        channel="main", category=category, prompt=f"fire {number}", kind="manual", attempt=1,
    )  # fmt: skip
    request.nominal_at.FromSeconds(1_790_000_000 + number)
    return request


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each further one has the next")
    parser.add_argument("--nursery", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.nursery:
        nurse()
        return 0
    failed, kills = [], None
    for seed in range(given.seed, given.seed + given.rounds):
        if kills is None:
            folder = Path(tempfile.mkdtemp(prefix="tk-"))
            home = Home(root=folder / "home")
            home.create()
            kills = Kills(home)
        try:
            sys.stdout.write(f"seed {seed}: {kills.round(seed)}\n")
        except AssertionError as error:
            failed.append(seed)
            sys.stdout.write(f"seed {seed}: FAILED, its home is kept at {kills.home.root}: {error}\n")
            kills.close()
            kills = None
        sys.stdout.flush()
    if kills is not None:
        kills.close()
        shutil.rmtree(kills.home.root.parent)
    sys.stdout.write(f"{given.rounds - len(failed)} of {given.rounds} rounds held; failed seeds: {failed or 'none'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
