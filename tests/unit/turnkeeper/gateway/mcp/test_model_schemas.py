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
