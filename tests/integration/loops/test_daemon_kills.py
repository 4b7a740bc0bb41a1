"""Self-paced loops on real daemons, killed between iterations: none is lost, none doubled, the number climbs by one.

The graph is the shipped one with the offline model: it recalls where the loop stands, takes one step, keeps it in the
channel's memory, and says when to go on.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.forked_daemons import CLOCK, PATIENCE_S, RUNNER, RUNTIME, Nursery
from turnkeeper.config.home import Home
from turnkeeper.errors import Unreachable
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire

pytestmark = pytest.mark.process

GOAL, ENDLESS, CHANCE = "goal", "endless", "chance"  # a channel each
SETTLED = {"succeeded", "skipped"}
PROMPTS = {
    GOAL: "Count to 4 in memory, one each time.",
    ENDLESS: "Keep incrementing the count every 1s",
    CHANCE: "Roll a die until a 4 or more.",
}


@pytest.fixture
def nursery(home: Home) -> Iterator[Nursery]:
    made = Nursery(home)
    yield made
    made.close()


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = CLOCK.monotonic() + PATIENCE_S
    while True:
        try:
            found = holds()
        except Unreachable:
            found = None
        if found:
            return found
        assert CLOCK.monotonic() < deadline, f"waited for {what}"
        CLOCK.block(0.02)


def make(nursery: Nursery, channel: str) -> str:
    spec = wire.TaskSpec(dynamic=True, prompt=PROMPTS[channel], channel=channel)
    loop_id: str = nursery.runner.CreateTask(wire.CreateTaskRequest(spec=spec, loop=True)).task.id
    return loop_id


def task(nursery: Nursery, loop_id: str) -> wire.Task:
    found: wire.Task = nursery.runner.GetTask(wire.GetTaskRequest(name=loop_id))
    return found


def fires(nursery: Nursery, loop_id: str) -> list[wire.Fire]:
    return list(nursery.runner.ListFires(wire.ListFiresRequest(name=loop_id)).fires)


def kept(nursery: Nursery, channel: str) -> list[str]:
    """Return what each iteration kept, in the order of the conversation; an author's turns are left out."""
    shown = nursery.runtime.GetConversation(runtime.GetConversationRequest(channel=channel))
    calls = [call for turn in shown.turns for message in turn.messages for call in message.tool_calls]
    return [_text(call.args_json) for call in calls if call.name == "memory_put"]


def _text(args_json: str) -> str:
    return str(json.loads(args_json)["text"])


def test_each_kind_of_loop_goes_on_across_kills_of_either_daemon(nursery: Nursery) -> None:
    for which in (RUNTIME, RUNNER):
        nursery.start(which)
    loops = {channel: make(nursery, channel) for channel in PROMPTS}
    for number, victim in enumerate((RUNTIME, RUNNER), 1):
        until(lambda number=number: len(kept(nursery, GOAL)) >= number, "an iteration")
        nursery.kill(victim)
        nursery.start(victim)
    for channel in (GOAL, CHANCE):
        until(lambda channel=channel: task(nursery, loops[channel]).state == "done", f"the end of {channel}")
    until(lambda: len(kept(nursery, ENDLESS)) >= 4, "the endless loop")
    nursery.runtime.SendMessage(runtime.SendMessageRequest(channel=ENDLESS, text="loops", thread_id=loops[ENDLESS]))
    until(lambda: task(nursery, loops[ENDLESS]).state == "done", "the end by an author")
    until(lambda: {fire.outcome for fire in fires(nursery, loops[ENDLESS])} <= SETTLED, "the end of its last turn")

    counted = kept(nursery, GOAL)
    assert counted == ["1", "2", "3", "4"]
    endless = kept(nursery, ENDLESS)
    assert endless == [str(number) for number in range(1, len(endless) + 1)]
    rolled = kept(nursery, CHANCE)
    assert [roll.split(":")[0] for roll in rolled] == [f"roll {number}" for number in range(1, len(rolled) + 1)]
    assert [int(roll[-1]) >= 4 for roll in rolled] == [False] * (len(rolled) - 1) + [True]
    for channel in (GOAL, CHANCE):
        assert task(nursery, loops[channel]).iteration == len(kept(nursery, channel))
    for channel, loop_id in loops.items():
        outcomes = [fire.outcome for fire in fires(nursery, loop_id)]
        assert outcomes.count("succeeded") == len(kept(nursery, channel))
        assert set(outcomes) <= (SETTLED if channel == ENDLESS else {"succeeded"})
