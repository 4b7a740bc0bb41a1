"""Fixtures that every kind of test uses."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import ManualClock
from turnkeeper import console
from turnkeeper.config.home import Home

os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")  # as the daemon does, before anything imports LangGraph


@pytest.fixture
def home() -> Iterator[Home]:
    """A made home, at a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    made = Home(root=folder / "home")
    made.create()
    yield made
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def no_options_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one command line said of its home and times holds for no later one in the same process."""
    monkeypatch.setattr(console, "_common", console._Common())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
