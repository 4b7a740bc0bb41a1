"""What an approval is bound to: the arguments that the author sees, and an id that is equal when the call is run again.

An author approves all of a tool's arguments but those that LangGraph itself put in. An annotation or a name tells where
a value should come from, but whoever calls the tool may give another, which may be a model's. So only a value that is
LangGraph's own is left out: by its class, or because a `ToolNode` put this very object into this very call. An object
that cannot be written down is not shown either, where the tool marks it as injected: no model gives one.
"""

import dataclasses
import hashlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID  # noqa: TID251  the class, to know one by; none is made here
from weakref import WeakKeyDictionary

from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.prebuilt import ToolRuntime
from langgraph.prebuilt.tool_node import _get_all_injected_args
from langgraph.store.base import BaseStore
from pydantic import BaseModel

from agent_runtime.model.approval import canonical

_PLAIN = (str, int, float, bool, type(None))
_WRITTEN = (Enum, Decimal, date, time, timedelta, UUID, PurePath, bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Names:
    """Names of arguments that no model should fill in.

    Attributes:
        marked: a tool's class or function says so of them.
        replaced: what a model gives for them, a `ToolNode` takes out or puts its own in the place of.
    """

    marked: frozenset[str]
    replaced: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _PutIn:
    """What a `ToolNode` put into the call that it makes next."""

    tool: str
    call_id: str
    values: Mapping[str, Any]


_KNOWN: dict[int, tuple[weakref.ref[BaseTool], _Names]] = {}
_PUT_IN: ContextVar[_PutIn | None] = ContextVar("turnkeeper_put_in", default=None)


def note_put_in(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Remember what LangGraph put into a call, given the call before and after, for what is done with it next."""
    had = before["args"]
    values = {name: value for name, value in after["args"].items() if name not in had or had[name] is not value}
    _PUT_IN.set(_PutIn(tool=before["name"], call_id=before["id"] or "", values=values))


def chosen(tool: BaseTool, args: Mapping[str, Any], call_id: str | None = None) -> dict[str, Any]:
    """Return the arguments that an approval is about, objects of an injected one as what they hold.

    Args:
        tool: the tool that is called.
        args: what it is given.
        call_id: the call's, if it has one: what LangGraph put into this call is left out.
    """
    marked, put_in = _names_of(tool).marked, _PUT_IN.get()
    own: Mapping[str, Any] = {}
    if call_id and put_in is not None and (put_in.tool, put_in.call_id) == (tool.name, call_id):
        own = put_in.values
    shown: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, ToolRuntime | BaseStore) or (name in own and own[name] is value):
            continue
        if name not in marked:
            shown[name] = value
        elif not _opaque(value):
            shown[name] = _read(value)
    return shown


def sent_by_model(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `ToolNode` leaves of the arguments that a model wrote."""
    return {name: value for name, value in args.items() if name not in _names_of(tool).replaced}


def _opaque(value: Any) -> bool:
    """Return whether an object cannot be written down so that it reads the same when its node is run again."""
    readable = (*_PLAIN, *_WRITTEN, Mapping, list, tuple, set, frozenset, BaseModel)
    return not isinstance(value, readable) and not _is_record(value)


def _read(value: Any) -> Any:
    """Return what an object holds, in what JSON has; an object inside that cannot be written down as its class."""
    if isinstance(value, (*_PLAIN, *_WRITTEN)):
        return value if isinstance(value, _PLAIN) else str(value)
    if _is_record(value):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping | BaseModel):
        return {str(name): _read(inner) for name, inner in dict(value).items()}
    if isinstance(value, set | frozenset):
        return sorted((_read(inner) for inner in value), key=repr)
    return [_read(inner) for inner in value] if isinstance(value, list | tuple) else f"<{type(value).__name__}>"


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _names_of(tool: BaseTool) -> _Names:
    key = id(tool)
    known = _KNOWN.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    found = _get_all_injected_args(tool)
    replaced = {name for name in (*found.state, found.store, found.runtime) if name} | found.all_injected_keys
    marked = found.all_injected_keys | tool._injected_args_keys  # noqa: SLF001  what a schema leaves out
    names = _Names(marked=frozenset(marked), replaced=frozenset(replaced))
    _KNOWN[key] = (weakref.ref(tool, lambda _gone: _KNOWN.pop(key, None)), names)
    return names


_IN_TASK = "__pregel_call"  # in a config: the function by which a node starts tasks of its own


class RepeatedCalls:
    """Counts, for each run of a node, the calls that are exactly alike."""

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
        self._outside = itertools.count()
        self._lock = threading.Lock()

    def name(self, call: str) -> str:
        """Return a name for a call that tells it from calls exactly like it: equal whenever the node is run again.

        Args:
            call: all that is known of it.
        """
        run = configurable().get(_IN_TASK)  # made anew for each run of a node
        with self._lock:
            if run is None:  # nothing runs it again
                return f"{call}|outside {next(self._outside)}"
            alike = self._runs.setdefault(run, Counter())
            alike[call] += 1
            return f"{call}|{alike[call]}"


def made_id(at: str, name: str, args: Mapping[str, Any]) -> str:
    """Return an id for a call that has none: equal whenever its node is run again."""
    return "direct-" + hashlib.sha256(canonical([at, name, args]).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def place() -> str:
    """Return the checkpoint namespace of the running node, or nothing outside a graph."""
    return str(configurable().get("checkpoint_ns", ""))


def configurable() -> Mapping[str, Any]:
    """Return what the running graph was configured with, or nothing outside a graph."""
    try:
        return cast("Mapping[str, Any]", get_config().get("configurable", {}))
    except RuntimeError:
        return {}
