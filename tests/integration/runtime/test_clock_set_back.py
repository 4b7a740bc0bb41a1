"""A machine whose clock was set back while nothing ran: what is newest stays newest."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base import id as ids

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from tests.integration.runtime.harness import STATES, Bench
from tests.support.postgres import Places
from tests.support.saving import at, checkpoint
from tests.support.scripted import calls
from turnkeeper.errors import Corrupt

BEHIND_NS = 3600 * 10**9
META: Any = {"source": "loop", "step": 1}


def set_back(patch: pytest.MonkeyPatch) -> None:
    """Be a new process on a machine whose clock is an hour behind what it showed to the last one."""
    module: Any = ids
    read = module.time.time_ns
    patch.setattr(ids, "_last_v6_timestamp", None)
    patch.setattr(ids, "time", SimpleNamespace(time_ns=lambda: read() - BEHIND_NS))


async def test_turns_after_a_clock_was_set_back_stand_behind_those_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.script["go"] = [calls(("note", {"text": "first"}))]
    assert (await bench.run(1)).state == STATES.SUCCEEDED
    set_back(monkeypatch)
    await bench.crash()
    bench.script["later"] = [calls(("note", {"text": "second"}))]
    assert (await bench.run(2, prompt="later")).state == STATES.SUCCEEDED
    await bench.rest()
    engine: Any = bench.runtime.worker._engines.of("")
    snapshot = await engine._graph.aget_state({"configurable": {"thread_id": "thread-a"}})
    said = [str(message.content) for message in snapshot.values["messages"]]
    assert said == ["go", "", "noted first", "done", "later", "", "noted second", "done"]
    bench.script["ask"] = [calls(("ask", {"question": "Which?"}))]
    assert (await bench.run(3, prompt="ask")).state == STATES.INTERRUPTED
    assert [one.question for one in await bench.pending()] == ["Which?"]


async def test_an_opened_file_numbers_what_comes_after_all_that_is_in_it(
    tmp_path: Path, place_of: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(tmp_path / "checkpoints.db")
    saver = GroupedSaver(place)
    before = [empty_checkpoint()["id"] for _ in range(3)]
    for number, thread in enumerate(("a", "b", "c")):
        await saver.aput(at(thread), checkpoint(before[2 - number]), META, {})
    await saver.aput(at("d"), checkpoint("no number of any kind"), META, {})
    saver.close()
    set_back(monkeypatch)
    assert empty_checkpoint()["id"] < before[0], "without the file this process would number from where the clock is"
    GroupedSaver(place).close()
    assert empty_checkpoint()["id"] > before[2]


async def test_a_file_whose_order_cannot_be_kept_is_not_opened(
    tmp_path: Path, place_of: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = ids.uuid6()
    place = place_of(tmp_path / "checkpoints.db")
    saver = GroupedSaver(place)
    await saver.aput(at(), checkpoint(empty_checkpoint()["id"]), META, {})
    saver.close()
    monkeypatch.setattr(ids, "uuid6", lambda: behind)
    with pytest.raises(Corrupt, match="in the future"):
        GroupedSaver(place)


async def test_a_file_that_is_refused_moves_no_ids_of_other_files(tmp_path: Path, place_of: Places) -> None:
    place = place_of(tmp_path / "checkpoints.db")
    saver = GroupedSaver(place)
    await saver.aput(at(), checkpoint("ffffffff-ffff-6fff-8000-000000000000"), META, {})
    saver.close()
    drawn = [empty_checkpoint()["id"]]
    with pytest.raises(Corrupt, match="in the future"):
        GroupedSaver(place)
    drawn += [empty_checkpoint()["id"] for _ in range(2)]
    assert drawn == sorted(drawn)
    assert drawn[-1] < "2"
