"""Which arguments of a tool LangGraph puts in: nobody's choice, and not an author's to approve."""

import weakref

from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import _get_all_injected_args

_KNOWN: dict[int, tuple[weakref.ref[BaseTool], frozenset[str]]] = {}


def injected_names(tool: BaseTool) -> frozenset[str]:
    """Return the names of a tool's arguments for state, store, runtime and the like."""
    key = id(tool)
    known = _KNOWN.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    names = _names(tool)
    _KNOWN[key] = (weakref.ref(tool, lambda _gone: _KNOWN.pop(key, None)), names)
    return names


def _names(tool: BaseTool) -> frozenset[str]:
    found = _get_all_injected_args(tool)
    one = {name for name in (found.store, found.runtime) if name}
    return frozenset(one | set(found.state) | found.all_injected_keys) | tool._injected_args_keys  # noqa: SLF001
