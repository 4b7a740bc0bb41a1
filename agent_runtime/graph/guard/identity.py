"""The identity of a tool: a digest of its code and values, which is the same after a restart.

The digest covers the tool's fields, and the code, constants, closure, defaults and attributes of each function, class
and object that it reaches. It does not cover variables of modules, or data that a tool reads from files or the network.

Some values have no content that can be written: clients, sockets, C objects. A tool that holds one is *inexact*. Its
digest is valid in this process only, and identifies the value by its object and by the texts in the object.
"""

import ast
import builtins
import functools
import hashlib
import inspect
import itertools
import re
import sys
import threading
import types
import typing
import weakref
from collections import deque, namedtuple
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID  # noqa: TID251  only to recognize UUIDs; none is made here
from zoneinfo import ZoneInfo

from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool, Tool
from pydantic import BaseModel
from pydantic.fields import FieldInfo, ModelPrivateAttr
from pydantic_core import PydanticUndefined

from turnkeeper.entropy import SystemEntropy

MOST_VALUES = 2000  # most objects in one value of a tool
MOST_KEPT = 256  # objects that cannot be weakly referenced
DEEPEST = 60
_PROCESS = SystemEntropy().hex(32)
_NUMBERS = itertools.count()
_PLAIN = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None), type(...), type(NotImplemented)})
_NAMED_TYPES = ("__value__", "__supertype__", "__bound__", "__constraints__")  # of aliases, new types, type variables
_LOCKS = (type(threading.Lock()), type(threading.RLock()))  # attributes of these types do not affect the result
_OF_THREADS: Mapping[type, frozenset[str]] = {  # attributes that change with each use, and that no result depends on
    threading.Condition: frozenset({"_waiters"}),
    threading.Semaphore: frozenset({"_value"}),
    threading.BoundedSemaphore: frozenset({"_value"}),
    ThreadPoolExecutor: frozenset(
        {"_broken", "_idle_semaphore", "_shutdown", "_thread_name_prefix", "_threads", "_work_queue"}
    ),
}
# Only these exact classes, because the repr of a subclass may be incomplete.
_EXACT = (
    *(Decimal, date, datetime, time, timedelta, UUID, complex, range, Fraction),
    *(PosixPath, PurePosixPath, PureWindowsPath),
)
_HEAP = 1 << 9  # in a type's flags: the class was made at run time
_WORD = 8  # bytes
_VARIABLES: dict[int, tuple[object, str]] = {}  # bare objects that modules hold, by id, with the variable's name
_LIBRARY = frozenset(
    {*StructuredTool.__mro__, *Tool.__mro__, *IntFlag.__mro__, *IntEnum.__mro__, *StrEnum.__mro__}
    | {Enum, Flag, ModelPrivateAttr, typing.Generic, type(BaseTool), type(Enum)}
)
_NOT_CODE = frozenset(
    {"__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__", "_abc_impl"}
    | {"__annotations_cache__", "__static_attributes__", "__firstlineno__", "__signature__", "__class_vars__"}
    | {"__slotnames__"}  # Python adds this when an object of the class is first copied or pickled
    | {"_value2member_map_"}  # cache of an enum, which grows with each combination of flags
)
_LABELS = frozenset({"metadata", "tags"})  # of LangChain's own classes of tools: only callbacks see them
_GIVEN = "__pydantic_fields_set__"  # in a slot: the names of the fields that were set
_PRIVATE = "__pydantic_private__"  # in a slot: also the schema that a tool made when it was first shown
_OF_TYPES = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_TUPLE_FIELD: type = type(vars(namedtuple("_One", "one"))["one"])  # noqa: PYI024  the class of a named tuple's field


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of a tool.

    Attributes:
        digest: equal for tools with the same code and values.
        inexact: why the digest is valid in this process only; empty if it is valid after a restart too.
    """

    digest: str
    inexact: str


class _InexactError(Exception):
    """A value that has no content that can be written."""


def content_digest(value: Any) -> str:
    """Return the digest of a value. The digest of a class covers its code, its attributes and its bases.

    A value without a content is identified by its object, so that the digest is valid in this process only.
    """
    writer = _Writer()
    digest = writer.held(value)
    return _digest(digest, _PROCESS) if writer.problem else digest


def identity(tool: BaseTool) -> Identity:
    """Return the current identity of a tool: a changed field gives another identity."""
    writer = _Writer()
    kind = type(tool)
    fields = _fields(tool)
    if kind in _LIBRARY:
        fields = {key: value for key, value in fields.items() if key not in _LABELS}
        fields[_GIVEN] = fields.get(_GIVEN, set()) - _LABELS
    parts = [part for key, value in sorted(fields.items()) for part in (key, writer.held(value))]
    digest = _digest("tool", writer.held(kind), *parts)
    if writer.problem:
        digest = _digest(digest, _PROCESS, _serial(tool))
    return Identity(digest=digest, inexact=writer.problem)


class _Writer:
    """Writer of values as digests.

    Attributes:
        problem: the first value without a content; empty if there is none.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._around: dict[int, int] = {}  # the values being written, by id, with their depth
        self._known: dict[int, tuple[Any, str]] = {}  # the value too, so that its id stays valid
        self._cycles = self._values = 0

    def held(self, value: Any) -> str:
        """Return the digest of one of the tool's own values; if it has no content, identify it by its object."""
        around, self._values = dict(self._around), 0
        try:
            return self.write(value, outer=True)
        except Exception as error:  # noqa: BLE001  reading an object of the author's class may raise anything
            self._around = around
            why = str(error) if isinstance(error, _InexactError) else f"it holds an object of {_name(type(value))}"
            self.problem = self.problem or (why if type(error) is _InexactError else f"{why}, which cannot be read")
            return _digest("opaque", _name(type(value)), _serial(value), *_texts(value))

    def write(self, value: Any, *, outer: bool = False) -> str:
        """Return the digest of a value. Raises _InexactError."""
        kind, key = type(value), id(value)
        if kind in _PLAIN:
            return _plain(value)
        if key in self._around:
            self._cycles += 1
            return f"again {self._around[key]}"
        if key in self._known:
            return self._known[key][1]
        self._values += 1
        if self._values > MOST_VALUES or len(self._around) > DEEPEST:
            raise _InexactError(f"it holds more than can be compared, in an object of {_name(kind)}")
        cycles, digest = self._cycles, _FIXED.get(key)
        if digest is None:
            self._around[key] = len(self._around)
            digest = self._composite(value, self.held if outer else self.write)
            del self._around[key]
        if cycles == self._cycles:
            self._known[key] = value, digest
        return digest

    def _composite(self, value: Any, inner: Callable[[Any], str]) -> str:
        kind = type(value)
        if (write := _WRITERS.get(kind)) is not None:
            empty = _EMPTY.get(id(kind), "")
            return empty if empty and not value else _digest(kind.__name__, *write(self, value, inner))
        if isinstance(value, type):
            return _digest("class", *self._class(value, inner))
        if (origin := typing.get_origin(value)) is not None:
            return _digest("generic", self.write(origin), *map(inner, typing.get_args(value)))
        if (text := _variable(value) if kind is object else exact_text(value)) is not None:
            return _digest("exact", _name(kind), text)
        if kind.__module__ in {"typing", "typing_extensions"} or kind.__name__ == "PydanticUndefinedType":
            named = [getattr(value, name, None) for name in _NAMED_TYPES]
            return _digest("typing", _name(kind), repr(value), *[self._annotation(one, inner) for one in named])
        return _digest("object", self.write(kind), *self._object(value))

    def _object(self, value: Any) -> list[str]:
        kind = type(value)
        bases = [one for one in kind.__mro__[:-1] if not one.__flags__ & _HEAP]
        slots = sum(type(one) is types.MemberDescriptorType for each in kind.__mro__ for one in vars(each).values())
        base = bases[0] if bases else object
        offsets = sum(getattr(kind, at) > getattr(base, at) for at in ("__dictoffset__", "__weakrefoffset__"))
        hidden = kind.__basicsize__ - base.__basicsize__ - _WORD * (slots + offsets)
        shadowed = any(type(vars(one).get("__dict__")) not in {type(None), *_MEMBERS} for one in kind.__mro__)
        is_client = isinstance(value, Runnable) and not isinstance(value, BaseTool)  # a model or a graph, which changes
        if len(bases) > 1 or base not in _BASES or hidden > 0 or shadowed or kind is object or is_client:
            raise _InexactError(f"it holds an object of {_name(kind)}, whose content cannot be compared")
        parts = [part for key, held in sorted(_fields(value).items()) for part in (key, self.write(held))]
        if base is not object:
            parts.append(self.write(_BASES[base](value)))
        return parts

    def _class(self, kind: type, inner: Callable[[Any], str]) -> list[str]:
        parts = [_name(kind), _name(type(kind))]
        if kind in _LIBRARY or not kind.__flags__ & _HEAP:
            return parts
        parts += map(inner, (type(kind), *kind.__bases__))
        if not issubclass(kind, BaseModel):  # classes whose fields know their types
            for name, one in vars(kind).get("__annotations__", {}).items():
                parts += [name, self._annotation(one, inner)]
        for name, held in sorted(vars(kind).items()):
            is_code = name not in _NOT_CODE and (name == "__pydantic_fields__" or not name.startswith("__pydantic_"))
            if is_code and type(held) not in _MEMBERS:
                parts += [name, inner(held)]
        return parts

    def _annotation(self, value: Any, inner: Callable[[Any], str]) -> str:
        """Return the digest of a type: its name if it is a class in its module's variables, otherwise its content."""
        if isinstance(value, type) and typing.get_origin(value) is None and _is_of_module(value):
            return _name(value)
        if (origin := typing.get_origin(value)) is not None:
            return _digest(str(origin), *[self._annotation(one, inner) for one in typing.get_args(value)])
        return inner(value)

    def _field(self, value: FieldInfo, inner: Callable[[Any], str]) -> list[str]:
        held = (value.default, value.default_factory, value.metadata, str(value.validation_alias))
        return [self._annotation(value.annotation, inner), *map(self.write, held)]

    def _function(self, value: types.FunctionType, inner: Callable[[Any], str]) -> list[str]:
        named = [*(value.__kwdefaults__ or {}).items(), *vars(value).items()]
        held = [value.__defaults__ or (), *map(_content, value.__closure__ or ()), *(one for _, one in named)]
        where = value.__globals__
        about = (value.__module__, value.__qualname__, value.__name__, value.__doc__)
        module = sys.modules.get(str(where.get("__name__")))
        if module is None or vars(module) is not where:  # code with variables that no other code shares
            held += [where[name] for name in sorted(_names(value.__code__)) if name in where]
            held += [] if _builtins_of(where) is vars(builtins) else [_builtins_of(where)]
        return [*map(str, about), _code(value.__code__), *(name for name, _ in named), *map(inner, held)]

    def _module(self, value: types.ModuleType, _inner: Any) -> list[str]:
        if sys.modules.get(value.__name__) is not value:
            raise _InexactError(f"it holds the module {value.__name__}, which was not imported")
        return [value.__name__]

    def _builtin(self, value: Any, inner: Callable[[Any], str]) -> list[str]:
        about = getattr(value, "__module__", ""), value.__qualname__
        return [*map(str, about), inner(getattr(value, "__self__", None))]

    def _of_code(self, value: types.CodeType, _inner: Any) -> list[str]:
        return [_code(value)]

    def _lasting(self, value: Any, _inner: Any) -> list[str]:
        kept = {name: held for name, held in vars(value).items() if name not in _OF_THREADS[type(value)]}
        return [part for name, held in sorted(kept.items()) for part in (name, self.write(held))]

    def _items(self, value: Any, _inner: Any) -> list[str]:
        return [*map(self.write, value)]

    def _mapping(self, value: Mapping[Any, Any], _inner: Any) -> list[str]:
        return [part for pair in value.items() for part in map(self.write, pair)]


_BASES: Mapping[type, Callable[[Any], Any]] = {
    object: lambda _value: None,
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    dict: dict.copy,
    set: set.copy,
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
_WRITERS: Mapping[type, Callable[[_Writer, Any, Callable[[Any], str]], list[str]]] = {
    list: _Writer._items,  # noqa: SLF001
    tuple: _Writer._items,  # noqa: SLF001
    **dict.fromkeys((set, frozenset), lambda writer, value, _inner: sorted(map(writer.write, value))),
    deque: lambda writer, value, _inner: [str(value.maxlen), *map(writer.write, value)],
    dict: _Writer._mapping,  # noqa: SLF001
    types.MappingProxyType: _Writer._mapping,  # noqa: SLF001
    types.FunctionType: _Writer._function,  # noqa: SLF001
    types.ModuleType: _Writer._module,  # noqa: SLF001
    types.BuiltinFunctionType: _Writer._builtin,  # noqa: SLF001
    types.MethodWrapperType: _Writer._builtin,  # noqa: SLF001
    types.CodeType: _Writer._of_code,  # noqa: SLF001
    types.MethodType: lambda _writer, value, inner: [inner(value.__func__), inner(value.__self__)],
    functools.partial: lambda _writer, value, inner: [
        *map(inner, (value.func, *value.args)),
        *value.keywords,
        *map(inner, (*value.keywords.values(), vars(value))),
    ],
    staticmethod: lambda writer, value, _inner: [writer.write(value.__func__)],
    classmethod: lambda writer, value, _inner: [writer.write(value.__func__)],
    property: lambda writer, value, _inner: [writer.write(one) for one in (value.fget, value.fset, value.fdel)],
    FieldInfo: _Writer._field,  # noqa: SLF001
    _TUPLE_FIELD: lambda writer, value, _inner: [*map(writer.write, value.__reduce__()[1])],
    re.Pattern: lambda writer, value, _inner: [writer.write(value.pattern), str(value.flags)],
    **dict.fromkeys(_OF_THREADS, _Writer._lasting),  # noqa: SLF001
    **dict.fromkeys(_LOCKS, lambda _writer, _value, _inner: []),
    **dict.fromkeys(_OF_TYPES, lambda _writer, value, _inner: [_name(value.__objclass__), value.__name__]),
}


def _digest(*parts: str) -> str:
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_of_module(kind: type) -> bool:
    return vars(sys.modules.get(kind.__module__, typing)).get(kind.__qualname__) is kind


def _variable(value: object) -> str | None:
    """Return the name of the module's variable that holds a bare object; None if no variable holds it.

    If several modules hold it, the module that makes it counts: others may be imported later or never.
    """
    if (known := _VARIABLES.get(id(value))) is not None:
        return known[1]
    modules = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)]
    found = [(name, key) for name, module in modules for key, held in list(vars(module).items()) if held is value]
    if len(found) > 1:
        found = [(name, key) for name, key in found if _makes(sys.modules[name], key)] or found
    if found:
        _VARIABLES[id(value)] = value, min(map(".".join, found))
    return _VARIABLES[id(value)][1] if found else None


def _makes(module: types.ModuleType, variable: str) -> bool:
    """Return whether the code of a module assigns the result of a call to one of its variables."""
    try:
        nodes = [*ast.walk(ast.parse(inspect.getsource(module)))]
    except (OSError, TypeError, SyntaxError):  # a module without a source
        return False
    assigned = [one for one in nodes if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(one.value, ast.Call)]
    targets = [target for one in assigned for target in (one.targets if isinstance(one, ast.Assign) else [one.target])]
    return any(isinstance(node, ast.Name) and node.id == variable for target in targets for node in ast.walk(target))


def _builtins_of(where: Mapping[str, Any]) -> Any:
    found = where.get("__builtins__", builtins)
    return vars(found) if isinstance(found, types.ModuleType) else found


def attributes(value: Any) -> dict[str, Any]:
    """Return all attributes and slots of an object itself, including slots that a subclass hides."""
    held = dict(object.__getattribute__(value, "__dict__")) if hasattr(value, "__dict__") else {}
    for number, name, member in _layout(type(value).__mro__)[0]:
        try:
            held[name if name not in held else f"{name} of base {number}"] = member.__get__(value)
        except AttributeError:  # an empty slot
            continue
    return held


def _fields(value: Any) -> dict[str, Any]:
    """Return all attributes of an object, without cached properties and the values that LangChain's tools remember."""
    kinds = type(value).__mro__
    found = attributes(value)
    for name in _layout(kinds)[1].intersection(found):
        if isinstance(next(vars(one)[name] for one in kinds if name in vars(one)), functools.cached_property):
            del found[name]
    if type(private := found.get(_PRIVATE)) is dict and isinstance(value, BaseTool):
        own = {name for kind in _LIBRARY.intersection(kinds) for name in vars(kind).get("__private_attributes__", ())}
        found[_PRIVATE] = {name: one for name, one in private.items() if name not in own}
    return found


@functools.lru_cache(maxsize=256)
def _layout(kinds: tuple[type, ...]) -> tuple[list[tuple[int, str, Any]], frozenset[str]]:
    """Return the slots of a class, and the names of its cached properties. A class gets no more slots later."""
    members = [(number, *member) for number, kind in enumerate(kinds) for member in vars(kind).items()]
    slots = [one for one in members if type(one[2]) is types.MemberDescriptorType]
    return slots, frozenset(name for _, name, member in members if isinstance(member, functools.cached_property))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return types.CellType  # marks an empty cell


@functools.lru_cache(maxsize=4096)
def _code(code: types.CodeType) -> str:
    """Return the digest of code, which never changes; line numbers and files are omitted."""
    about = (code.co_qualname, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = [_constant(one) for one in code.co_consts]
    return _digest(code.co_code.hex(), code.co_exceptiontable.hex(), repr(about), repr(names), *constants)


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return _digest("tuple", *map(_constant, value))
    if isinstance(value, frozenset):
        return _digest("frozenset", *sorted(map(_constant, value)))
    return _plain(value)


def _plain(value: Any) -> str:
    """Return a value of a plain class as text. Python refuses to convert very long numbers to decimal."""
    return f"{type(value).__name__} {hex(value) if type(value) is int else repr(value)}"


def _names(code: types.CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _texts(value: Any) -> list[str]:
    """Return the texts among the attributes of an object without content, such as an account or an address."""
    held = getattr(value, "__dict__", {})
    return [repr((key, one)) for key, one in sorted(dict(held).items()) if type(one) in {str, bytes}]


_SERIALS: dict[int, tuple[Callable[[], Any], str]] = {}
_KEPT: deque[int] = deque()  # ids of kept objects, so that no other object gets the same id


def _serial(value: Any) -> str:
    """Return a name for an object; no later object gets the same name.

    An object that cannot be weakly referenced is kept alive. Only the newest of these objects keep their names. An
    older object later gets a new name, so that its tool counts as another tool.
    """
    key = id(value)
    known = _SERIALS.get(key)
    if known is not None and known[0]() is value:
        return known[1]
    try:
        found: Callable[[], Any] = weakref.ref(value, lambda gone: _forget(key, gone))
    except TypeError:
        found = lambda: value  # noqa: E731  it holds the object
        _KEPT.append(key)
        if len(_KEPT) > MOST_KEPT:
            _SERIALS.pop(_KEPT.popleft(), None)
    _SERIALS[key] = found, f"object {next(_NUMBERS)}"
    return _SERIALS[key][1]


def _forget(key: int, gone: weakref.ref[Any]) -> None:
    if (known := _SERIALS.get(key)) is not None and known[0] is gone:
        del _SERIALS[key]


def exact_text(value: Any) -> str | None:
    """Return the repr of a value if it shows the whole content; None for any other value."""
    is_exact = type(value) in _EXACT and _is_exact_zone(getattr(value, "tzinfo", None))
    return repr((value, value.is_safe) if type(value) is UUID else value) if is_exact else None


def _is_exact_zone(zone: Any) -> bool:
    """Return whether a zone's repr identifies it. A zone that was read from a file may have any key."""
    if type(zone) is ZoneInfo:
        return zone.key is not None and ZoneInfo(zone.key) is zone
    return type(zone) in {type(None), timezone}


# The digests of objects that never change: empty containers, by the id of their class, and the library's own classes.
_EMPTY = {id(kind): _digest(kind.__name__) for kind in (list, tuple, set, frozenset, dict)}
_FIXED: dict[int, str] = {}
_FIXED |= {id(one): _Writer().write(one) for one in (*_LIBRARY, PydanticUndefined)}
