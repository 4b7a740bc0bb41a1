"""The same acts on a file and on a server's database: every list of the runner answers the same after each of them."""

import random  # noqa: TID251  seeded, so that a run can be repeated
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runner.conftest import Rig
from tests.support.clock import ManualClock
from tests.support.postgres import Places
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.v1 import schedules_pb2 as wire

# In the order of bytes; the order of a language passes over hyphens, and some order digits by their value.
NAMES = ["0", "00", "a", "a--b", "a-1", "a-b", "a1", "a10", "a9", "ab", "b", "ba", "n" * 63, "z-", "z0"]
CHANNELS = ["general", "a-b", "ab", "a_b"]
CATEGORIES = ["loop", "digest"]


@pytest.fixture
async def rigs(home: Home, place_of: Places) -> AsyncIterator[tuple[Rig, Rig]]:
    place = place_of(home.schedules_db)
    if isinstance(place, Path):
        pytest.skip("compares a file with a server's database: --database postgres")
    both = Rig(home, ManualClock(), home.schedules_db), Rig(home, ManualClock(), place)
    yield both
    for rig in both:
        await rig.close()


def drawn_act(draw: random.Random) -> tuple[str, Any]:
    """Return the name of a method of the service, or `pass_time`, and what it is given."""
    name = draw.choice(NAMES)
    spec = wire.TaskSpec(
        name=name, category=draw.choice(CATEGORIES), channel=draw.choice(CHANNELS), prompt="p",
        every=draw.choice(["60s", "90s", "1h"]), tags={"team": draw.choice("ab")} if draw.random() < 0.5 else {},
    )  # fmt: skip
    return draw.choice(
        [
            ("create_task", wire.CreateTaskRequest(spec=spec)),
            ("create_task", wire.CreateTaskRequest(spec=spec)),
            ("update_task", wire.UpdateTaskRequest(name=name, spec=spec)),
            ("run_task", wire.RunTaskRequest(name=name)),
            ("pause_task", wire.PauseTaskRequest(name=name)),
            ("resume_task", wire.ResumeTaskRequest(name=name)),
            ("disable_task", wire.DisableTaskRequest(name=name)),
            ("delete_task", wire.DeleteTaskRequest(name=name)),
            ("pass_time", draw.choice([1, 30, 60, 600])),
        ]
    )


def lists() -> Iterator[tuple[str, Any]]:
    for category, channel in product(("", *CATEGORIES), ("", *CHANNELS)):
        yield "list_tasks", wire.ListTasksRequest(category=category, channel=channel)
    for state in ("active", "paused", "disabled"):
        yield "list_tasks", wire.ListTasksRequest(state=state, limit=3)
    yield "list_tasks", wire.ListTasksRequest(tags={"team": "a"}, limit=4)
    for name, limit in product(NAMES, (0, 3)):
        yield "list_fires", wire.ListFiresRequest(name=name, limit=limit)


async def answer(rig: Rig, method: str, given: Any) -> Any:
    if method == "pass_time":
        return await rig.pass_time(given)
    try:
        said = await getattr(rig.service, method)(given)
    except TurnkeeperError as error:
        return str(error)
    if isinstance(said, wire.ListFiresResponse):
        for fire in said.fires:
            fire.ClearField("entry_id")  # tasks that are due at one instant are planned in any order
        said.next_cursor = said.next_cursor and "there is more"  # it holds such a number
    return said


@pytest.mark.parametrize("seed", range(3))
async def test_every_list_answers_the_same(rigs: tuple[Rig, Rig], seed: int) -> None:
    draw = random.Random(seed)
    found: set[str] = set()
    for number in range(120):
        acts = [drawn_act(draw), *(lists() if number % 20 == 19 else ())]
        for method, given in acts:
            in_file, on_server = [await answer(rig, method, given) for rig in rigs]
            assert in_file == on_server, (number, method, given)
            found |= (
                {method} if method.startswith("list") and not isinstance(in_file, str) and in_file.ByteSize() else set()
            )
    assert found == {"list_tasks", "list_fires"}
    everything = (await rigs[1].service.list_tasks(wire.ListTasksRequest())).tasks
    assert len(everything) > 5
