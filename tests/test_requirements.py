"""`docs/requirements.md` and `docs/security.md` name tests that exist, and leave nothing without one or a reason."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.integration.cluster.guards import guards

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "requirements.md"
ROW = re.compile(r"\b[A-E]\d{1,2}\b")
SOURCES = {"A": 22, "B": 19, "C": 17, "D": 21, "E": 26}  # the documents' rows, by group
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str]]:
    cells = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [(row[0], row[1]) for row in cells if row[0] not in {"requirement", "---"}]


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def test_the_page_has_rows() -> None:
    assert len(rows()) > 30
    assert len({requirement for requirement, _ in rows()}) == len(rows()), "each is said once"


def test_every_row_of_the_source_documents_is_there() -> None:
    named = {id_ for requirement, _ in rows() for id_ in ROW.findall(requirement)}
    assert {f"{group}{number}" for group, most in SOURCES.items() for number in range(1, most + 1)} <= named


def test_each_requirement_names_a_test_that_exists_or_says_why_not() -> None:
    silent = [
        need for need, shown_by in rows() if not NAMED.findall(shown_by) and not shown_by.startswith("Otherwise: ")
    ]
    assert not silent
    assert not [fault for _, shown_by in rows() for fault in missing(NAMED.findall(shown_by))]


def test_each_boundary_names_the_tests_that_hold_it() -> None:
    sections = (ROOT / "docs" / "security.md").read_text().split("\n## ")[2:]  # after "Who is trusted"
    assert not [section.partition("\n")[0] for section in sections if not NAMED.findall(section)]
    assert not [fault for section in sections for fault in missing(NAMED.findall(section))]


def test_each_guard_of_a_shared_store_is_where_the_page_says_and_names_its_tests() -> None:
    assert not [guard.name for guard in guards() if len(guard.found((ROOT / guard.path).read_text())) != 1]
    named = (test.partition("::") for guard in guards() for test in guard.tests)
    assert not missing([(path, test.partition("[")[0]) for path, _, test in named])


def missing(named: list[tuple[str, str]]) -> list[str]:
    """Return the named tests that are not in their files."""
    return [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).is_file() or test not in names_of_tests(ROOT / path)
    ]
