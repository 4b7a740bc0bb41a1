"""`turnkeeper categories grant` changes two files as an author would, and nothing else in them."""

import tomllib

import pytest

from agent_runtime.cli import app
from agent_runtime.permissions.categories import Categories
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.toml_file import with_items
from turnkeeper.console import run
from turnkeeper.errors import EXIT_CONFLICT

FILE = """\
# What a task of this project may do.
name = "garden"
autonomous = false  # its first call waits for you

[scopes]
tools = [
    # "tool:open_valve",
    # "tool:read_beds",
]
# memory = ["workspace"]

[limits]
tokens = 5000
"""
CONFIG = """\
# mine
[categories]
autonomous_allowed = ["loop"]  # by me
[model]
name = "offline"
"""


@pytest.fixture
def garden(home: Home) -> Home:
    home.create()
    (home.categories / "garden.toml").write_text(FILE)
    home.config.write_text(CONFIG)
    return home


def grant(home: Home, *argv: str) -> int:
    return run(app, ["--home", str(home.root), "categories", "grant", *argv])


def test_an_unattended_fire_takes_one_command(garden: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert grant(garden, "garden", "read_beds", "memory.put", "--autonomous") == 0
    said = capsys.readouterr().out
    assert "tools: tool:read_beds, memory.put; memory: workspace; autonomous = true" in said
    assert "autonomous_allowed names garden" in said
    category = Categories(garden, load_settings(garden)).get("garden")
    assert (category.autonomous, category.tokens) == (True, 5000)
    assert (category.tools, category.memory) == ({"tool:read_beds", "memory.put"}, {"workspace"})
    text = (garden.categories / "garden.toml").read_text()
    assert '# "tool:open_valve",' in text, "what is not granted stays to be read"
    assert set(FILE.splitlines()) - set(text.splitlines()) == {
        "autonomous = false  # its first call waits for you",
        '    # "tool:read_beds",',
        '# memory = ["workspace"]',
    }
    assert garden.config.read_text() == CONFIG.replace('["loop"]', '["loop", "garden"]')


def test_tools_alone_leave_fires_waiting_and_the_command_says_how_to_change_that(
    garden: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    how = "turnkeeper categories grant garden --autonomous"
    assert grant(garden, "garden", "read_beds") == 0
    assert how in capsys.readouterr().err
    assert grant(garden, "garden", "--autonomous") == 0
    assert grant(garden, "garden", "open_valve") == 0
    assert how not in capsys.readouterr().err


def test_a_second_time_changes_nothing(garden: Home, capsys: pytest.CaptureFixture[str]) -> None:
    files = (garden.categories / "garden.toml", garden.config)
    assert grant(garden, "garden", "read_beds", "--autonomous") == 0
    before = [path.read_bytes() for path in files]
    assert grant(garden, "garden", "tool:read_beds", "--autonomous") == 0
    assert [path.read_bytes() for path in files] == before
    assert "all of this is already granted" in capsys.readouterr().err


def test_a_second_graph_is_added_beside_the_default_one(garden: Home, capsys: pytest.CaptureFixture[str]) -> None:
    garden.config.write_text(f'{CONFIG}[agents.agent0]\ngraph = "a.py:graph"\n[graphs]\nsurvey = "s.py:graph"\n')
    assert grant(garden, "garden", "read_beds", "--graph", "survey") == 0
    assert "graphs: survey" in capsys.readouterr().out
    category = Categories(garden, load_settings(garden)).get("garden")
    assert (category.tools, category.graphs) == ({"tool:read_beds"}, {"", "survey"})
    assert grant(garden, "garden", "--graph", "survey") == 0
    assert "all of this is already granted" in capsys.readouterr().err
    before = (garden.categories / "garden.toml").read_bytes()
    assert grant(garden, "garden", "--graph", "survay") == EXIT_CONFLICT
    assert "did you mean survey?" in capsys.readouterr().err
    assert (garden.categories / "garden.toml").read_bytes() == before


def test_a_shipped_category_is_overridden_by_a_copy(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.create()
    assert grant(home, "catch-up-summary", "page.propose", "channel:other") == 0
    assert "a copy of the shipped category, which it overrides" in capsys.readouterr().out
    category = Categories(home, load_settings(home)).get("catch-up-summary")
    assert category.autonomous
    assert {"summary.propose", "page.propose"} <= category.tools
    assert (category.writes, category.channels) == ({"candidate-summary", "candidate-page"}, {"other"})
    assert not home.config.exists(), "it is allowed there already"


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("garden",), 2, "nothing to grant"),
        (("gardn", "read_beds"), 3, "no category 'gardn'"),
        (("garden", "web.fech"), 2, "no scope 'web.fech'; did you mean web.fetch?"),
        (("garden", "memory:acount"), 2, "unknown memory tier 'acount'"),
        (("garden", "two words"), 2, "no scope 'two words'"),
    ],
)
def test_a_mistake_changes_nothing(
    garden: Home, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], code: int, said: str
) -> None:
    assert grant(garden, *argv) == code
    assert said in capsys.readouterr().err
    assert ((garden.categories / "garden.toml").read_text(), garden.config.read_text()) == (FILE, CONFIG)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("[scopes]\ntools = []\n", ["new"]),
        ('[scopes]\ntools = ["a"]\n[limits]\nx = 1\n', ["a", "new"]),
        ('[scopes]\ntools = [\n  "a",  # why ]\n  "b"  # this\n]\nwrites = []\n', ["a", "b", "new"]),
        ('[scopes]\ntools = [ "a",\n "b" ]\n', ["a", "b", "new"]),
        ("[scopes]\ntools = [\"a]\", '#b',] # c\n", ["a]", "#b", "new"]),
        ('[scopes]\nmemory = ["c"]\n', ["before", "new"]),
        ('name = "x"\n', ["before", "new"]),
    ],
)
def test_a_list_takes_more_however_it_is_written(text: str, holds: list[str]) -> None:
    found = tomllib.loads(with_items(text, "scopes", "tools", ["new"], ["before"]))
    assert found["scopes"]["tools"] == holds
    assert found | {"scopes": {}} == tomllib.loads(text) | {"scopes": {}}
