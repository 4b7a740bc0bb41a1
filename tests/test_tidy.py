"""Rules of the house that no linter knows: sizes, names, and what a text of ours may mention."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("turnkeeper", "task_runner", "agent_runtime", "constellation")
LONGEST_FUNCTION = 60
LONGEST_MODULE = 600
NAMES_OF_NOTHING = {"utils", "common", "manager", "helper", "helpers", "misc"}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def own_modules() -> list[Path]:
    return [path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in PACKAGES]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", own_modules(), ids=name)
def test_a_module_fits_in_a_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_MODULE, "split it"


@pytest.mark.parametrize("path", own_modules(), ids=name)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {node.name: node.end_lineno - node.lineno + 1 for node in functions if node.end_lineno}
    assert not {key: lines for key, lines in long.items() if lines > LONGEST_FUNCTION}


@pytest.mark.parametrize("path", own_modules(), ids=name)
def test_a_module_is_named_for_what_it_is(path: Path) -> None:
    assert path.stem not in NAMES_OF_NOTHING


def test_the_runtime_knows_nothing_of_schedules() -> None:
    for path in own_modules():
        place = path.relative_to(ROOT)
        if place.parts[0] != "agent_runtime" or place in {
            Path("agent_runtime/tools/loops.py"),
            Path("agent_runtime/graph/tool_spec.py"),
        }:
            continue
        assert not re.search(r"\bcron|schedul", path.read_text(), re.IGNORECASE), place


def test_langgraph_stays_where_it_is_used() -> None:
    for path in own_modules():
        place = path.relative_to(ROOT)
        if place.parts[:2] in {("agent_runtime", "graph"), ("agent_runtime", "tools")}:
            continue
        imports = re.search(r"^\s*(?:from|import) lang(?:graph|chain)", path.read_text(), re.MULTILINE)
        assert not imports or place == Path("agent_runtime/daemon/__main__.py"), place


def test_decisions_are_numbered_and_say_what_they_cost() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        for part in ("Date:", "Status:", "## Context", "## Decision", "## Consequences", "## How we would notice"):
            assert part in text, f"{page.name} lacks {part}"
        assert len(text.split()) < 700, f"{page.name} is longer than a page"


def test_no_text_names_a_machine() -> None:
    suspicious = re.compile(r"/root/|/work/|/home/[a-z]+/")
    for path in tracked("*.py", "*.md", "*.toml", "*.sh", "Makefile", ".ci/run"):
        if path == Path(__file__):
            continue
        assert not suspicious.search(path.read_text()), path
