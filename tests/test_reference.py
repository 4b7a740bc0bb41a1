"""The reference pages are those that the program defines."""

import pytest

from tests.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_as_the_program_defines_it(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PAGES[name](), "run: make reference"


def test_there_is_no_other_reference_page() -> None:
    # tests/public_projects/test_report.py and tests/test_requirements.py compare these with what they record
    recorded = {"public-projects.md", "security-tests.md"}
    assert {path.name for path in FOLDER.iterdir()} == {*PAGES, *recorded}
