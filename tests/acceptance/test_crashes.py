"""kill -9 at every place where it could lose or double something; then what was promised is read off."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.daemon.assembly import CALLS_GRACE_S, DRAIN_GRACE_S, LAST_GRACE_S
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.bus.event_log import read_events
from turnkeeper.constellation.supervisor import daemons

pytestmark = pytest.mark.process

ONE_FIRE = ("--in", "1s", "--prompt", "Summarise the garden.")


def held_its_promises(constellation: Constellation) -> None:
    """One entry, one turn, its input once, its tool's effect once."""
    (entry,) = constellation.until_outcome("digest", "succeeded")
    assert constellation.history("digest") == [entry]
    (turn,) = constellation.conversation()
    assert turn["turn_id"] == entry["turn_id"]
    assert roles(turn).count("trigger") == 1
    assert len(constellation.ask("agent-runtime", "candidates", "list")) == 1
    assert constellation.violations() == []


def roles(turn: dict[str, Any]) -> list[str]:
    return [message["role"] for message in turn["messages"]]


@pytest.mark.parametrize(
    "failpoint",
    [  # the rest of them, one after the other, in tests/integration/runtime
        "runtime.accepted",
        "runtime.turn_step:2",
        "runtime.recorded",
    ],
)
def test_the_runtime_dies(stopped: Constellation, failpoint: str) -> None:
    stopped.start(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS=failpoint)
    stopped.start(TASK_RUNNER)
    stopped.create("digest", *ONE_FIRE)
    stopped.until_dead(AGENT_RUNTIME)
    stopped.start()
    held_its_promises(stopped)


@pytest.mark.parametrize("failpoint", ["runner.committed", "runner.handed", "runner.sent", "runner.receipt"])
def test_the_runner_dies(stopped: Constellation, failpoint: str) -> None:
    stopped.start(AGENT_RUNTIME)
    stopped.start(TASK_RUNNER, TURNKEEPER_FAILPOINTS=failpoint)
    stopped.create("digest", *ONE_FIRE)
    stopped.until_dead(TASK_RUNNER)
    stopped.start()
    held_its_promises(stopped)


def test_both_die_in_the_middle_of_a_turn(stopped: Constellation) -> None:
    stopped.start(TURNKEEPER_OFFLINE_DELAY_S="1")
    stopped.create("digest", *ONE_FIRE)
    stopped.until_outcome("digest", "running")
    stopped.kill(TASK_RUNNER)
    assert "agent-runtime killed\n" in stopped.attempt("turnkeeper", "down", "--force").stderr
    stopped.command("turnkeeper", "up")
    held_its_promises(stopped)


SLOW_STEP = """
import asyncio
from pathlib import Path
from typing import TypedDict
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    prompt: str


async def step(state):
    with Path({log!r}).open("a") as log:
        log.write("began\\n")
        log.flush()
        await asyncio.to_thread(Path({gate!r}).read_bytes)
        log.write("ended\\n")
    return {{"prompt": "done"}}


builder = StateGraph(State)
builder.add_node("step", step)
builder.add_edge(START, "step")
builder.add_edge("step", END)
graph = builder.compile()
"""


def test_a_planned_stop_waits_for_a_step_up_to_a_minute_and_does_not_run_it_twice(stopped: Constellation) -> None:
    home, log, gate = stopped.home, stopped.home.root.parent / "steps.log", stopped.home.root.parent / "gate"
    os.mkfifo(gate)
    (home.root / "slow.py").write_text(SLOW_STEP.format(log=str(log), gate=str(gate)))
    home.config.write_text('[agents.agent0]\ngraph = "./slow.py:graph"\n')
    stopped.start()
    stopped.create("digest", *ONE_FIRE)
    shut = stopped.until("the step to wait at the gate", lambda: shut_while_read(gate))
    with ThreadPoolExecutor() as aside:
        down = aside.submit(stopped.attempt, "turnkeeper", "down")
        try:
            draining = stopped.until("the runtime to drain", lambda: trail(stopped, "process.draining"))
        finally:
            os.close(shut)
        assert "agent-runtime stopped" in down.result().stderr
    assert draining[0]["grace_s"] == 60
    assert daemons.STOP_TIMEOUT_S > DRAIN_GRACE_S + CALLS_GRACE_S + LAST_GRACE_S, "down waits for as long"
    stopped.command("turnkeeper", "up")
    stopped.until_outcome("digest", "succeeded")
    assert log.read_text().split() == ["began", "ended"]


def shut_while_read(gate: Path) -> int | None:
    """Open a pipe for writing if somebody reads it, who then waits until it is closed; return its descriptor."""
    with suppress(OSError):
        return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    return None


def trail(constellation: Constellation, event: str) -> list[dict[str, Any]]:
    found = read_events(constellation.home.logs)
    return [record for record in found if (record["event"], record["process"]) == (event, AGENT_RUNTIME.name)]


def test_a_planned_stop_lets_the_turn_go_on_after_the_next_start(stopped: Constellation) -> None:
    stopped.start(TURNKEEPER_OFFLINE_DELAY_S="1")
    stopped.create("digest", *ONE_FIRE)
    stopped.until_outcome("digest", "running")
    stopped.command("turnkeeper", "down")
    stopped.command("turnkeeper", "up")
    held_its_promises(stopped)
