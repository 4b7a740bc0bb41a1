"""Changes to LangChain: the signatures of its own methods are read once, those of an author's methods in each call."""

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, base, tool

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
