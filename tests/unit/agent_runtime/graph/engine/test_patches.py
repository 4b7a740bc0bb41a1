"""Changes to LangChain and LangGraph, which save work: what they return is what the originals return."""

import copy
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables import config as merging
from langchain_core.tools import BaseTool, base, tool
from langgraph.checkpoint.serde import jsonplus, types
from langgraph.types import Send

from agent_runtime.graph.engine import engine, patches
from agent_runtime.graph.engine.patches import _read_once

READ = [getattr(base, name) for name in ("_signature_parameters", "_get_runnable_config_param") if hasattr(base, name)]


class Echo(BaseTool):
    name: str = "echo"
    description: str = "Echo."

    def _run(self, text: str) -> str:
        return text


@tool
def note(text: str) -> str:
    """Note a text."""
    return text


@tool
def named(text: str, config: RunnableConfig) -> str:
    """Note a text under the name of the run."""
    return f"{config['metadata']['who']}: {text}"


def counted(read: Any) -> tuple[Any, list[Any]]:
    calls: list[Any] = []

    def run(called: Any) -> Any:
        calls.append(called)
        return read(called)

    return _read_once(run), calls


@pytest.mark.parametrize("read", READ)
def test_a_method_of_the_library_is_read_once_for_all_objects(read: Any) -> None:
    once, calls = counted(read)
    assert once(note._run) == once(named._run) == once(note._run) == read(note._run)
    assert len(calls) == 1


@pytest.mark.parametrize("read", READ)
def test_a_method_of_an_author_is_read_in_each_call(read: Any) -> None:
    once, calls = counted(read)
    assert once(Echo()._run) == once(Echo()._run) == read(Echo()._run)
    assert len(calls) == 2


def test_a_method_of_an_author_that_is_replaced_gets_what_it_asks_for() -> None:
    echo = Echo()
    assert echo.invoke({"text": "hi"}, {"metadata": {"who": "alice"}}) == "hi"

    def run(_self: Any, text: str, config: RunnableConfig) -> str:
        return f"{config['metadata']['who']}: {text}"

    Echo._run = run  # type: ignore[method-assign,assignment]
    assert echo.invoke({"text": "hi"}, {"metadata": {"who": "alice"}}) == "alice: hi"
    assert [one.invoke({"text": "hi"}, {"metadata": {"who": "alice"}}) for one in (note, named)] == ["hi", "alice: hi"]


@pytest.mark.parametrize("incoming", [{}, {"a": 2}, {"lc_versions": {"y": "2"}}, {"lc_versions": None}])
@pytest.mark.parametrize(
    "known", [{}, {"a": 1, "b": 1}, {"lc_versions": {"x": "1"}}, {"lc_versions": {"y": "1"}, "a": 1}]
)
def test_metadata_is_merged_as_by_langchain(known: dict[str, Any], incoming: dict[str, Any]) -> None:
    assert engine.patches is patches, "an engine applies them"
    assert merging._merge_metadata_dicts is patches._merge
    before = copy.deepcopy((known, incoming))
    merged = merging._merge_metadata_dicts(known, incoming)
    assert merged == patches._MERGE(known, incoming)
    merged["a"] = 3
    (merged.get("lc_versions") or {})["x"] = "3"
    assert (known, incoming) == before, "a change of what was merged changes neither"


def test_a_task_is_written_as_by_langgraph(monkeypatch: pytest.MonkeyPatch) -> None:
    serde, sent = jsonplus.JsonPlusSerializer(), [Send("tools", {"text": "hi"})]
    assert jsonplus.SendProtocol is Send
    written = serde.dumps_typed(sent)
    assert serde.loads_typed(written) == sent
    monkeypatch.setattr(jsonplus, "SendProtocol", types.SendProtocol)
    assert serde.dumps_typed(sent) == written
