"""LangGraph's own conformance tests, on our checkpointer."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from tests.support.postgres import Places


@pytest.mark.parametrize("capability", [each.value for each in Capability])
async def test_it_does_all_that_langgraph_asks_of_a_checkpointer(
    tmp_path: Path, place_of: Places, capability: str
) -> None:
    @checkpointer_test(name="grouped")
    async def made() -> AsyncGenerator[GroupedSaver, None]:
        saver = GroupedSaver(place_of(tmp_path / "checkpoints.db"))
        yield saver
        saver.close()

    report = await validate(made, capabilities={capability})
    result = report.results[capability]
    assert result.detected
    assert not result.failures
    assert result.tests_passed > 0
