"""Runs one graph of a public project as its author would: init, check, a task on a schedule, answers, a kill -9 in a tool.

Runs inside the virtualenv that has Turnkeeper and what the project needs. What `graph check` said before the first fire is
compared with what the fires did afterwards.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from examples.demo import driver
from examples.demo.driver import OPEN, Driver
from tests.public_projects.stubs import Plan, Stubs, serving_stubs
from turnkeeper.config.home import VARIABLE, Home
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME
from turnkeeper.errors import TurnkeeperError

PATIENCE_S = 300.0
driver._COMMAND_TIMEOUT_S = 240.0  # a project takes its time to load
PROMPT = "Please look this up and write a note about it."
REDIRECT = Path(__file__).parent / "redirect"
_SHOWN = ("langchain", "langgraph", "deepagents", "langmem", "trustcall", "openai", "anthropic", "mcp")
_SERVICES = ("OPENAI", "ANTHROPIC", "TAVILY", "FIREWORKS", "GROQ")
_CATEGORY = """\
name = "{name}"
description = "{name}"
autonomous = true

[scopes]
tools = {tools}
memory = {tiers}
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One graph of a project and how it is driven; the keys of a table in projects.toml.

    Attributes:
        name: unique among the rows.
        reference: `langgraph.json:agent`, below the project's folder.
        payload: the input, for a graph that is no chat.
        calls, values, last: what its models do; see `Plan`.
        kill: the stub whose request is under way when the runtime is killed: search, mail, model, page or embeddings.
        answers: options of `approvals resolve` by the tool or question's beginning; others are approved.
        environ: variables that the project needs.
        options: of `task-runner create`, such as `--context`.
    """

    name: str
    reference: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    calls: list[list[Any]] = field(default_factory=list)
    values: Mapping[str, Any] = field(default_factory=dict)
    last: str = ""
    kill: str = ""
    answers: Mapping[str, list[str]] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)


def environment(stubs: Stubs, row: Row, home: Path) -> dict[str, str]:
    """Return the variables of a person who has keys, whose providers are the stubs."""
    kept = {key: value for key, value in os.environ.items() if key in {"PATH", "LANG", "TZ", "TMPDIR"}}
    own = {f"{name}_API_KEY": "key-of-a-stub" for name in _SERVICES}
    own |= {"OPENAI_API_BASE": stubs.url, "OPENAI_BASE_URL": stubs.url, "ANTHROPIC_BASE_URL": stubs.root}
    own |= {"STUBS": stubs.root, "PYTHONPATH": str(REDIRECT), "LANGSMITH_TRACING": "false", "HOME": str(home.parent)}
    return kept | own | {name: value.replace("{stubs}", stubs.root) for name, value in row.environ.items()}


class Run:
    """One row under way."""

    def __init__(self, row: Row, project: Path, home: Home, stubs: Stubs) -> None:
        self.row, self.project, self.home, self.stubs = row, project, home, stubs
        self.environ = environment(stubs, row, home.root)
        os.environ.update(self.environ)  # of the daemons that this process starts
        self.driver = Driver(home, self.environ | {VARIABLE: str(home.root)})
        self.seen: dict[str, Any] = {"name": row.name}
        stubs.plan = Plan(calls=[(name, args) for name, args in row.calls], values=row.values, last=row.last)

    def go(self) -> dict[str, Any]:
        reference = str(self.project / self.row.reference)
        made = self.driver.attempt("turnkeeper", "init", "--graph", reference)
        self.seen["init"] = _said(made)
        checked = self.driver.attempt("agent-runtime", "graph", "check", reference, "-o", "json")
        if made.returncode or checked.returncode:
            return self.seen | {"loads": False, "check": {"problem": _said(checked)}}
        self.seen |= {"loads": True, "check": json.loads(checked.stdout)}
        self._grant()
        try:
            self._fires()
        finally:
            self.driver.stop()
        self.seen["state"] = state_of(self.home, self.seen["threads"])
        return self.seen

    def _grant(self) -> None:
        """Write a category that grants what `graph check` listed; the other one stays as init wrote it."""
        scopes = [tool["scope"] for tool in (*self.seen["check"]["tools"], *self.seen["check"]["made_tools"])]
        memory = [f"memory.{verb}" for verb in ("read", "search", "put", "forget")]
        tiers = [self.seen["check"]["store"]["default_tier"]]
        text = _CATEGORY.format(name="granted", tools=json.dumps([*scopes, *memory]), tiers=json.dumps(tiers))
        (self.home.categories / "granted.toml").write_text(text)
        config = self.home.config.read_text()
        self.home.config.write_text(config.replace("autonomous_allowed = [", 'autonomous_allowed = ["granted", ', 1))
        (self.category,) = (path.stem for path in self.home.categories.glob("*.toml") if path.stem != "granted")

    def _fires(self) -> None:
        up = self.driver.attempt("turnkeeper", "up")
        if up.returncode:
            raise TurnkeeperError(up.stderr)
        self._create("asked", self.category, "--every", "5s", "--max-fires", "2", "--overlap", "queue")
        self.seen["asked"] = self._settle("asked", 2)
        turns = self.driver.ask("agent-runtime", "turns", "list")
        self.seen["threads"] = sorted({turn["thread_id"] for turn in turns})
        self.seen["errors"] = sorted({turn["error"] for turn in turns if turn["error"]})
        self.seen["requests_read"] = max(
            (text.count(PROMPT) for text in map(json.dumps, self.stubs.requests)), default=0
        )
        if self.row.kill:
            self.seen["killed"] = self._kill()

    def _create(self, name: str, category: str, *when: str) -> None:
        payload = ["--payload", json.dumps(self.row.payload)] if self.row.payload else []
        made = self.driver.attempt(
            "task-runner",
            "create",
            name,
            *when,
            "--category",
            category,
            "--channel",
            "work",
            "--prompt",
            PROMPT,
            *payload,
            *self.row.options,
        )
        if made.returncode:
            raise TurnkeeperError(made.stderr)

    def _kill(self) -> dict[str, Any]:
        """Kill the runtime while a request of its turn to a stub is under way; see the turn end all the same."""
        before = self.stubs.count(self.row.kill)
        self.stubs.hold(self.row.kill)
        self._create("killed", "granted", "--in", "1s")
        questions: list[dict[str, Any]] = []

        def caught() -> bool:
            if any(fire.outcome == "interrupted" for fire in self.driver.fires("killed")):
                self._answer(questions)
            fires = self.driver.fires("killed")
            return self.stubs.caught() or bool(fires and not any(fire.outcome in OPEN for fire in fires))

        try:
            self.driver.until("the stub to be asked", caught, PATIENCE_S)
            if not self.stubs.caught():
                return {"stub": self.row.kill, "outcomes": ["not asked"], "questions": questions, "requests": 0}
            self.driver.kill(AGENT_RUNTIME)
        finally:
            self.stubs.free()
        after = self._settle("killed", 1)
        return after | {
            "stub": self.row.kill,
            "questions": questions + after["questions"],
            "requests": self.stubs.count(self.row.kill) - before,
        }

    def _settle(self, task: str, count: int) -> dict[str, Any]:
        """Answer what is asked until a task's fires are over; return how they ended and what was asked."""
        questions: list[dict[str, Any]] = []

        def over() -> bool:
            fires = self.driver.fires(task)
            if any(fire.outcome == "interrupted" for fire in fires):
                self._answer(questions)
            return len(fires) >= count and not any(fire.outcome in OPEN for fire in fires)

        try:
            self.driver.until(f"{task} to settle", over, PATIENCE_S)
        except TurnkeeperError as error:
            return {
                "outcomes": [str(error), *(fire["outcome"] for fire in self._history(task))],
                "questions": questions,
            }
        fires = self._history(task)
        ends = [
            fire["outcome"] if fire["outcome"] == "succeeded" else f"{fire['outcome']}: {fire['reason']}"
            for fire in fires
        ]
        return {"outcomes": ends, "questions": questions}

    def _history(self, task: str) -> list[dict[str, Any]]:
        try:
            return self.driver.history(task)
        except TurnkeeperError:
            return []

    def _answer(self, questions: list[dict[str, Any]]) -> bool:
        """Answer all that waits; note each question. Return False, so that it can be polled."""
        try:
            waiting = self.driver.ask("agent-runtime", "approvals", "list")
        except TurnkeeperError:
            return False  # the runtime starts again
        for one in waiting:
            about = one["tool"] or one["question"]
            options = next((given for key, given in self.row.answers.items() if about.startswith(key)), ["--approve"])
            done = self.driver.attempt("agent-runtime", "approvals", "resolve", one["interrupt_id"], *options)
            questions.append({"kind": one["kind"], "about": about[:300], "options": options, "said": _said(done)})
        return False


def _said(done: Any) -> str:
    return "" if done.returncode == 0 else done.stderr.strip()[-600:]


def state_of(home: Home, threads: list[str]) -> dict[str, Any]:
    """Return what the thread of both fires holds: its keys, how many messages, how many steps were made on it."""
    saver = GroupedSaver(home.root / "state" / "checkpoints.db")
    try:
        found = saver.get_tuple({"configurable": {"thread_id": threads[0]}}) if len(threads) == 1 else None
    finally:
        saver.close()
    if found is None:
        return {}
    values = found.checkpoint["channel_values"]
    shown = {key: repr(value)[:80] for key, value in values.items() if not key.startswith(("branch:", "__pregel"))}
    return {"step": found.metadata["step"], "messages": len(values.get("messages") or ()), "values": shown}


def run(row: Row, project: Path, root: Path) -> dict[str, Any]:
    """Drive one row on a home of its own, below `root`."""
    home = Home(root=root / row.name)
    with serving_stubs() as stubs:
        made = Run(row, project, home, stubs)
        try:
            seen = made.go()
        except Exception:  # noqa: BLE001  a row that cannot be driven is reported as such
            seen = made.seen | {"trouble": traceback.format_exc()[-900:]}
        seen["asked_of_stubs"] = {name: stubs.count(name) for name in sorted({one for one, _, _ in stubs.seen})}
    seen["packages"] = {one.name: one.version for one in distributions() if one.name.startswith(_SHOWN)}
    return seen


def main(argv: Iterable[str]) -> None:
    """Drive the row that is given as JSON; print what was seen as JSON."""
    text, project, root = argv
    print(json.dumps(run(Row(**json.loads(text)), Path(project), Path(root))))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
