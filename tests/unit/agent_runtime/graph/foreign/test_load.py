"""An author's graph is found where its reference says, in whatever form; what is wrong is said in one line."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent_runtime.graph.foreign.load import Loaded, load
from agent_runtime.graph.foreign.project import absolute_text, find_graph
from turnkeeper.errors import InvalidInput

BUILDER = """
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, TypedDict
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph_sdk.runtime import ServerRuntime

class State(TypedDict):
    x: int

builder = StateGraph(State)
builder.add_node("add", lambda state: {"x": state["x"] + 1})
builder.add_edge(START, "add")
compiled = builder.compile()
asked = []
life = []

def factory():
    return builder

def with_config(config):
    asked.append(config)
    return compiled

async def asynchronous(config: dict | None = None):
    return compiled

@asynccontextmanager
async def managed():
    life.append("opened")
    yield builder
    life.append("closed")

@contextmanager
def managed_sync():
    life.append("opened")
    yield compiled
    life.append("closed")

entered = managed()

def wants_much(config, store):
    return compiled

def of_both(runtime: ServerRuntime, config=None):
    asked.append((config, runtime))
    return compiled

def uses_the_store_too_early(runtime: Annotated[ServerRuntime[dict], "x"]):
    return runtime.store.get(("a",), "b")

def breaks():
    raise RuntimeError("no key")

def leaves():
    raise SystemExit(3)

def number():
    return 7

def endless():
    return endless

@entrypoint()
def functional(x: int) -> int:
    return x
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder with a graph; what loading adds to the process is taken out again."""
    path, modules, variables = list(sys.path), set(sys.modules), dict(os.environ)
    (tmp_path / "made.py").write_text(BUILDER)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(variables)


async def loaded(text: str, base: Path, environ: Mapping[str, str] | None = None) -> Loaded:
    async with load(find_graph(text, base), environ or {}) as found:
        return found


def written(folder: Path, project: str) -> str:
    (folder / "langgraph.json").write_text(project)
    return "./langgraph.json:agent"


@pytest.mark.parametrize(
    ("attribute", "kind"),
    [
        ("builder", "builder, compiled graph"),
        ("compiled", "compiled graph"),
        ("factory", "factory, builder, compiled graph"),
        ("with_config", "factory, compiled graph"),
        ("asynchronous", "async factory, compiled graph"),
        ("managed", "factory, async context manager, builder, compiled graph"),
        ("managed_sync", "factory, context manager, compiled graph"),
        ("entered", "async context manager, builder, compiled graph"),
        ("of_both", "factory, compiled graph"),
    ],
)
async def test_a_graph_is_taken_in_every_form(project: Path, attribute: str, kind: str) -> None:
    found = await loaded(f"made.py:{attribute}", project)
    assert found.kind == kind
    assert await found.graph.ainvoke({"x": 1}) == {"x": 2}


async def test_a_factory_that_asks_for_a_config_gets_one(project: Path) -> None:
    await loaded("made.py:with_config", project)
    assert sys.modules["made"].asked == [{"configurable": {}}]


async def test_a_factory_is_given_a_runtime_as_langgraphs_server_gives_it(project: Path) -> None:
    await loaded("made.py:of_both", project)
    ((config, runtime),) = sys.modules["made"].asked
    assert (config, runtime.access_context, runtime.user) == ({"configurable": {}}, "threads.create_run", None)
    assert runtime.execution_runtime is runtime


async def test_a_workflow_of_functions_is_a_graph(project: Path) -> None:
    found = await loaded("made.py:functional", project)
    assert (found.kind, await found.graph.ainvoke(3)) == ("workflow of functions", 3)


async def test_a_context_manager_is_entered_once_and_closed_at_the_end(project: Path) -> None:
    async with load(find_graph("made.py:managed", project), {}):
        assert sys.modules["made"].life == ["opened"]
    assert sys.modules["made"].life == ["opened", "closed"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("made.py", "is not a reference to a graph; write ./langgraph.json:NAME"),
        ("made.py:", "is not a reference to a graph"),
        ("made.py:a-b", "'a-b' is not an attribute's name"),
        ("a b:graph", "'a b' is neither a module nor a file"),
        ("missing.py:graph", "no such file: "),
        ("missing.json:graph", "no such file: "),
        ("folder/graph:graph", "is not a Python file"),
        (
            "no_such_module_here:graph",
            "ModuleNotFoundError: No module named 'no_such_module_here'; no file of the project lists a package with no_such_module_here",
        ),
        ("made.py:missing", "has no missing; it has builder, compiled"),
        ("made.py:number", "number gives what is of type int; give a StateGraph, a compiled graph"),
        ("made.py:asked", "asked is of type list; give a StateGraph"),
        ("made.py:wants_much", "takes config, store; it can be given a config and a ServerRuntime"),
        ("made.py:uses_the_store_too_early", "a factory runs before any turn, and the store belongs to turns"),
        ("made.py:breaks", "breaks cannot be made: RuntimeError: no key"),
        ("made.py:leaves", "leaves cannot be made: SystemExit: 3"),
        ("made.py:endless", "nested too deeply"),
    ],
)
async def test_a_bad_reference_is_one_line(project: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await loaded(text, project)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("x = 1\nimport no_such_package_here\n", 2, "no file of the project lists a package with no_such_package_here"),
        ("x = 1\n\ny = = 2\n", 3, "SyntaxError: invalid syntax"),
        ("\n\n\nraise ValueError('two\\nlines')\n", 4, "ValueError: two lines"),
        ("import sys\nsys.exit('bye')\n", 2, "SystemExit: bye"),
    ],
)
async def test_an_error_in_the_project_names_its_line(project: Path, code: str, line: int, said: str) -> None:
    (project / "broken_one.py").write_text(code)
    with pytest.raises(InvalidInput) as refused:
        await loaded("broken_one.py:graph", project)
    assert refused.value.where == f"{project / 'broken_one.py'}:{line}"
    assert said in str(refused.value)


async def test_a_langgraph_json_names_graphs_folders_and_variables(project: Path) -> None:
    (project / "lib").mkdir()
    (project / "lib" / "shared_part.py").write_text("NAME = 'shared'")
    text = "import os, shared_part\nfrom made import builder\nseen = (shared_part.NAME, os.environ['PROJECT_KEY'])\n"
    (project / "uses_parts.py").write_text(text)
    (project / ".env").write_text("PROJECT_KEY=from-file\n")
    graphs = '"graphs": {"agent": {"path": "./uses_parts.py:builder"}}'
    reference = written(project, f'{{{graphs}, "dependencies": [".", "./lib", "langchain"], "env": ".env"}}')
    await loaded(reference, project)
    assert sys.modules["uses_parts"].seen == ("shared", "from-file")


async def test_the_environment_wins_over_the_projects_own(project: Path) -> None:
    os.environ["PROJECT_KEY"] = "from-outside"
    reference = written(project, '{"graphs": {"agent": "./made.py:builder"}, "env": {"PROJECT_KEY": "x", "OTHER": 1}}')
    await loaded(reference, project, dict(os.environ))
    assert (os.environ["PROJECT_KEY"], os.environ["OTHER"]) == ("from-outside", "1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
        ("{}", "names no graphs"),
        ('{"graphs": {"other": "./made.py:builder"}}', "no graph 'agent'; use one of: other"),
        ('{"graphs": {"agent": 7}}', "graphs.agent is not FILE:ATTRIBUTE"),
        ('{"graphs": {"agent": "./agent.ts:graph"}}', "is not a Python file: graphs in JavaScript do not run here"),
        ('{"graphs": {"agent": "./made.py:builder"}, "env": "gone"}', "env names a missing file"),
        (
            '{"graphs": {"agent": "./made.py:builder"}, "dependencies": ["./gone"]}',
            "dependencies names a missing folder",
        ),
    ],
)
def test_a_bad_langgraph_json_is_one_line(project: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        find_graph(written(project, text), project)
    assert said in str(refused.value)


AGENT = '"graphs": {"agent": "./made.py:builder"}'


@pytest.mark.parametrize("place", ["lib/src/inner_part", "lib/inner_part", "src/inner_part", "inner_part"])
@pytest.mark.parametrize("named", ["inner_part.agent:graph", "FILE"])
async def test_a_graph_is_found_by_module_and_by_file_in_every_layout(project: Path, place: str, named: str) -> None:
    package = project / place
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "state.py").write_text(BUILDER)
    (package / "agent.py").write_text("from inner_part import state\nfrom .state import builder as graph\n")
    path = named if named != "FILE" else f"./{place}/agent.py:graph"
    lib = ', "./lib"' if place.startswith("lib") else ""
    reference = written(project, f'{{"graphs": {{"agent": "{path}"}}, "dependencies": ["."{lib}]}}')
    assert (await loaded(reference, project)).kind == "builder, compiled graph"
    assert sys.modules["inner_part.agent"].__file__ == str(package / "agent.py")


async def test_a_dependency_may_be_a_package_by_itself(project: Path) -> None:
    package = project / "libs" / "inner_part"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "state.py").write_text(BUILDER)
    (project / "outer.py").write_text("from inner_part.state import builder as graph\n")
    text = '{"graphs": {"agent": "./outer.py:graph"}, "dependencies": ["./libs/inner_part"]}'
    assert (await loaded(written(project, text), project)).kind == "builder, compiled graph"


async def test_a_missing_env_file_stops_nothing_and_its_example_says_what_is_not_set(project: Path) -> None:
    reference = written(project, f'{{{AGENT}, "env": ".env"}}')
    assert (await loaded(reference, project)).unset == []
    os.environ["KEY_B"] = "set"
    (project / ".env.example").write_bytes(b"# of the s\xffarch\nKEY_A=...\nKEY_B=...\nKEY_C\n")
    for text in (reference, "./made.py:builder"):
        assert (await loaded(text, project)).unset == ["KEY_A"]
    assert "KEY_A" not in os.environ, "an example is no value"
    (project / "made.py").write_text("import os\nos.environ['KEY_A']\n")
    del sys.modules["made"]
    with pytest.raises(InvalidInput) as refused:
        await loaded(reference, project)
    assert refused.value.where == f"{project / 'made.py'}:2"
    assert str(refused.value).endswith(f"not set are KEY_A, which .env.example names: put them into {project}/.env")


async def test_keys_of_langgraph_json_without_effect_are_named_with_what_that_means(project: Path) -> None:
    keys = {"auth": {"path": "./auth.py:auth"}, "webhooks": {}, "dockerfile_lines": [], "image_distro": "wolfi"}
    reference = written(project, f'{{{AGENT}, {json.dumps(keys)[1:-1]}, "colour": 1, "python_version": "3.99"}}')
    ignored = (await loaded(reference, project)).reference.ignored
    assert set(ignored) == {"auth", "image_distro", "colour", "python_version"}, "what is empty means nothing"
    assert ignored["auth"].startswith("its login is used only by clients")
    assert ignored["colour"] == "unknown here; it has no effect"


async def test_a_file_in_a_package_keeps_its_relative_imports(project: Path) -> None:
    package = project / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "state.py").write_text(BUILDER)
    (package / "agent.py").write_text("from .state import builder as graph\n")
    await loaded("a_package/agent.py:graph", project)
    assert "a_package.agent" in sys.modules


async def test_a_file_named_like_an_installed_module_takes_nobodys_place(project: Path) -> None:
    (project / "turnkeeper.py").write_text(BUILDER)
    (project / "json.py").write_text(BUILDER)
    installed = sys.modules["json"]
    for name in ("turnkeeper.py", "json.py"):
        assert (await loaded(f"{name}:builder", project)).kind == "builder, compiled graph"
    assert sys.modules["json"] is installed
    assert "site-packages" not in str(sys.modules["turnkeeper"].__file__ or "")
    assert sys.path[0] != str(project)


async def test_a_state_without_named_fields_is_refused(project: Path) -> None:
    text = "from langgraph.graph import START, StateGraph\ngraph = StateGraph(list)\n"
    text += "graph.add_node('a', lambda state: state)\ngraph.add_edge(START, 'a')\n"
    (project / "rootless.py").write_text(text)
    with pytest.raises(InvalidInput, match="has no named fields"):
        await loaded("rootless.py:graph", project)


def test_a_reference_written_absolutely_means_the_same_from_anywhere(project: Path) -> None:
    text = absolute_text("./made.py:builder", project)
    assert find_graph(text, Path("/")).target == find_graph("made.py:builder", project).target
    assert absolute_text("a.module:graph", project) == "a.module:graph"
