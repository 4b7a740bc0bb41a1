"""`docs/requirements.md` and `docs/security.md` name tests that exist, and leave nothing without one or a reason."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.integration.cluster.guards import Guard, guards

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "requirements.md"
ROW = re.compile(r"\b[A-E]\d{1,2}\b")
SOURCES = {"A": 22, "B": 19, "C": 17, "D": 21, "E": 26}  # the documents' rows, by group
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str]]:
    cells = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [(row[0], row[1]) for row in cells if row[0] not in {"requirement", "---"}]


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_page_has_rows() -> None:
    assert len(rows()) > 30
    assert len({requirement for requirement, _ in rows()}) == len(rows()), "each is said once"


def test_every_row_of_the_source_documents_is_there() -> None:
    named = {id_ for requirement, _ in rows() for id_ in ROW.findall(requirement)}
    assert {f"{group}{number}" for group, most in SOURCES.items() for number in range(1, most + 1)} <= named


@pytest.mark.parametrize(("requirement", "shown_by"), rows())
def test_a_requirement_names_a_test_that_exists_or_says_why_not(requirement: str, shown_by: str) -> None:
    named = NAMED.findall(shown_by)
    assert named or shown_by.startswith("Otherwise: "), requirement
    assert_exist(named)


def sections() -> list[str]:
    return (ROOT / "docs" / "security.md").read_text().split("\n## ")[2:]  # after "Who is trusted"


@pytest.mark.parametrize("section", sections(), ids=lambda text: text.partition("\n")[0])
def test_a_boundary_names_the_tests_that_hold_it(section: str) -> None:
    named = NAMED.findall(section)
    assert named
    assert_exist(named)


@pytest.mark.parametrize("guard", list(guards()), ids=lambda guard: guard.name)
def test_a_guard_of_a_shared_store_is_where_the_page_says_and_names_its_tests(guard: Guard) -> None:
    assert len(guard.found((ROOT / guard.path).read_text())) == 1
    assert_exist([(path, name.partition("[")[0]) for path, name in (test.split("::") for test in guard.tests)])


def assert_exist(named: list[tuple[str, str]]) -> None:
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert name.startswith("test_"), name
        assert name in names_in(ROOT / path), f"{path} has no {name}"
