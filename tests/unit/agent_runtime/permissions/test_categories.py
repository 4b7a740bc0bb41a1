"""Categories: shipped, overridden, broken, edited while somebody watches."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.permissions.categories import Categories
from agent_runtime.permissions.judge import REQUEST, SCOPES
from agent_runtime.permissions.lint import lint
from agent_runtime.tools.agents import agent_tools, subagent_tools
from agent_runtime.tools.folder.folder import folder_tools
from agent_runtime.tools.loops import loop_tools
from agent_runtime.tools.restart import lifecycle_tools
from agent_runtime.tools.workspace import workspace_tools
from turnkeeper.config.home import Home
from turnkeeper.config.settings import CategorySettings, Settings
from turnkeeper.errors import InvalidInput, NotFound

SHIPPED = Path(__file__).parents[4] / "categories"


def load(home: Home, settings: Settings | None = None) -> Categories:
    return Categories(home, settings or Settings())


def write(home: Home, name: str, text: str) -> Path:
    path = home.categories / f"{name}.toml"
    path.write_text(text)
    return path


def test_the_shipped_ones_are_there_and_have_nothing_wrong(home: Home) -> None:
    entries = {entry.name: entry for entry in load(home).all()}
    assert set(entries) == {
        "catch-up-summary", "conversation", "folder-report", "loop", "memory-consolidation", "peer",
        "re-validation-walk", "research-sweep",
    }  # fmt: skip
    assert all(entry.source == "shipped" and not entry.problem for entry in entries.values())
    assert [finding for path in SHIPPED.glob("*.toml") for finding in lint(path)] == []


def test_a_model_is_shown_and_a_name_that_is_none_is_an_error_in_its_line(home: Home) -> None:
    write(home, "cheap", 'name = "cheap"\nmodel = "gpt-5-mini"\n')
    write(home, "plain", 'name = "plain"\n')
    assert load(home).get("cheap").model == "openai:gpt-5-mini"
    assert "model" not in load(home).get("plain").to_dict(), "as homes of earlier versions have it"
    wrong = write(home, "wrong", 'name = "wrong"\nmodel = "opena:gpt-5"\n')
    with pytest.raises(InvalidInput, match="no provider 'opena'"):
        load(home).get("wrong")
    (finding,) = lint(wrong)
    assert (finding.level, finding.where) == ("error", f"{wrong}:2: model")
    assert "did you mean openai:gpt-5?" in finding.what


def test_what_a_new_home_lets_run_by_itself_is_what_is_shipped_for_it(home: Home) -> None:
    declared = {entry.name for entry in load(home).all() if entry.declared_autonomous}
    assert declared == {"catch-up-summary", "loop", "memory-consolidation", "peer", "re-validation-walk"}
    assert declared <= set(Settings().categories.autonomous_allowed)


def test_every_scope_has_a_tool_and_every_tool_a_scope() -> None:
    nothing: Any = None
    every = [
        *workspace_tools(nothing),
        *agent_tools(nothing),
        *lifecycle_tools(nothing),
        *loop_tools(nothing),
        *subagent_tools(nothing),
        *folder_tools(nothing, ".", nothing),
    ]
    assert {spec.scope for spec in every} == {*SCOPES, REQUEST}, "asking for permission needs none"


def test_the_summary_grants_what_it_says_and_no_page(home: Home) -> None:
    category = load(home).get("catch-up-summary")
    assert category.writes == {"candidate-summary"}
    assert "memory.put" not in category.tools
    assert (category.autonomous, category.silent, category.outside) == (True, False, "ask")
    assert (category.seconds, category.tool_calls, category.tokens) == (300, 50, 200_000)


def test_autonomous_takes_the_category_and_the_workspace(home: Home) -> None:
    settings = Settings(categories=CategorySettings(autonomous_allowed=()))
    (entry,) = [entry for entry in load(home, settings).all() if entry.name == "catch-up-summary"]
    assert entry.category is not None
    assert (entry.declared_autonomous, entry.category.autonomous) == (True, False)


def test_the_authors_file_overrides_a_shipped_one_and_says_so(home: Home) -> None:
    write(home, "conversation", 'name = "conversation"\n[scopes]\ntools = ["workspace.read"]\n')
    categories = load(home)
    (entry,) = [entry for entry in categories.all() if entry.name == "conversation"]
    assert (entry.source, entry.overrides_shipped) == ("author", True)
    assert categories.get("conversation").tools == {"workspace.read"}


def test_a_broken_override_is_refused_and_never_falls_back(home: Home) -> None:
    path = write(home, "conversation", 'name = "conversation"\nautonomus = true\n')
    categories = load(home)
    with pytest.raises(InvalidInput, match="cannot be used") as refused:
        categories.get("conversation")
    assert f"{path}:2: autonomus: unknown key" in str(refused.value)
    (entry,) = [entry for entry in categories.all() if entry.name == "conversation"]
    assert entry.category is None
    assert entry.overrides_shipped


def test_an_unknown_name_is_answered_with_the_known_ones(home: Home) -> None:
    with pytest.raises(NotFound, match="use one of: catch-up-summary, conversation"):
        load(home).get("nosuch")


def test_an_edit_is_seen_without_a_restart(home: Home) -> None:
    categories = load(home)
    assert categories.get("conversation").tools
    path = write(home, "conversation", 'name = "conversation"\n')
    assert categories.get("conversation").tools == frozenset()
    path.unlink()
    assert categories.get("conversation").tools


def test_an_edit_is_seen_though_the_files_times_and_size_are_as_before(home: Home) -> None:
    categories = load(home)
    path = write(home, "work", 'name = "work"\n[scopes]\ntools = ["tool:note"]\n')
    assert categories.get("work").tools == {"tool:note"}
    before = path.stat()
    path.write_text(path.read_text().replace("note", "mote"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert categories.get("work").tools == {"tool:mote"}
    assert {one.name: one.category.tools for one in categories.all() if one.category}["work"] == {"tool:mote"}


@pytest.mark.parametrize("name", ["../work", "\0", "\ud83d", "a" * 500])
def test_a_name_that_no_file_can_have_is_not_looked_for(home: Home, name: str) -> None:
    with pytest.raises(NotFound if len(name) < 100 else (NotFound, InvalidInput)):
        load(home).get(name)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('name = "x"\n[scopes]\ntools = ["web.everything"]\n', ":3: scopes.tools", "unknown scope 'web.everything'"),
        ('name = "x"\n[scopes]\ntools = ["tool:"]\n', ":3: scopes.tools", "unknown scope"),
        ('name = "x"\n[scopes]\nwrites = ["canonical"]\n', ":3: scopes.writes", "unknown kind of write 'canonical'"),
        ('name = "x"\n[scopes]\nmemory = ["mine"]\n', ":3: scopes.memory", "unknown memory tier 'mine'"),
        ('name = "x"\nautonomous = "yes"\n', ":2: autonomous", "valid boolean"),
        ('name = "x"\noutside = "allow"\n', ":2: outside", "'ask' or 'hide'"),
        ('name = "x"\n[limits]\nseconds = 0\n', ":3: limits.seconds", "greater than or equal to 1"),
        ('name = "x"\n[limits]\ntokens = 1.5\n', ":3: limits.tokens", "valid integer"),
        ('name = "../x"\n', ":1: name", "should be a letter, then up to 63 of a-z0-9-"),
        ('name = "x\\n"\n', ":1: name", "should be a letter, then up to 63 of a-z0-9-"),
        ('\nname = "y"\n', ":2: name", "differ"),
        ('description = "no name"\n', ":1: name", "required key is missing"),
        ("name = \n", "", "not valid TOML"),
        ('name = "x"\nname = "x"\n', "", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_by_file_line_and_key(home: Home, text: str, where: str, what: str) -> None:
    path = write(home, "x", text)
    (finding,) = lint(path)
    assert finding.level == "error"
    assert finding.where.startswith(f"{path}{where}")
    assert what in finding.what
    with pytest.raises(InvalidInput):
        load(home).get("x")


def test_a_link_a_pipe_and_a_missing_file_are_refused(home: Home) -> None:
    link, pipe = home.categories / "link.toml", home.categories / "pipe.toml"
    link.symlink_to(SHIPPED / "conversation.toml")
    os.mkfifo(pipe)
    for path in (link, pipe):
        assert [finding.level for finding in lint(path)] == ["error"]
    with pytest.raises(NotFound):
        lint(home.categories / "none.toml")
    assert {entry.name for entry in load(home).all() if entry.problem} == {"link", "pipe"}


def test_every_mistake_is_named_not_only_the_first(home: Home) -> None:
    path = write(
        home, "x", 'name = "x"\nautonomus = true\n[scopes]\ntools = ["no.such", "memory.read"]\nmemory = ["mine"]\n'
    )
    assert [(finding.level, finding.where.removeprefix(f"{path}:")) for finding in lint(path)] == [
        ("error", "2: autonomus"), ("error", "4: scopes.tools"), ("error", "5: scopes.memory"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('tools = ["summary.propose"]', "3: scopes.tools", "summary.propose cannot work: `writes` lacks candidate-summary"),
        ('tools = ["memory.read"]', "3: scopes.tools", "memory.read cannot work: `memory` is empty"),
        ('writes = ["candidate-page"]', "3: scopes.writes", "no tool in scope writes candidate-page"),
        ('memory = ["channel"]', "3: scopes.memory", "no tool in scope needs memory"),
        ('tools = ["workspace.read"]\nchannels = ["other"]', "4: scopes.channels", "no tool in scope needs channels"),
        ('network = ["*"]', "3: scopes.network", "no tool in scope needs network"),
        ('subagents = ["reviewer"]', "3: scopes.subagents", "no tool in scope needs subagents"),
        ('tools = ["workspace.read", "workspace.read"]', "3: scopes.tools", "workspace.read is listed twice"),
        ('tools = ["memory.read"]\nmemory = ["channel", "channel"]', "4: scopes.memory", "channel is listed twice"),
    ],
)  # fmt: skip
def test_what_can_be_loaded_may_still_make_no_sense(home: Home, text: str, where: str, what: str) -> None:
    path = write(home, "x", f'name = "x"\n[scopes]\n{text}\n')
    findings = lint(path)
    assert [(finding.level, finding.where, finding.what) for finding in findings] == [
        ("warning", f"{path}:{where}", what)
    ]
    assert load(home).get("x")


def test_scopes_of_a_foreign_graphs_tools_are_taken_as_they_are(home: Home) -> None:
    path = write(home, "x", 'name = "x"\n[scopes]\ntools = ["tool:frobnicate"]\nsubagents = ["reviewer"]\n')
    assert lint(path) == []


@pytest.mark.parametrize(
    "entry", ["https://example.org", "Example.org", "example.org:443", "example.org/x", "*.org", "me@example.org"]
)
def test_a_network_entry_that_matches_no_address_is_named(home: Home, entry: str) -> None:
    path = write(home, "x", f'name = "x"\n[scopes]\nnetwork = ["{entry}", "example.org"]\n')
    said = [finding.what for finding in lint(path)]
    assert any(what.startswith(f"{entry!r} matches nothing") for what in said)
    assert not any(what.startswith("'example.org'") for what in said)


def test_any_host_beside_others_says_nothing_more(home: Home) -> None:
    path = write(home, "x", 'name = "x"\n[scopes]\nnetwork = ["*", "example.org"]\n')
    assert "the other hosts have no effect" in "".join(finding.what for finding in lint(path))


def test_hiding_where_everything_is_in_scope_hides_nothing(home: Home) -> None:
    whole = (SHIPPED / "conversation.toml").read_text()
    tools = ", ".join(f'"{scope}"' for scope in SCOPES)
    before, _, after = whole.partition("tools = [")
    text = f"{before}tools = [{tools}]{after.partition(']')[2]}".replace('outside = "ask"', 'outside = "hide"')
    path = write(home, "conversation", text)
    assert any(
        finding.where.endswith(": outside") and "every tool is in scope" in finding.what for finding in lint(path)
    )


def test_silent_yet_not_autonomous_is_a_contradiction(home: Home) -> None:
    path = write(home, "x", 'name = "x"\nsilent = true\n')
    (finding,) = lint(path)
    assert finding.where == f"{path}:2: silent"
    assert "wait for the author" in finding.what


def test_the_example_of_the_documents_drops_no_category_that_may_be_autonomous() -> None:
    page = (Path(__file__).parents[4] / "docs" / "categories.md").read_text()
    (shown,) = re.findall(r"^    autonomous_allowed = (\[.*\])$", page, re.MULTILINE)
    assert set(Settings().categories.autonomous_allowed) < set(json.loads(shown))
