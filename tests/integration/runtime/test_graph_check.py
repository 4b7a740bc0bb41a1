"""`turnkeeper graph check` tells what the daemon would run or refuse; `turnkeeper init --graph` listens to it."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.cli import app
from agent_runtime.permissions.categories import Categories
from tests.integration.runtime.authors_graphs import BYPASS, TALKER, WAITER
from tests.integration.runtime.test_many_graphs import FIELDS
from tests.support.forked_daemons import starting_forks
from tests.support.program import app as turnkeeper
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.console import run
from turnkeeper.constellation.install.init import Project, Tasks, look_at, next_steps, take_on, would_move
from turnkeeper.errors import Conflict

GARDEN = Project(reference="/a/garden/langgraph.json:agent", name="garden", tools=("tool:look", "tool:paint"))


ASKER = """
from typing import TypedDict
from langgraph.graph import StateGraph


class State(TypedDict, total=False):
    {field}: str


builder = StateGraph(State)
builder.add_node("look", lambda state: {{}})
builder.set_entry_point("look")
graph = builder.compile()
"""


class Shell:
    """Runs commands in this process, in the project's folder, and what they start in forks."""

    def __init__(self, home: Home, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.folder, self._capsys = home, folder, capsys
        self.err = ""

    def __call__(self, program: Any, *argv: str, code: int = 0) -> str:
        self._capsys.readouterr()
        with starting_forks():
            found = run(program, ["--home", str(self.home.root), *argv])
        out, self.err = self._capsys.readouterr()
        assert found == code, f"{argv} exited with {found}: {out}{self.err}"
        return out

    def check(self, *argv: str, code: int = 0) -> Any:
        return json.loads(self(app, "graph", "check", *argv, "-o", "json", code=code))

    def write(self, text: str) -> str:
        """Write a graph under a name that no other test has imported; return its reference."""
        file = self.folder / f"graph_{self.folder.name.replace('-', '_')}.py"
        file.write_text(text)
        return f"./{file.name}:graph"


@pytest.fixture
def shell(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    path, variables = list(sys.path), dict(os.environ)
    yield Shell(home, tmp_path, capsys)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(variables)


def test_it_shows_what_was_loaded_and_who_grants_each_tool(shell: Shell) -> None:
    (shell.home.categories / "house.toml").write_text('name = "house"\n[scopes]\ntools = ["tool:look"]\n')
    found = shell.check(shell.write("print('loading')\n" + TALKER))
    assert (found["kind"], found["nodes"], found["prompt_goes_to"]) == (
        "builder, compiled graph", ["model", "tools"], "messages",
    )  # fmt: skip
    assert found["tools"] == [
        {"name": "look", "scope": "tool:look", "effect": "write", "granted_by": ["house"]},
        {"name": "paint", "scope": "tool:paint", "effect": "write", "granted_by": []},
    ]
    assert (found["verdict"], found["problem"]) == ("guarded", "")
    assert "loading" in shell.err, "what a project prints is not data"


def test_it_shows_where_namespaces_without_a_tier_are_kept_and_who_may_use_them(shell: Shell) -> None:
    grants = 'tools = ["memory.read", "memory.search"]\nmemory = ["account"]\n'
    (shell.home.categories / "house.toml").write_text(f'name = "house"\n[scopes]\n{grants}')
    shell.home.config.write_text('[memory]\ndefault_tier = "account"\n')
    reference = shell.write(TALKER)
    found = shell.check(reference)["store"]
    kept = f"graph:{shell.folder.name}.{Path(reference).stem}.graph/"
    assert (found["default_tier"], found["kept_as"], found["search"]) == ("account", kept, "by words")
    assert ("house" in found["read_by"], "house" in found["written_by"], found["ignored"]) == (True, False, {})
    shown = shell(app, "graph", "check", reference)
    assert f"store:     a namespace without a tier is in account as {kept}…, searched by words\n" in shown
    assert "granted:   reading the store to conversation, house" in shown
    shell.home.config.write_text('[memory]\ndefault_tier = "attic"\n')
    shell(app, "graph", "check", reference, code=2)
    assert "memory.default_tier" in shell.err


EMBED = "def letters(texts):\n    return [[float(len(text))] for text in texts]\n"


@pytest.mark.parametrize(
    ("store", "search", "ignored"),
    [
        ({"index": {"dims": 1, "embed": "./embed.py:letters"}}, "by meaning, with ./embed.py:letters", {}),
        (
            {"index": {"embed": "./embed.py:words"}, "ttl": {"default_ttl": 60}},
            "by words",
            {"store.index": "words; search is by words", "store.ttl": "entries are kept until they are deleted"},
        ),
        ({"index": {"embed": "nosuch:model"}}, "by words", {"store.index": "nosuch:model cannot be made: ValueError"}),
        ({"index": {"dims": 1}}, "by words", {"store.index": "names no embeddings; search is by words"}),
        ({"index": {"embed": "./embed.py:letters", "fields": "a"}}, "by words", {"store.index": "list of strings"}),
        ({"index": {"embed": "./embed.py:letters", "dims": "x"}}, "by words", {"store.index": "dims is not a number"}),
        ({"path": "./own.py:store"}, "by words", {"store.path": "unknown here"}),
        ([], "by words", {"store": "is not an object"}),
    ],
)
def test_it_says_what_of_the_projects_store_settings_is_used_and_what_ignoring_the_rest_means(
    shell: Shell, store: Any, search: str, ignored: dict[str, str]
) -> None:
    module = shell.write(TALKER)
    (shell.folder / "embed.py").write_text(EMBED)
    project = {"graphs": {"agent": module}, "dependencies": ["."], "store": store}
    (shell.folder / "langgraph.json").write_text(json.dumps(project))
    found = shell.check("./langgraph.json:agent")["store"]
    assert (found["search"], found["kept_as"]) == (search, f"graph:{shell.folder.name}.agent/")
    assert set(found["ignored"]) == set(ignored)
    assert [key for key, why in ignored.items() if why not in found["ignored"][key]] == []
    shown = shell(app, "graph", "check", "./langgraph.json:agent")
    assert [key for key in ignored if f"ignored:   {key}: " not in shown] == []


def test_it_lists_the_tools_that_a_tool_calls(shell: Shell) -> None:
    reference = shell.write(f"""{TALKER}
@tool
def book(what: str) -> str:
    "Look at something, then book it."
    return look.invoke(what)

graph.add_node("booking", ToolNode([book]))
graph.add_edge("booking", "model")
""")
    assert shell.check(reference)["calls_inside"] == ["book calls look"]
    assert "tools in tools: book calls look: each such call is judged separately" in " ".join(
        shell(app, "graph", "check", reference).split()
    )


def test_it_says_that_a_factory_is_called_once(shell: Shell) -> None:
    reference = shell.write(f"{TALKER}\nmade = graph\ndef graph(config):\n    return made")
    assert shell.check(reference)["made_once"] == ["graph"]
    assert "made once: graph: a factory is called when the runtime starts" in shell(app, "graph", "check", reference)


def test_it_says_where_a_graph_stops_to_ask(shell: Shell) -> None:
    reference = shell.write(f"{TALKER}\ngraph = graph.compile(interrupt_before=['tools'], interrupt_after='*')")
    assert shell.check(reference)["stops"] == ["before tools", "after every step"]
    shown = shell(app, "graph", "check", reference)
    assert "stops:     before tools, after every step: asks you each time\n" in shown


def test_it_says_what_a_project_asks_for_and_does_not_find(shell: Shell) -> None:
    module = shell.write(TALKER)
    project = {"graphs": {"agent": module}, "dependencies": ["."], "env": ".env", "auth": {"path": "./a.py:auth"}}
    (shell.folder / "langgraph.json").write_text(json.dumps(project))
    (shell.folder / ".env.example").write_text("SEARCH_KEY=...\n")
    found = shell.check("./langgraph.json:agent")
    assert (found["unset"], list(found["ignored"]), found["verdict"]) == (["SEARCH_KEY"], ["auth"], "guarded")
    shown = shell(app, "graph", "check", "./langgraph.json:agent")
    assert "ignored:   auth: its login is used only by clients of the LangGraph API" in shown
    assert "not set:   SEARCH_KEY: put them into the project's .env\n" in shown


def test_it_reads_well(shell: Shell) -> None:
    shown = shell(app, "graph", "check", shell.write(WAITER))
    assert "input:     topic (required); no field receives the prompt\n" in shown
    assert "verdict:   every tool call is guarded\n" in shown


def test_what_the_daemon_would_refuse_exits_with_2_and_says_why(shell: Shell) -> None:
    reference = shell.write(BYPASS)
    found = shell.check(reference, code=2)
    assert [one["where"] for one in found["unguardable"]] == ["tools"]
    assert found["verdict"] == "refused"
    assert shell.err.startswith(f"refused: {reference}: tools cannot be guarded: OwnNode")


def test_a_trusted_graph_passes_however_its_reference_is_written(shell: Shell) -> None:
    reference = shell.write(BYPASS)
    file = (shell.folder / reference[2:]).as_posix()
    shell.home.config.write_text(f'[agents.agent0]\ngraph = "{file}"\n[categories]\ntrusted_graphs = ["{file}"]\n')
    assert shell.check(reference)["verdict"] == "trusted"
    assert shell.check()["reference"] == file


def test_a_graph_finds_the_keys_of_the_home_and_the_environment_before_its_own(shell: Shell) -> None:
    shell.home.environment.write_text("KEY_ONE=home\nKEY_TWO=home\n")
    shell.home.environment.chmod(0o600)
    (shell.folder / ".env").write_text("KEY_ONE=own\nKEY_TWO=own\nKEY_THREE=own\n")
    os.environ["KEY_ONE"] = "outside"
    wanted = "['outside', 'home', 'own']"
    found = "[os.environ[f'KEY_{one}'] for one in ('ONE', 'TWO', 'THREE')]"
    shell.check(shell.write(f"import os\nassert {found} == {wanted}, {found}\n{TALKER}"))
    shell.home.environment.chmod(0o644)
    shell(app, "graph", "check", "./any.py:graph", code=2)
    assert "can be read by others; run: chmod 600" in shell.err


def test_it_names_a_node_that_waits_for_a_terminal(shell: Shell) -> None:
    asking = TALKER.replace("def model(state):\n", "def model(state):\n    input('sure? ')\n")
    reference = shell.write(asking)
    found = shell.check(reference)
    assert found["reads_terminal"] == ["model/model"]
    shown = " ".join(shell(app, "graph", "check", reference).split())
    assert "a turn has no terminal" in shown
    assert "every tool call is guarded; a turn that reads from a terminal fails" in shown
    assert "turnkeeper categories grant" not in shown, "the home has no category of its own"
    (shell.home.categories / "house.toml").write_text('name = "house"\n[scopes]\ntools = ["tool:look"]\n')
    shown = shell(app, "graph", "check", reference)
    assert "turnkeeper categories grant house paint --autonomous" in shown
    (shell.home.categories / "house.toml").write_text('name = "house"\n[scopes]\ntools = ["tool:look", "tool:paint"]\n')
    shell.home.config.write_text(f'[graphs]\nsurvey = "{shell.folder / reference}"\n')
    shown = shell(app, "graph", "check", "--graph", "survey")
    assert "turnkeeper categories grant house look paint --graph survey --autonomous" in shown


def test_without_a_graph_there_is_nothing_to_check(shell: Shell) -> None:
    shell(app, "graph", "check", code=3)
    assert "turns run the default agent" in shell.err


def test_init_writes_nothing_for_a_graph_that_cannot_run(shell: Shell) -> None:
    fresh = Home(root=shell.home.root.parent / "fresh")
    shell.home = fresh
    shell(turnkeeper, "init", "--graph", "./missing.py:graph", code=2)
    assert shell.err.startswith("error: ./missing.py:graph: no such file: ")
    assert not fresh.root.exists()


def test_init_installs_what_a_project_lacks_or_writes_nothing(shell: Shell) -> None:
    shell.home = Home(root=shell.home.root.parent / "fresh")
    shell(turnkeeper, "init", "--install", code=2)
    assert shell.err == "error: --install: installs the packages of a project; give --graph REF\n"
    shell(turnkeeper, "init", "--graph", "./missing.py:graph", "--install", code=2)
    assert "its packages were not installed; nothing was written" in shell.err
    assert not shell.home.root.exists()
    reference = shell.write(TALKER)
    (shell.folder / "requirements.txt").write_text("langgraph\n")
    shell(turnkeeper, "init", "--graph", reference, "--install")
    assert shell.home.config.exists()


def test_taking_on_a_project_names_its_graph_and_grants_its_part_of_the_store_alone(home: Home) -> None:
    home.config.write_text("# mine\n[model]\nname = 'offline'\n")
    category = home.categories / "garden.toml"
    assert take_on(home, GARDEN) == [home.config, category]
    assert home.config.read_text().startswith("# mine\n")
    assert load_settings(home).agents["agent0"].graph == GARDEN.reference
    assert run(app, ["--home", str(home.root), "categories", "check"]) == 0
    assert category.read_text().count('# "tool:') == 2
    granted = Categories(home, load_settings(home)).get("garden")
    assert granted.tools == {"memory.read", "memory.search", "memory.put", "memory.forget"}
    assert granted.memory == {"graph"}
    assert "no other memory" in category.read_text()
    assert would_move(home, GARDEN) == ""
    assert take_on(home, GARDEN) == [], "a second time changes nothing"


def test_a_home_that_runs_another_graph_keeps_it_or_moves_to_the_new_one_as_the_author_says(home: Home) -> None:
    home.config.write_text('# mine\n[agents.agent0]\ngraph = "other.module:graph"  # before\nworkers = 2\n')
    before = home.config.read_text()
    assert would_move(home, GARDEN) == "agent0 runs the graph other.module:graph"
    assert take_on(home, GARDEN, Tasks.KEEP)[0] == home.config
    settings = load_settings(home)
    assert home.config.read_text().startswith(before), "its lines stay"
    assert (settings.agents["agent0"].graph, settings.graphs) == ("other.module:graph", {"garden": GARDEN.reference})
    assert 'graphs = ["garden"]' in (home.categories / "garden.toml").read_text()
    assert run(app, ["--home", str(home.root), "categories", "check"]) == 0
    assert (would_move(home, GARDEN), take_on(home, GARDEN, Tasks.KEEP)) == ("", []), "a second time changes nothing"
    assert take_on(home, GARDEN, Tasks.MOVE) == [home.config]
    moved = load_settings(home).agents["agent0"]
    assert (moved.graph, moved.workers) == (GARDEN.reference, 2)
    assert "--graph garden" in next_steps(home, GARDEN, example=False)[-1], "its category grants that name alone"


@pytest.mark.parametrize(
    ("field", "option"), [("topic", "--input '{\"topic\": …}'"), ("prompt", "--prompt 'What to do'")]
)
def test_init_names_what_a_task_of_the_graph_takes_in_lines_of_eighty_columns(
    shell: Shell, field: str, option: str
) -> None:
    project = look_at(shell.home, shell.write(ASKER.format(field=field)))
    steps = next_steps(shell.home, replace(project, name="nursery"), example=False)
    assert steps[-1].strip() == option
    assert max(map(len, steps)) <= 80


def test_init_names_the_first_field_besides_the_messages(shell: Shell) -> None:
    steps = next_steps(shell.home, look_at(shell.home, shell.write(FIELDS)), example=False)
    assert steps[-1].strip() == "--prompt 'What to do' --input '{\"topic\": …}'"


def test_a_graph_does_not_take_the_name_of_another(home: Home) -> None:
    before = '[graphs]\ngarden = "other.module:graph"\n'
    home.config.write_text(before)
    with pytest.raises(Conflict, match="'garden' is the name of another graph; add it under another name"):
        take_on(home, GARDEN, Tasks.KEEP)
    assert home.config.read_text() == before


def test_it_names_nodes_that_make_tools_and_tools_that_share_a_name(shell: Shell) -> None:
    twice = TALKER.replace("@tool\nasync def paint", '@tool("look")\nasync def paint').replace(
        "ToolNode([look, paint])", 'ToolNode([look])\n)\ngraph.add_node("more", ToolNode([paint])'
    )
    making = twice.replace("def model(state):\n", "def model(state):\n    tool(lambda what: what, description='d')\n")
    (shell.home.categories / "house.toml").write_text('name = "house"\n[scopes]\ntools = ["tool:look"]\n')
    reference = shell.write(making)
    found = shell.check(reference)
    assert (found["makes_tools"], found["shared_names"]) == (["model"], ["look"])
    assert found["tools"] == [{"name": "look", "scope": "tool:look", "effect": "write", "granted_by": []}]
    shown = shell(app, "graph", "check", reference)
    assert "model: only tools that the code names are listed" in shown
    assert "look: two different tools have this name" in shown


SURVEY = """
from dataclasses import dataclass
from typing import TypedDict
from langgraph.graph import START, StateGraph

@dataclass
class Context:
    owner: str

class State(TypedDict, total=False):
    topic: str

graph = StateGraph(State, context_schema=Context)
graph.add_node("survey", lambda state: {})
graph.add_edge(START, "survey")
"""
SEVERAL = """
[agents.agent0]
graph = "{file}:graph"

[graphs]
survey = "{survey}:graph"
gone = "./gone.py:graph"

[assistants.ada]
graph = "survey"
context = {{owner = "Ada"}}
description = "For Ada."

[assistants.nobody]
graph = "survey"
context = {{ower = "Ada"}}
"""


def several(shell: Shell) -> None:
    """Configure a home with three graphs, of which one is gone, and two assistants, of which one does not fit."""
    file = shell.write(TALKER).removeprefix("./").removesuffix(":graph")
    survey = shell.folder / f"survey_{file}"
    survey.write_text(SURVEY)
    shell.home.config.write_text(SEVERAL.format(file=shell.folder / file, survey=survey))
    granted = "tools = ['tool:look']\ngraphs = ['survey']\n"
    (shell.home.categories / "house.toml").write_text(f'name = "house"\n[scopes]\n{granted}')


def test_it_checks_all_graphs_of_a_home_the_default_one_first(shell: Shell) -> None:
    several(shell)
    found = shell.check()
    assert (found["name"], found["verdict"]) == ("graph", "guarded")
    assert found["tools"][0] == {"name": "look", "scope": "tool:look", "effect": "write", "granted_by": []}
    assert [(one["name"], one["verdict"]) for one in found["others"]] == [("gone", "refused"), ("survey", "guarded")]
    assert "no such file" in found["others"][0]["problem"]
    assert "gone: refused" in shell.err
    table = shell(app, "graph", "check")
    assert "context:   owner (required)" in table
    assert "assistant: nobody: context: the graph's context has no field 'ower'" in table


def test_it_checks_one_graph_by_its_name_or_an_assistants(shell: Shell) -> None:
    several(shell)
    found = shell.check("--graph", "ada")
    assert (found["name"], found["assistants"][0]) == (
        "survey",
        {"name": "ada", "description": "For Ada.", "problem": ""},
    )
    assert "others" not in found
    shell(app, "graph", "check", "--graph", "gone", code=2)
    shell(app, "graph", "check", "--graph", "adda", code=4)
    assert "did you mean ada?" in shell.err
    shell(app, "graph", "check", "x.py:g", "--graph", "ada", code=2)


def test_the_assistants_are_listed_with_the_graphs(shell: Shell) -> None:
    several(shell)
    rows = json.loads(shell(app, "assistants", "list", "-o", "json"))
    assert [(row["name"], row["kind"], row["graph"]) for row in rows] == [
        ("graph", "default graph", "graph"), ("gone", "graph", "gone"), ("survey", "graph", "survey"),
        ("ada", "assistant", "survey"), ("nobody", "assistant", "survey"),
    ]  # fmt: skip
    shown = json.loads(shell(app, "assistants", "show", "ada", "-o", "json"))
    assert (shown["context"], shown["config"], shown["description"]) == ({"owner": "Ada"}, {}, "For Ada.")
    shell(app, "assistants", "show", "eda", code=3)
    assert "did you mean ada?" in shell.err


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ('[assistants.ada]\ngraph = "survy"\n[graphs]\nsurvey = "s.py:g"', "no graph 'survy'; did you mean survey?"),
        ('[assistants.survey]\n[graphs]\nsurvey = "s.py:g"', "assistants.survey: is the name of a graph"),
        ('[graphs]\ndefault = "s.py:g"', "'default' is the name of the agent of Turnkeeper"),
        ('[agents.agent0]\ngraph = "a.py:g"\n[graphs]\ng = "s.py:g"', "'g' is the name of the graph of agent0"),
        ('[graphs]\n"a/b" = "s.py:g"', "graphs.a/b"),
        ("[assistants.ada.config]\nthread_id = 'x'", "'thread_id' is set by Turnkeeper or LangGraph"),
        ("[assistants.ada.context]\ncheckpoint_id = 'x'", "'checkpoint_id' is set by Turnkeeper or LangGraph"),
    ],
)
def test_names_that_cannot_be_are_refused_with_their_place(shell: Shell, settings: str, why: str) -> None:
    shell.home.config.write_text(settings)
    shell(app, "assistants", "list", code=2)
    assert why in shell.err
