"""LangGraph's own conformance tests, on our checkpointer."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.store.leases import under
from tests.support.cluster import taken
from tests.support.postgres import Places


@pytest.mark.parametrize("capability", [each.value for each in Capability])
async def test_it_does_all_that_langgraph_asks_of_a_checkpointer(
    tmp_path: Path, place_of: Places, capability: str
) -> None:
    await it_conforms(capability, lambda: GroupedSaver(place_of(tmp_path / "checkpoints.db")))


@pytest.mark.parametrize("capability", [each.value for each in Capability])
async def test_so_does_one_that_proves_its_lease_with_each_write(shared_url: str, capability: str) -> None:
    url, lease = taken(shared_url)
    with under(lease):
        await it_conforms(capability, lambda: GroupedSaver(url, fenced=True))


async def it_conforms(capability: str, opened: Callable[[], GroupedSaver]) -> None:
    @checkpointer_test(name="grouped")
    async def made() -> AsyncGenerator[GroupedSaver, None]:
        saver = opened()
        yield saver
        saver.close()

    report = await validate(made, capabilities={capability})
    result = report.results[capability]
    assert result.detected
    assert not result.failures
    assert result.tests_passed > 0
