"""The offline model reads texts that others wrote."""

import pytest

from agent_runtime.graph.offline.conversation import loop_orders, orders, reply
from agent_runtime.graph.offline.iteration import iterate
from agent_runtime.graph.offline.rules import Brief
from agent_runtime.tools.supplied.orders import job

HOSTILE = [
    "use mcp:" * 20_000,
    "\n" * 100_000,
    " " * 100_000 + "x",
    "then \n" * 30_000,
    "count " * 20_000,
    "roll die until " * 10_000,
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", HOSTILE, ids=["use", "line breaks", "blanks", "then", "count", "roll"])
def test_a_hostile_prompt_is_read_in_one_pass(text: str) -> None:
    brief = Brief(prompt=text)
    for rule in (orders, loop_orders):
        assert rule(brief, []) == []
    for whole in (reply, iterate):
        whole(brief, [])
    assert job(brief) is None
