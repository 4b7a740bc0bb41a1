"""What does not run on PostgreSQL is listed, by folder, with the reason: `tests/support/databases.py`."""

from pathlib import Path

import pytest

from tests.support.databases import MODULES, SQLITE_ALONE, Module, entry_of

ROOT = Path(__file__).parents[1]


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> dict[str, Module]:
    return dict(request.config.stash[MODULES])


def test_each_module_runs_on_both_databases_or_is_listed_with_the_reason(collected: dict[str, Module]) -> None:
    assert [name for name, found in collected.items() if not found.runs and not entry_of(name)] == []


def test_what_could_run_on_both_is_left_out_only_by_its_own_name(collected: dict[str, Module]) -> None:
    could = {name for name, found in collected.items() if found.could}
    assert {name: entry_of(name) for name in could if entry_of(name) not in {"", name}} == {}


def test_the_list_names_nothing_that_is_not_there() -> None:
    there = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [entry for entry in SQLITE_ALONE if not any(entry_of(path) == entry for path in there)] == []
