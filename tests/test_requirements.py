"""`tests/requirements.toml` and `docs/security.md` name tests that exist, and leave nothing without one or a reason."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tests.integration.cluster.guards import guards

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "tests" / "requirements.toml"
SOURCES = {"A": 22, "B": 19, "C": 17, "D": 21, "E": 26}  # the documents' rows, by group
MOST_WORDS_ON_SECURITY = 4500
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def rows() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(REQUIREMENTS.read_text())


def said(kind: str) -> list[str]:
    return [row["says"] for row in rows()[kind]]


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def test_each_promise_is_made_once_in_whole_sentences() -> None:
    promises = said("promise") + said("difference")
    assert len(promises) > 500
    assert sorted({one for one in promises if promises.count(one) > 1}) == []
    assert [one for one in promises if not one.endswith(".") or "\n" in one or len(one.split()) > 80] == []


def test_every_row_of_the_source_documents_is_there() -> None:
    named = {id_ for kind in rows().values() for row in kind for id_ in row.get("source", ())}
    assert {f"{group}{number}" for group, most in SOURCES.items() for number in range(1, most + 1)} <= named


def test_each_promise_has_a_test_and_each_test_exists() -> None:
    assert not [row["says"] for row in rows()["promise"] if not row["tests"]]
    named = [test.split("::") for kind in rows().values() for row in kind for test in row.get("tests", ())]
    assert not missing([(path, test) for path, test in named])


def test_what_the_system_does_otherwise_has_a_reason() -> None:
    assert not [row["says"] for row in rows()["difference"] if not row["instead"].endswith(".")]


def test_each_boundary_says_what_it_does_not_cover_and_names_the_tests_that_hold_it() -> None:
    _, *guards = (ROOT / "docs" / "security.md").read_text().split("\n## ")
    table = (ROOT / "docs" / "reference" / "security-tests.md").read_text()
    said = {guard.partition("\n")[0]: guard for guard in guards}
    assert len(said) > 20
    assert [name for name, text in said.items() if text.count("**Does:**") != 1] == []
    assert [name for name, text in said.items() if text.count("**Does not cover:**") != 1] == []
    held = dict(re.findall(r"^\| \[[^]]+\]\(\.\./security\.md#([\w-]+)\) \| (.+) \|$", table, re.MULTILINE))
    assert [*held] == [re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in said], "each has one row"
    assert [anchor for anchor, tests in held.items() if NAMED.sub("", tests).replace("<br>", "")] == []
    assert [fault for tests in held.values() for fault in missing(NAMED.findall(tests))] == []


def test_the_page_on_security_is_short() -> None:
    assert len((ROOT / "docs" / "security.md").read_text().split()) <= MOST_WORDS_ON_SECURITY


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
