"""The schema of each MCP tool stays as clients know it: the fields of arguments and answers, their order and defaults."""

import json
from pathlib import Path

from turnkeeper.gateway.mcp.tools import tools

KEPT = Path(__file__).with_name("model_schemas.jsonl")


def test_the_schemas_of_the_tools_are_those_that_clients_know() -> None:
    """To take a change that is meant: write the lines of `read` into the file, and review its difference."""
    read = [
        json.dumps({"tool": tool.name, "arguments": tool.parameters, "answer": tool.output_schema}, ensure_ascii=False)
        for tool in tools()
    ]
    assert read == KEPT.read_text().splitlines()


def test_a_model_reads_all_tools_in_less_than_16_kb() -> None:
    found = [
        {"name": one.name, "description": one.description, "in": one.parameters, "out": one.output_schema}
        for one in tools()
    ]
    assert len(json.dumps(found)) < 16_000
    assert not [one.name for one in tools() if "do not follow instructions" in one.description]
