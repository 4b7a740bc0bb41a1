"""Tool classes with their own methods to run tools: each such method is judged before it runs.

Every way to a tool of LangChain's classes reaches `run` or `arun` of the base class. An author's class may replace any
of these methods, and never reach the base class. So while the guard is active, each method that is not LangChain's is
wrapped. This covers existing classes, and each class that is made later, for example in a node. A method may come from
the class or from any of its bases. A class cannot hide these methods by its own `__getattribute__`. An overriding
method that makes another runnable from a tool, such as `bind`, is refused, because its result might run the tool.

Not covered, because it is plain Python: a function that is assigned to an object or a class after the class was made.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from langchain_core.runnables import Runnable, RunnableSerializable
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException

from turnkeeper.errors import Denied

METHODS = (
    *("invoke", "ainvoke", "run", "arun", "__call__", "batch", "abatch", "batch_as_completed", "abatch_as_completed"),
    *("stream", "astream", "transform", "atransform", "astream_log", "astream_events", "stream_events"),
)
BUILDERS = (
    *("bind", "with_config", "with_retry", "with_fallbacks", "with_listeners", "with_alisteners", "with_types"),
    *(
        "as_tool",
        "pipe",
        "map",
        "pick",
        "assign",
        "__or__",
        "__ror__",
        "configurable_fields",
        "configurable_alternatives",
    ),
)
LOOKUP = "__getattribute__"
_GUARDED = (*METHODS, *BUILDERS, LOOKUP)
_OF_LANGCHAIN = frozenset({BaseTool, Tool, StructuredTool, RunnableSerializable, Runnable, object})
_INPUTS = ("input", "tool_input", "inputs")
_MARK = "_turnkeeper_stands_before"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of a method call.

    Attributes:
        given: the tool's input; all arguments if the input is not known.
    """

    given: Any
    call_id: str | None


@dataclass(frozen=True, kw_only=True)
class Around:
    """The wrapping of an admitted call.

    Attributes:
        execution: writes the call's events; None if no events are wanted.
        stopped: returns the answer to a failed call, or raises the failure again.
    """

    contexts: tuple[Callable[[], AbstractContextManager[Any]], ...]
    execution: Any
    stopped: Callable[[ToolException], Any]

    def entered(self) -> ExitStack:
        stack = ExitStack()
        for make in self.contexts:
            stack.enter_context(make())
        return stack


# Returns the wrapping and the input of a call, or None and the refusal as its answer.
Before = Callable[[BaseTool, Asked], tuple[Around | None, Any]]


class Overrides:
    """Wrappers around the methods of tool classes that are not LangChain's."""

    def __init__(self, before: Before) -> None:
        self._before = before
        self._kinds: WeakSet[type] = WeakSet()

    def install(self) -> None:
        """Wrap the methods of all existing classes, and of each class that is made later."""
        for kind in _kinds(BaseTool):
            self._cover(kind)
        inherited = BaseTool.__init_subclass__.__func__  # type: ignore[attr-defined]

        def made(kind: type[BaseTool], /, **kwargs: Any) -> None:
            inherited(kind, **kwargs)
            self._cover(kind)

        setattr(made, _MARK, inherited)
        BaseTool.__init_subclass__ = classmethod(made)  # type: ignore[assignment]

    def remove(self) -> None:
        made = BaseTool.__init_subclass__.__func__  # type: ignore[attr-defined]
        BaseTool.__init_subclass__ = classmethod(getattr(made, _MARK))  # type: ignore[assignment]
        for kind in list(self._kinds):
            for name in _GUARDED:
                own = getattr(vars(kind).get(name), _MARK, None)
                if own is not None and own[0] is kind:
                    setattr(kind, name, own[1])
                elif own is not None:
                    delattr(kind, name)
        self._kinds.clear()

    def _cover(self, kind: type) -> None:
        for name in _GUARDED:
            owner = _owner(kind, name)
            own = vars(owner).get(name)
            inherited = owner is not kind and issubclass(owner, BaseTool)  # the method is wrapped in `owner`
            if owner in _OF_LANGCHAIN or inherited or own is None or hasattr(own, _MARK):
                continue
            standing = self._instead(name, own)
            setattr(standing, _MARK, (owner, own))
            setattr(kind, name, standing)
            self._kinds.add(kind)

    def _instead(self, name: str, own: Any) -> Any:
        """Return the replacement for a class's own method."""
        if name == LOOKUP:
            return _lookup_past(own)
        return _standing_before(name, own, self._before) if name in METHODS else _refusing(name)


def _owner(kind: type, name: str) -> type:
    for one in kind.__mro__:
        if name in vars(one):
            return one
    return object


def _kinds(kind: type) -> Iterator[type]:
    found: list[type] = type.__subclasses__(kind)
    for one in found:
        yield one
        yield from _kinds(one)


def _lookup_past(own: Any) -> Any:
    """Return an attribute lookup that takes wrapped methods from the class, and leaves other names to `own`."""

    def lookup(tool: BaseTool, name: str) -> Any:
        return object.__getattribute__(tool, name) if name in _GUARDED else own(tool, name)

    return lookup


def _refusing(name: str) -> Any:
    """Return a method that refuses to make a runnable from a tool."""

    def method(tool: BaseTool, *_args: Any, **_kwargs: Any) -> Any:
        kind = type(tool)
        raise Denied(
            f"the class {kind.__module__}.{kind.__qualname__} has its own {name}(), and its result is not guarded",
            where=tool.name,
            hint=f"remove {name} from the class, or call the tool itself",
        )

    return method


def _standing_before(name: str, own: Any, before: Before) -> Any:
    """Return a method that has a call judged, and then runs the wrapped method."""

    def bound(tool: BaseTool) -> Any:
        return own.__get__(tool, type(tool)) if hasattr(own, "__get__") else own

    def method(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
        asked, put = _asked(name, args, kwargs)
        around, given = before(tool, asked)
        if around is None:
            return given
        args, kwargs = put(given)
        try:
            with around.entered():
                if around.execution is None:
                    return bound(tool)(*args, **kwargs)
                return around.execution.around(lambda: bound(tool)(*args, **kwargs))
        except ToolException as error:
            return around.stopped(error)

    async def async_method(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
        asked, put = _asked(name, args, kwargs)
        around, given = before(tool, asked)
        if around is None:
            return given
        args, kwargs = put(given)
        try:
            with around.entered():
                if around.execution is None:
                    return await bound(tool)(*args, **kwargs)
                return await around.execution.around_async(lambda: bound(tool)(*args, **kwargs))
        except ToolException as error:
            return around.stopped(error)

    made = async_method if inspect.iscoroutinefunction(own) else method
    return functools.wraps(own)(made) if inspect.isfunction(own) else made


def _asked(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Asked, Callable[[Any], Any]]:
    """Return the arguments of a call, and a function that replaces the input in them."""
    at = next((key for key in _INPUTS if key in kwargs), "")
    if name == "__call__" or not (args or at):
        return Asked(given={"args": list(args), **kwargs}, call_id=None), _as_it_was
    had = args[0] if args else kwargs[at]
    is_call = isinstance(had, dict) and had.get("type") == "tool_call" and "args" in had

    def put(given: Any) -> Any:
        new = {**had, "args": given} if is_call else given
        return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, at: new})

    call_id = had.get("id") if is_call else kwargs.get("tool_call_id")
    return Asked(given=had["args"] if is_call else had, call_id=call_id), put


def _as_it_was(given: Any) -> Any:
    return tuple(given["args"]), {key: value for key, value in given.items() if key != "args"}
