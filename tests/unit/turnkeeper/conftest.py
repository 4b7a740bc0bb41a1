"""What tests of the leaf share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an agent's folder, empty."""
    (tmp_path / "agent0").mkdir(mode=0o700)
    return tmp_path / "agent0"
