"""Recorded answers of LangGraph's development server: the same calls are answered here, but for the listed differences."""

import asyncio
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden import calls
from tests.langgraph_suite.__main__ import SDK, grant
from tests.support.langgraph import Lg
from tests.support.machines import constellation_on, new_home
from tests.support.web import configure, serving

pytestmark = pytest.mark.process
LISTED = Path(calls.__file__).parent / "differences.toml"
GRAPHS = {name: f"{Path(calls.__file__).parent / 'graphs.py'}:{name}" for name in ("agent", "tools_agent")}


@pytest.fixture(scope="module")
def lg() -> Iterator[Lg]:
    with new_home() as home, constellation_on(None, home) as constellation:
        grant(home, SDK)
        (home.root / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": GRAPHS}))
        graph = '[agents.agent0]\ngraph = "langgraph.json:agent"\n'
        configure(home, graph)
        constellation.start()
        with serving(home, graph) as web:
            yield Lg(constellation, web)


@pytest.fixture(scope="module")
def found(lg: Lg) -> list[calls.Difference]:
    ours = asyncio.run(calls.record(lg.url, lg.keys["decide"]))
    return calls.differences(json.loads(calls.RECORDED.read_text()), ours)


@pytest.fixture(scope="module")
def listed() -> list[tuple[str, str]]:
    rows = tomllib.loads(LISTED.read_text())["difference"]
    return [(row["kind"], path) for row in rows for path in row["paths"]]


def test_each_difference_from_the_recorded_answers_is_listed(
    found: list[calls.Difference], listed: list[tuple[str, str]]
) -> None:
    assert [one for one in found if not any(calls.covers(*row, one) for row in listed)] == []


def test_each_listed_difference_still_occurs(found: list[calls.Difference], listed: list[tuple[str, str]]) -> None:
    assert [row for row in listed if not any(calls.covers(*row, one) for one in found)] == []


def test_differences_are_told_by_kind_and_path() -> None:
    theirs = calls.facts({"a": 1, "b": [{"c": "x"}, {"c": "y"}], "at": "2026-01-01T00:00:00Z", "d": {}})
    ours = calls.facts({"a": 2, "b": [{"c": "y"}, {"c": "x"}], "at": "2027-01-01T00:00:00Z", "e": None})
    assert calls.differences(theirs, ours) == [("missing", "d", ""), ("added", "e", ""), ("value", "a", "[1] here [2]")]
    assert calls.covers("missing", "*", calls.Difference("missing", "d"))
    assert not calls.covers("added", "*", calls.Difference("missing", "d"))
