"""The arguments of a tool call for an approval: an exact digest, and a form that the author can read.

The author approves all of a tool's arguments except those that LangGraph itself inserted. An annotation or a name shows
where a value should come from, but a caller, such as a model, may give another value. So a value is omitted only if it
is LangGraph's own: by its class, or because a `ToolNode` inserted this very object into this very call. An object
without an exact content is also omitted if the tool marks it as injected, because no model can give an object.

Two values are equal if their contents are equal: their classes, with code and attributes, and all values inside them,
including those that `str()` leaves out, cuts or hides. A secret (`SecretStr` and the like) counts with its content, but
is shown as asterisks. A value without an exact content is a problem, so a call that needs an approval is refused.
"""

import dataclasses
import hashlib
import math
import re
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from enum import Enum
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from langgraph.prebuilt.tool_node import _get_all_injected_args
from langgraph.store.base import BaseStore
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from agent_runtime.graph.guard.identity import attributes, content_digest, exact_text
from agent_runtime.model.approval import DEEPEST_ARGS
from agent_runtime.model.mapping import canonical

MOST_ITEMS_SHOWN = 1000  # most items of an array
MOST_BITS_IN_DIGITS = 10_000  # Python refuses to convert much longer numbers to decimal
_REFERENCES = frozenset("O&PzZX")  # in an array's format: objects, pointers, strings stored elsewhere, functions
_SECRETS = (Secret, SecretStr, SecretBytes)
_HIDDEN = "**********"
_BASES = (str, int, float, list, tuple, dict, set, frozenset, bytes)
_HEAP = 1 << 9  # in a type's flags: a class statement made the type


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """Written arguments.

    Attributes:
        shown: JSON for the author.
        digest: the digest of their content; equal only for equal contents.
        problem: why they cannot be shown to the author; empty if they can be shown.
        plain: True if they are plain JSON.
    """

    shown: dict[str, Any]
    digest: str
    problem: str
    plain: bool


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Injected:
    """A value that no model should give; objects inside the value may be handles without a content."""

    value: Any


def write(args: Mapping[str, Any]) -> Written:
    """Write arguments, which :func:`chosen` returned or which are plain JSON."""
    writer = _Writer()
    shown, content = writer.write(dict(args), "", 0)
    digest = hashlib.sha256(canonical(content).encode("utf-8", "surrogatepass")).hexdigest()
    return Written(shown=shown, digest=digest, problem=writer.problem, plain=writer.plain)


class _Writer:
    """Writer of values in a form to show, and as contents: JSON in which a list names the kind of its value.

    Attributes:
        problem: the first value without an exact content; empty if there is none.
    """

    def __init__(self, *, handles: bool = False) -> None:
        self.problem = ""
        self.plain = True
        self._handles = handles

    def write(self, value: Any, at: str, depth: int) -> tuple[Any, Any]:
        """Return a value in the form to show, and its content."""
        if value is None or isinstance(value, bool):
            return value, value
        if depth > DEEPEST_ARGS:
            return self._opaque(value, at, f"is nested deeper than {DEEPEST_ARGS} levels")
        if (plain := _JSON.get(type(value))) is not None:
            written: tuple[Any, Any] = plain(self, value, at, depth)
            return written
        self.plain = False
        return self._object(value, at, depth)

    def _text(self, value: str, at: str, _depth: int) -> tuple[str, str]:
        try:
            value.encode()
        except UnicodeEncodeError:
            self._say(at, "holds half a character (a lone surrogate)")
            return value.encode("utf-8", "replace").decode(), value
        return value, value

    def _whole(self, value: int, _at: str, _depth: int) -> tuple[Any, Any]:
        return (value, value) if value.bit_length() <= MOST_BITS_IN_DIGITS else (hex(value), ["int", hex(value)])

    def _float(self, value: float, _at: str, _depth: int) -> tuple[Any, Any]:
        return (value, value) if math.isfinite(value) else (repr(value), ["float", repr(value)])

    def _list(self, value: list[Any], at: str, depth: int) -> tuple[Any, Any]:
        pairs = [self.write(item, f"{at}[{number}]", depth + 1) for number, item in enumerate(value)]
        return [shown for shown, _ in pairs], ["list", *(content for _, content in pairs)]

    def _mapping(self, value: Mapping[Any, Any], at: str, depth: int) -> tuple[Any, Any]:
        shown: dict[str, Any] = {}
        contents = []
        for key, inner in value.items():
            name, known_as = self.write(key, at, depth + 1)
            if type(key) is not str:
                self.plain, name = False, canonical(name)
            if name in shown:
                self._say(at, f"has two keys that are both written {name!r:.60}")
            shown[name], content = self.write(inner, f"{at}.{name}" if at else name, depth + 1)
            contents.append([known_as, content])
        return shown, ["dict", *sorted(contents, key=canonical)]

    def _object(self, value: Any, at: str, depth: int) -> tuple[Any, Any]:
        kind, name = type(value), _name(type(value))
        if isinstance(value, _Injected):
            writer = _Writer(handles=True)
            written = writer.write(value.value, at, depth)
            self.problem = self.problem or writer.problem
        elif kind in _SECRETS or (isinstance(value, Secret) and kind.__module__ == "pydantic.types"):
            written = _HIDDEN, ["secret", name, self._state(value, at, depth)[1]]
        elif isinstance(value, Enum):
            is_member = kind.__members__.get(value._name_) is value
            shown = value._name_ if is_member else f"{value._name_} = {self.write(value._value_, at, depth + 1)[0]}"
            written = f"{kind.__name__}.{shown}", ["enum", name, content_digest(kind), content_digest(value)]
        elif (text := exact_text(value)) is not None:
            written = str(value), ["is", name, text]
        elif kind in {tuple, set, frozenset, bytes}:
            written = self._of_base(kind, value, at, depth)
        elif (array := _view(value)) is not None:
            shown, content = _array(value, array)
            written = shown, ["array", name, *content, self._state(value, at, depth)[1]]
        else:
            written = self._record(value, at, depth)
        return written

    def _of_base(self, base: type, value: Any, at: str, depth: int) -> tuple[Any, Any]:
        """Write an object's value as one of Python's own classes, without using any method of the object's class."""
        if base is bytes:
            raw = bytes.__getitem__(value, slice(None))
            return repr(raw), ["bytes", raw.hex()]
        as_plain: Mapping[type, Any] = {str: str.__str__, int: int.__int__, float: float.__float__, dict: dict.copy}
        if base in as_plain:
            return self.write(as_plain[base](value), at, depth + 1)
        items: Any = base.__iter__(value)  # type: ignore[attr-defined]
        pairs = [self.write(item, at, depth + 1) for item in items]
        if base in {set, frozenset}:
            pairs.sort(key=lambda pair: canonical(pair[1]))
        return [shown for shown, _ in pairs], [base.__name__, *(content for _, content in pairs)]

    def _record(self, value: Any, at: str, depth: int) -> tuple[Any, Any]:
        """Write an object whose class is data: a model, a dataclass, or a subclass of `dict` or `str`."""
        kind = type(value)
        built_in = [one for one in kind.__mro__[:-1] if not one.__flags__ & _HEAP]
        bases = [one for one in built_in if one in _BASES]
        declared = isinstance(value, BaseModel) or dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")
        if len(bases) < len(built_in) or len(bases) > 1 or not (declared or bases):
            return self._opaque(value, at, f"is an object of {_name(kind)}, which cannot be written exactly")
        shown, state = self._state(value, at, depth)
        if not bases:
            return shown, ["object", _name(kind), content_digest(kind), state]
        shown_base, content = self._of_base(bases[0], value, at, depth)
        shown = {"": shown_base} | shown if shown else shown_base
        return shown, [_name(kind), content_digest(kind), content, state]

    def _state(self, value: Any, at: str, depth: int) -> tuple[Any, Any]:
        held = {name: one for name, one in attributes(value).items() if name not in _OF_PYDANTIC}
        if not isinstance(value, BaseModel):
            return self._mapping(held, at, depth + 1)
        held |= (value.__pydantic_extra__ or {}) | (value.__pydantic_private__ or {})
        shown, content = self._mapping(held, at, depth + 1)
        return shown, [content, sorted(value.__pydantic_fields_set__)]

    def _opaque(self, value: Any, at: str, why: str) -> tuple[str, Any]:
        if not self._handles or why.startswith("is nested"):
            self._say(at, why)
        return f"<{type(value).__name__}>", ["opaque", _name(type(value))]

    def _say(self, at: str, why: str) -> None:
        self.problem = self.problem or f"the argument {at[:80]} {why}"


_JSON: Mapping[type, Any] = {
    str: _Writer._text,  # noqa: SLF001
    int: _Writer._whole,  # noqa: SLF001
    float: _Writer._float,  # noqa: SLF001
    list: _Writer._list,  # noqa: SLF001
    dict: _Writer._mapping,  # noqa: SLF001
}
_OF_PYDANTIC = frozenset({"__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"})


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _view(value: Any) -> memoryview | None:
    """Return the memory of an array; None for any other value, and for memory that may contain addresses."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None
    kinds = set(re.sub(r":[^:]*:", "", view.format))  # the format lacks the names of fields
    is_of_c = any(one.__module__ == "_ctypes" for one in type(view.obj).__mro__)  # the format of a union is incomplete
    of_numpy = getattr(value, "dtype", None)
    hides = getattr(of_numpy, "kind", "") in {"M", "m"} or bool(getattr(of_numpy, "metadata", None))  # units, notes
    return None if kinds & _REFERENCES or is_of_c or hides else view


def _array(value: Any, view: memoryview) -> tuple[Any, list[Any]]:
    raw = view.tobytes()
    digest, items = hashlib.sha256(raw).hexdigest(), math.prod(view.shape or ())
    content = [view.format, list(view.shape or ()), digest]
    if items <= MOST_ITEMS_SHOWN:
        try:
            return _Writer().write(view.tolist(), "", 0)[0], content
        except NotImplementedError:  # in a format that only its library knows
            pass
    return f"<{type(value).__name__} of {items:,} items, {len(raw):,} bytes, sha256 {digest}>", content


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Names:
    """Names of arguments that no model should give.

    Attributes:
        marked: names that a tool's class or function marks.
        replaced: names whose model values a `ToolNode` removes or replaces.
    """

    marked: frozenset[str]
    replaced: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _PutIn:
    """The values that a `ToolNode` inserted into its next call."""

    tool: str
    call_id: str
    values: Mapping[str, Any]


_KNOWN: dict[int, tuple[weakref.ref[BaseTool], _Names]] = {}
_PUT_IN: ContextVar[_PutIn | None] = ContextVar("turnkeeper_put_in", default=None)


def note_put_in(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Store the values that LangGraph inserted into a call, by comparing the call before and after the insertion."""
    had = before["args"]
    values = {name: value for name, value in after["args"].items() if name not in had or had[name] is not value}
    _PUT_IN.set(_PutIn(tool=before["name"], call_id=before["id"] or "", values=values))


def chosen(tool: BaseTool, args: Mapping[str, Any], call_id: str | None = None) -> dict[str, Any]:
    """Return the arguments that an approval covers, for :func:`write`.

    If the call has an id, the values that LangGraph inserted into this very call are omitted.
    """
    marked, put_in = _names_of(tool).marked, _PUT_IN.get()
    own: Mapping[str, Any] = {}
    if call_id and put_in is not None and (put_in.tool, put_in.call_id) == (tool.name, call_id):
        own = put_in.values
    about: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, ToolRuntime | BaseStore) or (name in own and own[name] is value):
            continue
        if name not in marked:
            about[name] = value
        elif _Writer(handles=True).write(value, name, 0)[1] != ["opaque", _name(type(value))]:
            about[name] = _Injected(value=value)
    return about


def sent_by_model(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's arguments that a `ToolNode` keeps."""
    return {name: value for name, value in args.items() if name not in _names_of(tool).replaced}


def _names_of(tool: BaseTool) -> _Names:
    key = id(tool)
    known = _KNOWN.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    found = _get_all_injected_args(tool)
    replaced = {name for name in (*found.state, found.store, found.runtime) if name} | found.all_injected_keys
    marked = found.all_injected_keys | tool._injected_args_keys  # noqa: SLF001  a schema leaves these out
    names = _Names(marked=frozenset(marked), replaced=frozenset(replaced))
    _KNOWN[key] = (weakref.ref(tool, lambda _gone: _KNOWN.pop(key, None)), names)
    return names
