"""A tool that is made again is told to a model, and takes its arguments, as the first one."""

from typing import Any

import pytest

from agent_runtime.tools.call import spec
from agent_runtime.tools.workspace import workspace_tools


def told(nothing: Any) -> list[tuple[str, str, Any]]:
    made = [one.tool for one in workspace_tools(nothing)]
    return [(tool.name, tool.description, tool.tool_call_schema.model_json_schema()) for tool in made]


def test_tools_made_twice_are_told_alike() -> None:
    assert told(None) == told(None)


@pytest.mark.parametrize("kind", [int, str])
def test_a_body_that_is_annotated_otherwise_is_another_tool(kind: type) -> None:
    async def answer(value: kind) -> dict[str, Any]:
        """Answer."""
        return {"value": value}

    made = spec(answer, scope="a.b", effect="read").tool
    assert made.args["value"]["type"] == {int: "integer", str: "string"}[kind]
