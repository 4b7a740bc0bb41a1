"""The bench on which these tests run a runtime."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.runtime.harness import Bench
from tests.support.postgres import Places
from turnkeeper.config.home import Home


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
