"""What `agent-runtime graph check` tells of a graph, as JSON that every form of output is made from. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from agent_runtime.graph.engine.inputs import read_schema
from agent_runtime.graph.foreign.open import Opened
from agent_runtime.model.values import Category
from agent_runtime.permissions.judge import FOREIGN

HIDDEN = "__start__"


def report(opened: Opened, categories: Sequence[Category], absolute: str) -> dict[str, Any]:
    """Return what was loaded, what its tools need and who grants it, what cannot be guarded, and the verdict.

    Args:
        opened: the graph.
        categories: those that may be used.
        absolute: the reference, as it means the same from any folder.
    """
    loaded, problem = opened.loaded, opened.problem()
    schema = read_schema(loaded.graph)
    return {
        "reference": loaded.reference.text,
        "absolute": absolute,
        "target": loaded.reference.target,
        "kind": loaded.kind,
        "nodes": [name for name in loaded.graph.nodes if name != HIDDEN],
        "subgraphs": [name for name, _ in loaded.graph.get_subgraphs(recurse=True)],
        "prompt_goes_to": schema.prompt_field,
        "input_schema": schema.json_schema(),
        "tools": [_tool(name, categories) for name in opened.inspection.tools],
        "unguardable": [{"where": one.where, "why": one.why} for one in opened.inspection.unguardable],
        "trusted": opened.trusted,
        "verdict": verdict(opened),
        "problem": str(problem) if problem is not None else "",
    }


def verdict(opened: Opened) -> str:
    """Return `guarded`, `trusted` (it runs, not guarded everywhere) or `refused`."""
    if opened.problem() is not None:
        return "refused"
    return "trusted" if opened.inspection.unguardable else "guarded"


def _tool(name: str, categories: Sequence[Category]) -> Mapping[str, Any]:
    scope = f"{FOREIGN}{name}"
    granting = [category.name for category in categories if scope in category.tools]
    return {"name": name, "scope": scope, "effect": "write", "granted_by": granting}
