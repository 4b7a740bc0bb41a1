"""The bench on which these tests run a runtime."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.runtime.harness import SETTINGS, Bench
from tests.support.postgres import Places
from tests.support.scripted import calls
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AgentSettings


@pytest.fixture
def place(home: Home, place_of: Places) -> Path | str:
    """Where the runtime's store is, on whichever database."""
    return place_of(home.agent_db)


@pytest_asyncio.fixture
async def bench(request: pytest.FixtureRequest, home: Home, place: Path | str) -> AsyncIterator[Bench]:
    """A runtime on files; with a server, as one of several machines that share it, unless the test is of one machine's."""
    alone = request.node.get_closest_marker("one_machine") is not None
    made = Bench(home, place=place, shared="" if alone or isinstance(place, Path) else place)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def workers() -> int:
    """How many workers the second of a pair hosts."""
    return 0


@pytest_asyncio.fixture
async def pair(home: Home, shared_url: str, workers: int) -> AsyncIterator[tuple[Bench, Bench]]:
    """Two runtimes that share a database."""
    folder = tempfile.TemporaryDirectory(prefix="tk-")
    beside = Home(root=Path(folder.name) / "home")
    beside.create()
    both = Bench(home, shared=shared_url), Bench(beside, shared=shared_url)
    both[1].settings = SETTINGS.model_copy(update={"agents": {"agent0": AgentSettings(workers=workers)}})
    for bench in both:
        bench.category("work", tools=["tool:note", "tool:block", "tool:pause"])
        bench.script["go"] = [calls(("note", {"text": "a"})), calls(("block", {}))]
        await bench.open()
    yield both
    for bench in both:
        await bench.close()
    folder.cleanup()
