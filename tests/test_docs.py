"""The documents name files, functions, pages and headings that exist, and a reader finds each page from the index."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MOST_WORDS_OF_README = 900
MOST_WORDS_FOR_USERS = 35_000  # of all pages that are not for contributors, nor written from the program
FOR_CONTRIBUTORS = {"architecture.md", "fit.md"}
LARGEST_PICTURE = 150_000  # bytes
MOST_WORDS = 600  # of the notes of a version
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "reference").glob("*.md"))
PAGES.append(ROOT / "docs" / "adr" / "README.md")
# A path of the repository in backquotes; one with a wildcard or a placeholder is a pattern, not a path.
IN_CODE = re.compile(
    r"`((?:task_runner|agent_runtime|constellation|turnkeeper|protos|tests|docs|examples|benchmarks)/[\w./-]*)"
    r"(?:::([\w.]+))?`"
)
DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
BARE = re.compile(r"(?<![\w./-])\w+\.py\b")  # a file without its folder
ANCHOR = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = {ROOT / path for path, _ in IN_CODE.findall(text)} | {page.parent / path for path in LINK.findall(text)}
    assert sorted(str(path) for path in named if not path.exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_function_that_a_page_names_is_in_its_file(page: Path) -> None:
    named = {(path, function) for path, function in IN_CODE.findall(page.read_text()) if function}
    assert sorted(f"{path}::{function}" for path, function in named if not defines(ROOT / path, function)) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_heading_that_a_page_links_to_exists(page: Path) -> None:
    linked = [(page.parent / path if path else page, anchor) for path, anchor in ANCHOR.findall(page.read_text())]
    found = [(file, anchor) for file, anchor in linked if file.suffix == ".md"]
    assert [f"{file}#{anchor}" for file, anchor in found if anchor not in anchors(file)] == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, in the form that both GitHub and MkDocs give them."""
    plain = (
        re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in HEADING.findall(FENCE.sub("", page.read_text()))
    )
    return frozenset(heading.replace(" ", "-") for heading in plain)


def test_the_pages_for_users_can_be_read_in_a_day() -> None:
    pages = [page for page in DOCS.glob("*.md") if page.name not in FOR_CONTRIBUTORS] + [ROOT / "README.md"]
    words = {name(page): len(page.read_text().split()) for page in pages}
    assert sum(words.values()) <= MOST_WORDS_FOR_USERS, sorted(words.items(), key=lambda one: -one[1])


def test_the_index_and_the_site_name_every_page() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if not page.name.startswith("0")}
    assert sorted(pages - set(LINK.findall((DOCS / "index.md").read_text())) - {"index.md"}) == []
    navigation = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert (len(navigation), set(navigation)) == (len(pages), pages)


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")], ids=name)
def test_a_page_begins_with_a_sentence_that_says_what_it_is_for(page: Path) -> None:
    title, first, *_ = page.read_text().split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"[A-Z`]", first), first
    assert first.endswith((".", ":")), first


def test_the_readme_is_short_and_its_pictures_are_small_and_ask_no_other_host() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= MOST_WORDS_OF_README
    pictures = [ROOT / path for path in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)]
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    assert all(path.stat().st_size < LARGEST_PICTURE for path in pictures)
    drawn = "".join(path.read_text() for path in pictures if path.suffix == ".svg")
    assert not re.findall(r"(?:url\(|href=|src=)[\"']?https?:", drawn)


def defines(file: Path, function: str) -> bool:
    """Return whether a file defines a function, a class, or a method of a class: `name` or `Class.method`."""
    body = definitions(file)
    for part in function.split("."):
        found = [node for node in body if isinstance(node, DEFINITION) and node.name == part]
        if not found:
            return False
        body = found[0].body
    return True


@cache
def definitions(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text()).body


def test_the_architecture_page_names_every_file_with_its_folder() -> None:
    assert BARE.findall((ROOT / "docs" / "architecture.md").read_text()) == []


def test_the_architecture_page_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.parent.name for path in ROOT.glob("[act]*_*/*/__init__.py")}
    packages |= {path.parent.name for path in ROOT.glob("turnkeeper/constellation/*/__init__.py")}
    packages |= {path.parent.name for path in ROOT.glob("turnkeeper/*/__init__.py")}
    assert len(packages) > 20
    assert sorted(package for package in packages if f"`{package}`" not in text) == []


def test_every_decision_record_is_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    for page in (ROOT / "docs" / "adr").glob("[0-9]*.md"):
        title = page.read_text().split("\n", 1)[0].partition(". ")[2]
        assert f"]({page.name}) {title}" in " ".join(index.split()), page.name


def test_the_notes_of_a_version_are_short() -> None:
    _, *versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert not {notes.splitlines()[0]: len(notes.split()) for notes in versions if len(notes.split()) > MOST_WORDS}
