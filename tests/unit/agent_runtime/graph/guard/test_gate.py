"""Tools of one name: a grant is for both only if they do the same."""

import copy
import functools
import linecache
import os
import re
import subprocess
import sys
import threading
from collections import deque, namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from types import ModuleType
from typing import Annotated, Any, NewType

import pytest
import typing_extensions
from langchain_core.tools import BaseTool, StructuredTool, tool
from pydantic import AfterValidator, PrivateAttr, create_model

from agent_runtime.graph.guard.gate import CallRequest, _Names, shared_names
from agent_runtime.graph.guard.identity import MOST_KEPT, _variable, identity


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


class Send(BaseTool):
    name: str = "send"
    description: str = "Send."
    account: str = "alice"

    def _run(self, text: str) -> str:
        return f"{self.account}: {text}"


class Mailer:
    def __init__(self, account: str, lock: Any = None) -> None:
        self.account, self.lock = account, lock

    def send(self, text: str) -> str:
        return f"{self.account}: {text}"

    def __call__(self, text: str) -> str:
        return self.send(text)


def of(function: Callable[..., Any], **fields: Any) -> BaseTool:
    made: BaseTool = StructuredTool.from_function(
        function, name="send", description="Send.", infer_schema=False, args_schema={}, **fields
    )
    return made


def closing_over(account: Any) -> BaseTool:
    return of(lambda text: f"{account}: {text}")


def with_default(account: str) -> BaseTool:
    def send(text: str, *, account: str = account) -> str:
        return f"{account}: {text}"

    return of(send)


def with_placed_default(account: str) -> BaseTool:
    def send(text: str, account: str = account) -> str:
        return f"{account}: {text}"

    return of(send)


def with_attribute_of_partial(account: str) -> BaseTool:
    held: Any = functools.partial(print)
    held.account = account
    return closing_over(held)


def with_code(**changes: Any) -> BaseTool:
    """Return a tool whose code has these parts, such as `co_names`."""

    def send(text: str) -> str:
        return text.upper()

    send.__code__ = send.__code__.replace(**changes)
    return of(send)


def with_attribute(account: str, **attributes: str) -> BaseTool:
    def send(text: str) -> str:
        return f"{vars(send)['account']}: {text}"

    for name, value in {"account": account, **attributes}.items():
        setattr(send, name, value)
    return of(send)


def with_class(account: str) -> BaseTool:
    class Local(Send):
        def _run(self, text: str) -> str:
            return f"{account}: {text}"

    return Local()


def with_schema(account: str) -> BaseTool:
    schema = create_model("schema", text=(str, ...), account=(str, account))
    return StructuredTool.from_function(
        lambda text, account: f"{account}: {text}", name="send", description="Send.", args_schema=schema
    )


def of_schema(kind: Any) -> BaseTool:
    """Return a tool whose argument has this type."""
    return Send(args_schema=create_model("schema", text=(kind, ...)))


def hiding(hidden: str, seen: str = "same") -> Any:
    """Return an object with two slots of one name, in two classes of one name."""
    base = type("Slots", (), {"__slots__": ("account",)})
    made = type("Slots", (base,), {"__slots__": ("account",)})()
    made.account = seen
    vars(base)["account"].__set__(made, hidden)
    return made


def of_plain_field(account: str) -> Any:
    """Return an object whose class has a plain attribute where its base has a cached property."""
    cached = functools.cached_property(lambda _self: "same")
    cached.__set_name__(object, "account")
    made = type("Made", (type("Base", (), {"account": cached}),), {"account": ""})()
    made.account = account
    return made


def with_empty_cell(*, empty: bool) -> BaseTool:
    held: Any = ...

    def send(text: str) -> str:
        return f"{held}: {text}"

    if empty:
        del held
    return of(send)


MADE_OF: dict[str, Callable[[str], BaseTool]] = {
    "a field": lambda account: Send(account=account),
    "a closure": closing_over,
    "a closure over an object": lambda account: closing_over(Mailer(account)),
    "a closure inside a closure": lambda account: closing_over(closing_over(account)),
    "a closure over an array of its own class": lambda account: closing_over(type("Names", (list,), {})([account])),
    "a default": with_default,
    "a default of an argument that has a place": with_placed_default,
    "an attribute of a function": with_attribute,
    "an attribute of a partial": with_attribute_of_partial,
    "a name that code looks up": lambda account: with_code(co_names=(account,)),
    "the handlers of errors in code": lambda account: with_code(co_exceptiontable=account.encode()),
    "what code does with the same values": lambda account: of(eval(f"lambda text: text {'%+'[len(account) > 5]} text")),
    "a class that another is made of": lambda account: closing_over(
        type("Made", (type("Base", (), {"account": account}),), {})
    ),
    "a method's object": lambda account: of(Mailer(account).send),
    "an object that is called": lambda account: of(functools.partial(Mailer(account))),
    "a partial's keyword": lambda account: of(functools.partial(with_default("x").func, account=account)),  # type: ignore[attr-defined]
    "a class made in a node": with_class,
    "a default of the schema": with_schema,
    "a variable of code of no module": lambda account: of(
        eval("lambda text: f'{account}: {text}'", {"account": account})
    ),
    "constants of a lambda": lambda account: of(eval(f"lambda text: {account!r} + text")),
    "a number that Python does not write in digits": lambda account: closing_over(10**5000 + len(account)),
    "such a number in code": lambda account: of(eval(f"lambda text: {hex(10**5000 + len(account))}")),
    "the code of a schema's check": lambda account: of_schema(
        Annotated[str, AfterValidator(lambda text: account + text)]
    ),
    "such a check inside a type": lambda account: of_schema(
        list[Annotated[str, AfterValidator(lambda text: account + text)]] | None
    ),
    "a model inside the schema": lambda account: of_schema(create_model("Inner", account=(str, account))),
    "an enum inside the schema": lambda account: of_schema(Enum("Inner", {"A": account})),
    "a typed dict inside the schema": lambda account: of_schema(
        vars(typing_extensions)["TypedDict"](
            "Inner", {"text": Annotated[str, AfterValidator(lambda text: account + text)]}
        )
    ),
    "a new type inside the schema": lambda account: of_schema(
        NewType("Inner", Annotated[str, AfterValidator(lambda text: account + text)])
    ),
    "an attribute of a class's class": lambda account: closing_over(
        type("Meta", (type,), {"account": account})("Made", (), {})
    ),
    "a field of a named tuple": lambda account: closing_over(namedtuple("Pair", account)._make([1])),  # noqa: PYI024
    "a method of a text": lambda account: closing_over(account.__add__),
    "a slot that a subclass hides": lambda account: closing_over(hiding(account)),
    "a slot that hides another": lambda account: closing_over(hiding("same", account)),
    "a field in the place of a cached property": lambda account: closing_over(of_plain_field(account)),
    "the text about a function": lambda account: with_attribute("x", __doc__=account),
    "the name of a function": lambda account: with_attribute("x", __name__=account),
    "the text about a class": lambda account: closing_over(type("Made", (), {"__doc__": account})),
    "functions that Python looks up last": lambda account: of(
        eval("lambda text: open(text)", {"__builtins__": {"open": account}})
    ),
    "a client beside the text": lambda account: of(Mailer(account, lock=object()).send),
}


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in MADE_OF.items()])
def test_tools_that_differ_in_what_they_were_made_with_are_two(make: Callable[[str], BaseTool]) -> None:
    assert shared_names([make("alice"), make("mallory")]) == {"send"}


def test_a_tool_that_was_shown_and_used_is_the_same_tool() -> None:
    """LangChain's tools remember the schema that a model was shown; what an author's class remembers counts."""
    shown = StructuredTool.from_function(lambda text: text, name="send", description="d")
    before = identity(shown)
    assert shown.tool_call_schema.model_fields.keys() == {"text"}
    assert shown.invoke({"text": "hi"}) == "hi"
    assert identity(shown) == before
    counted = Counted(name="send", description="d")
    before = identity(counted)
    counted._count += 1
    assert identity(counted) != before


def test_the_labels_of_a_tool_change_nothing_unless_its_class_may_read_them() -> None:
    sends = StructuredTool.from_function(lambda text: text, name="send", description="d")
    before = identity(sends)
    sends.metadata, sends.tags = {"type": "search"}, ["web"]
    assert identity(sends) == before
    counted = Counted(name="send", description="d")
    labelled = Counted(name="send", description="d", metadata={"type": "search"})
    assert identity(counted) != identity(labelled)


class Counted(BaseTool):
    """A tool with a private attribute of its own."""

    _count: int = PrivateAttr(default=0)

    def _run(self) -> None:
        pass


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in list(MADE_OF.items())[:-1]])
def test_tools_that_were_made_with_the_same_are_one_and_exact(make: Callable[[str], BaseTool]) -> None:
    one, other = identity(make("alice")), identity(make("alice"))
    assert (one, one.inexact) == (other, "")


def test_a_variable_without_a_value_is_not_one_that_holds_an_ellipsis() -> None:
    assert shared_names([with_empty_cell(empty=True), with_empty_cell(empty=False)]) == {"send"}


class Broken:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def odd_names() -> Any:
    held: Any = Mailer("alice")
    held.__dict__[1] = "two kinds of names cannot be sorted"
    return held


@pytest.mark.parametrize("make", [Broken, odd_names])
def test_a_tool_that_holds_what_cannot_even_be_looked_at_is_bound_to_its_object(make: Callable[[], Any]) -> None:
    sends = closing_over(make())
    assert "which cannot be read" in identity(sends).inexact
    assert identity(sends) == identity(sends) != identity(closing_over(make()))


def test_a_field_or_a_cell_that_changes_makes_another_tool() -> None:
    sends, mailer = Send(), Mailer("alice")
    bound_to = of(mailer.send)
    before = identity(sends).digest, identity(bound_to).digest
    sends.account = mailer.account = "mallory"
    assert {identity(sends).digest, identity(bound_to).digest}.isdisjoint(before)


@pytest.mark.parametrize(
    ("held", "fill"),
    [([], lambda held: held.append(1)), ({}, lambda held: held.update(a=1)), (set(), lambda held: held.add(1))],
)
def test_a_tool_that_held_nothing_is_another_tool_after_it_holds_something(
    held: Any, fill: Callable[[Any], None]
) -> None:
    sends = closing_over(held)
    empty = identity(sends).digest
    fill(held)
    filled = identity(sends).digest
    held.clear()
    assert filled != empty == identity(sends).digest


def test_empty_containers_of_different_classes_are_not_the_same() -> None:
    kinds = (list, tuple, set, frozenset, dict, deque, type("Mine", (list,), {}))
    assert len({identity(closing_over(kind())).digest for kind in kinds}) == len(kinds)


def test_a_field_of_a_schema_that_gets_a_default_makes_another_tool() -> None:
    sends = of_schema(str)
    before = identity(sends).digest
    sends.args_schema.model_fields["text"].default = "mallory"  # type: ignore[union-attr]
    assert identity(sends).digest != before


def test_a_class_of_an_author_that_has_the_name_of_a_librarys_class_counts_with_its_content() -> None:
    class Named(Send):
        __module__, __qualname__ = StructuredTool.__module__, StructuredTool.__qualname__

    sends = Named()
    before = identity(sends).digest
    Named._run = lambda _self, text: text.upper()  # type: ignore[method-assign,assignment]
    assert identity(sends).digest != before


def test_a_tool_that_holds_what_cannot_be_compared_is_bound_to_its_object() -> None:
    client = object()
    one, other = closing_over(client), closing_over(client)
    assert "whose content cannot be compared" in identity(one).inexact
    assert identity(one) == identity(one)
    assert identity(one).digest != identity(other).digest


UNSET, DELETED = object(), object()


def test_an_object_without_content_counts_by_the_variable_of_its_module() -> None:
    unset = identity(closing_over(UNSET))
    assert (unset, unset.inexact) == (identity(closing_over(UNSET)), "")
    assert unset != identity(closing_over(DELETED))


@pytest.mark.parametrize("kind", [threading.Condition, threading.Semaphore, threading.BoundedSemaphore])
def test_the_state_of_a_lock_changes_nothing_but_its_own_methods_count(kind: Callable[[], Any]) -> None:
    one, other = kind(), kind()
    before = identity(closing_over(one))
    with other:
        assert (before, before.inexact) == (identity(closing_over(other)), "")
    other.acquire = lambda: None
    assert identity(closing_over(other)) != before


def test_threads_of_a_tool_change_nothing_but_what_each_of_them_runs_first_counts() -> None:
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2, initializer=print) as other:
        before = identity(closing_over(pool))
        pool.submit(int).result()
        assert (before, before.inexact) == (identity(closing_over(pool)), "")
        assert identity(closing_over(other)) != before


def test_a_queue_counts_with_its_elements() -> None:
    made = {identity(closing_over(one)) for one in (deque("a"), deque("b"), deque("a", 1))}
    assert (len(made), {one.inexact for one in made}) == (3, {""})


def test_a_tool_of_a_graph_that_gets_a_granted_name_later_has_no_grant() -> None:
    sends = Send(name="free")
    names = _Names([sends])
    sends.name = "send"
    assert names.is_shared(CallRequest(tool=sends, name="send", call_id="c1", args={}))


def test_an_object_that_cannot_be_referenced_weakly_gives_its_name_to_no_other() -> None:
    """A reader of a mapping is one: the next one may get the address of one that is gone."""
    digests = {identity(closing_over(iter({number: 1}))).digest for number in range(MOST_KEPT * 2)}
    assert len(digests) == MOST_KEPT * 2


MARKED = {
    "marked": "UNSET = object()\n",
    "a_copy": "from marked import UNSET\n",
    "sender": (
        "from langchain_core.tools import StructuredTool\nfrom marked import UNSET\n"
        "def send(text: str, to=UNSET) -> str:\n    return text\n"
        "def made(): return StructuredTool.from_function(send, description='Send.', infer_schema=False, args_schema={})\n"
    ),
}
MARKER = "import sender\nprint(identity(sender.made()).digest, bool(identity(sender.made()).inexact))\n"
PROGRAMS = (
    f"from {__name__} import MADE_OF\nprint([identity(make('alice')).digest for make in list(MADE_OF.values())[:-1]])",
    MARKER + "import a_copy\n" + MARKER,
    "import a_copy\n" + MARKER,
    MARKER,
    f"from {__name__} import closing_over\nprint(identity(closing_over(iter({{1: 1}}))).digest)",
)
EACH_IN_A_FORK = """
import os, sys
import langchain_core.tools, pytest  # once for all forks
from agent_runtime.graph.guard.identity import identity
for program in sys.argv[1:]:
    if not (pid := os.fork()):
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What the programs print in new interpreters, which draw other hashes."""
    folder = tmp_path_factory.mktemp("marked")
    for name, text in MARKED.items():
        (folder / f"{name}.py").write_text(text)
    environ = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    argv = [sys.executable, "-c", EACH_IN_A_FORK, *PROGRAMS]
    return [
        subprocess.run(
            argv, env=environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]


def test_a_digest_is_equal_after_a_restart(told: list[list[str]]) -> None:
    one, other = told
    assert one[0] == other[0]


def test_a_digest_of_what_cannot_be_written_is_of_one_process(told: list[list[str]]) -> None:
    one, other = told
    assert one[-1] != other[-1]


def test_a_marker_has_one_name_whichever_modules_are_imported_and_when(told: list[list[str]]) -> None:
    """A module that also holds the marker, loaded before the first digest, after it or never, makes no other tool."""
    lines = [line for one in told for line in one[1:-1]]
    assert len(lines) == 8
    assert len({*lines}) == 1
    assert "True" not in lines[0]


@pytest.mark.parametrize("source", ["UNSET: object = object()\n", "try:\n    UNSET = make()\nfinally:\n    pass\n"])
def test_the_module_whose_code_makes_a_marker_names_it(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = object()
    texts = {
        "b_maker": source,
        "a_copy": "from b_maker import UNSET\n",
        "a_name": "import b_maker\nUNSET = b_maker.UNSET\n",
    }
    for name, text in texts.items():
        module = ModuleType(name)
        module.__dict__.update(UNSET=marker, __file__=f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(
            linecache.cache, f"{name}.py", (len(text), None, text.splitlines(keepends=True), f"{name}.py")
        )
    assert _variable(marker) == "b_maker.UNSET"


def test_a_copy_of_what_a_tool_holds_makes_no_other_tool() -> None:
    """Python notes the names of slots in a class as soon as one of its objects is copied or pickled."""

    class Account:
        def __init__(self) -> None:
            self.name = "alice"

    account = Account()
    before = identity(closing_over(account))
    copy.copy(account)
    assert "__slotnames__" in vars(Account)
    assert identity(closing_over(account)).digest == before.digest
