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
async def bench(home: Home, place: Path | str) -> AsyncIterator[Bench]:
    made = Bench(home, place=place)
    await made.open()
    yield made
    await made.close()
