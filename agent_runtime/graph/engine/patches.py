"""Changes to LangGraph's saving of task results, and to the work around each hook, method and run of a node."""

from collections.abc import Iterator, Mapping
from functools import lru_cache, wraps
from types import MethodType
from typing import Any

import langsmith.utils
from langchain.agents import factory
from langchain_core.language_models import chat_models
from langchain_core.runnables import config
from langchain_core.tools import base
from langgraph.checkpoint.serde import jsonplus
from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop
from langgraph.types import Send

from agent_runtime.graph.checkpointer.saver import GroupedSaver


class _NothingToSave:
    """A finished save for the loop of a graph without checkpoints, because LangGraph always awaits the last save.

    Every graph inside ours runs with our durability, even with `checkpointer=False`.
    """

    def result(self) -> None:
        """Return at once."""

    def __await__(self) -> Iterator[None]:
        return iter(())


async def _accept_push(self: AsyncPregelLoop, task: Any, index: int, call: Any = None) -> Any:
    """Let a node or a workflow call a task only after the results of the earlier tasks are on disk.

    LangGraph saves them in the background. If the process were killed before the save, an earlier task would run again.
    """
    if call is not None and isinstance(self.checkpointer, GroupedSaver):
        await self.checkpointer.asaved(str(self.config["configurable"]["thread_id"]))
    return await _ACCEPT_PUSH(self, task, index, call)


_ACCEPT_PUSH = AsyncPregelLoop.aaccept_push
_PARAMETERS = "_signature_parameters"


def _traced_if_asked(*args: Any, **options: Any) -> Any:
    """Decorate a middleware hook as LangSmith does, but at no cost until traces are really sent.

    `create_agent` traces each hook. Even without traces, this switches threads twice and takes a tenth of a turn.
    """

    def decorate(hook: Any) -> Any:
        traced = langsmith.traceable(*args, **options)(hook)

        @wraps(hook)
        def run(*given: Any, **named: Any) -> Any:
            return traced(*given, **named) if langsmith.utils.tracing_is_enabled() else hook(*given, **named)

        return run

    return decorate


def _read_once(read: Any) -> Any:
    """Read the signature of one of LangChain's own methods once, instead of in each call of a model or a tool."""
    known = lru_cache(64)(lambda function: read(MethodType(function, function)))

    @wraps(read)
    def run(called: Any) -> Any:
        function = getattr(called, "__func__", None)
        is_of_library = str(getattr(function, "__module__", "")).startswith("langchain_core.")
        return known(function) if is_of_library else read(called)

    return run


def _merge(base: Mapping[str, Any], incoming: Mapping[str, Any]) -> dict[str, Any]:
    """Merge metadata as LangChain does, which inspects the types of the versions in metadata without versions too."""
    known = _VERSIONS in base or _VERSIONS in incoming
    return dict(_MERGE(base, incoming)) if known else {**base, **incoming}


_MERGE: Any = getattr(config, "_merge_metadata_dicts", None)
_VERSIONS = "lc_versions"


def apply() -> None:
    """Make the changes, for this process."""
    setattr(AsyncPregelLoop, "aaccept_push", _accept_push)  # noqa: B010  there is no other place between two tasks
    setattr(PregelLoop, "_put_checkpoint_fut", _NothingToSave())  # noqa: B010  a loop that saves sets its own
    setattr(factory, "traceable", _traced_if_asked)  # noqa: B010  the type checker refuses a plain assignment
    setattr(config, "_merge_metadata_dicts", _merge)  # noqa: B010  each run of a node merges metadata ten times
    setattr(jsonplus, "SendProtocol", Send)  # noqa: B010  the check of a protocol takes longer than to write the task
    for module, name in ((chat_models, _PARAMETERS), (base, _PARAMETERS), (base, "_get_runnable_config_param")):
        if hasattr(module, name):
            setattr(module, name, _read_once(getattr(module, name)))
