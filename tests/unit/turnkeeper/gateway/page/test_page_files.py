"""What the page brings along that others wrote."""

import hashlib
import re

from turnkeeper.gateway.page.shell import FOLDER

# dist/htmx.min.js of htmx.org 4.0.1, as npm has it.
HTMX = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"


def test_the_vendored_script_is_what_its_makers_published() -> None:
    assert hashlib.sha256((FOLDER / "static" / "htmx.min.js").read_bytes()).hexdigest() == HTMX
    assert "Zero-Clause BSD" in (FOLDER / "static" / "htmx.LICENSE").read_text()


def test_no_page_has_a_script_or_a_style_of_its_own() -> None:
    for template in (FOLDER / "templates").rglob("*.html"):
        text = template.read_text()
        assert " style=" not in text
        assert "<style" not in text
        assert not re.search(r"\son[a-z]+=", text), "a handler"
        assert text.count("<script") == text.count('<script src="/ui/static/')
