"""Changes to the pages for the site. MkDocs calls `on_page_markdown` for each page."""

import re
import tomllib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_HOOK = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]["custom"]
_LINK = re.compile(r"\]\(((?!https?://|#)[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_given: Any) -> str:
    """Replace links to files outside of `docs/`, which the site does not have, by links to the repository."""
    folder = Path(page.file.abs_src_path).parent

    def outside(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        if path.is_relative_to(_ROOT / "docs"):
            return found[0]
        return f"]({_HOOK['repository']}/blob/main/{path.relative_to(_ROOT)}{found[2] or ''})"

    return _LINK.sub(outside, markdown)
