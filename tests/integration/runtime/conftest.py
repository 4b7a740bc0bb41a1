"""The bench on which these tests run a runtime."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.integration.runtime.harness import Bench
from turnkeeper.config.home import Home


@pytest_asyncio.fixture
async def bench(home: Home) -> AsyncIterator[Bench]:
    made = Bench(home)
    await made.open()
    yield made
    await made.close()
