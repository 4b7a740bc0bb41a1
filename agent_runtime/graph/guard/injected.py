"""Which arguments of a tool LangGraph puts in: nobody's choice, and not an author's to approve."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import _get_all_injected_args

_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, kw_only=True)
class _Names:
    """Names of arguments that no model fills in.

    Attributes:
        by_langgraph: state, store and runtime.
        by_graph: marked as injected; a graph's own code fills them in, if anybody does.
    """

    by_langgraph: frozenset[str]
    by_graph: frozenset[str]


_KNOWN: dict[int, tuple[weakref.ref[BaseTool], _Names]] = {}


def chosen(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a model or a graph chose: those that an approval is about."""
    names = _names_of(tool)
    return {
        name: value
        for name, value in args.items()
        if name not in names.by_langgraph and (name not in names.by_graph or isinstance(value, _PLAIN))
    }


def _names_of(tool: BaseTool) -> _Names:
    key = id(tool)
    known = _KNOWN.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    found = _get_all_injected_args(tool)
    ours = frozenset(name for name in (*found.state, found.store, found.runtime) if name)
    marked = (found.all_injected_keys | tool._injected_args_keys) - ours  # noqa: SLF001  what a schema leaves out
    names = _Names(by_langgraph=ours, by_graph=frozenset(marked))
    _KNOWN[key] = (weakref.ref(tool, lambda _gone: _KNOWN.pop(key, None)), names)
    return names
