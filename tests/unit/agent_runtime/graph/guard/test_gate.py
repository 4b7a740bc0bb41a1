"""Tools of one name: a grant is for both only if they do the same."""

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool, tool

from agent_runtime.graph.guard import shared_names


class Files:
    """Makes its tools anew in each agent, as the middleware of a library does."""

    def __init__(self, folder: Any, tools: tuple[str, ...] = ("write",)) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.tools = [self.make(name) for name in tools]

    def make(self, name: str) -> BaseTool:
        def write(text: str) -> str:
            return f"{self.folder}: {text}"

        return StructuredTool.from_function(write, name=name, description="Write.")


class Slotted:
    __slots__ = ("folder",)

    def __init__(self, folder: str) -> None:
        self.folder = folder


def join(folder: str, text: str) -> str:
    return f"{folder}: {text}"


def bound(folder: str) -> BaseTool:
    write: Callable[[str], str] = functools.partial(join, folder)
    return StructuredTool.from_function(write, name="write", description="Write.", infer_schema=False, args_schema={})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Files("/notes").tools[0],
        lambda: Files({"root": ["/notes", 1, None]}).tools[0],
        lambda: Files(Slotted("/notes")).tools[0],
        lambda: Files(frozenset({"/a", "/b"})).tools[0],
        lambda: bound("/notes"),
    ],
)
def test_tools_that_were_made_alike_share_a_grant(make: Callable[[], BaseTool]) -> None:
    assert shared_names([make(), make()]) == frozenset()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Files("/notes"), Files("/")),
        (Files({"root": ["/notes"]}), Files({"root": ["/"]})),
        (Files(Slotted("/notes")), Files(Slotted("/"))),
        (Files(1), Files(True)),
        (Files(lambda: "/notes"), Files(lambda: "/")),
        (Files(re.compile("/notes")), Files(re.compile("/"))),
        (Files(object()), Files(object())),
        (Files("/notes", ("write", "delete")), Files("/notes")),
    ],
)
def test_tools_that_differ_in_anything_do_not(one: Files, other: Files) -> None:
    assert shared_names([one.tools[0], other.tools[0]]) == {"write"}


def test_a_partial_differs_by_what_it_holds() -> None:
    assert shared_names([bound("/notes"), bound("/")]) == {"write"}


def test_the_same_code_over_other_globals_is_another_tool() -> None:
    def made(root: str) -> BaseTool:
        space: dict[str, Any] = {"__name__": "made", "root": root}
        exec("def write(path: str) -> str:\n    'Write.'\n    return root + path", space)
        return tool(space["write"])

    assert shared_names([made("/notes"), made("/")]) == {"write"}


@pytest.mark.parametrize("module", ["queued_files", "threading_of_mine", "weakrefs.files"])
def test_a_class_of_a_module_that_is_named_nearly_as_one_of_locks_counts_with_its_content(module: str) -> None:
    kind = type("Root", (), {"__module__": module, "__init__": lambda self, path: setattr(self, "path", path)})
    assert shared_names([Files(kind("/notes")).tools[0], Files(kind("/")).tools[0]]) == {"write"}
