"""Which build this is: the version, and the commit that it was made from."""

import subprocess
from pathlib import Path

from turnkeeper import __version__


def build() -> str:
    """Return version and commit, as `0.1.0+g1a2b3c4d5e6f`; the version alone if the commit is unknown."""
    folder = Path(__file__).parents[1]
    try:
        commit = (folder / "COMMIT").read_text("ascii").strip()
    except FileNotFoundError:
        commit = _commit_of(folder.parent)
    return f"{__version__}+g{commit}" if commit else __version__


def _commit_of(checkout: Path) -> str:
    if not (checkout / ".git").exists():
        return ""
    argv = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    except FileNotFoundError:  # there is no git
        return ""
