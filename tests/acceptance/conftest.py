"""A constellation for each test, stopped at the end whatever happened."""

from collections.abc import Iterator

import pytest

from tests.support.constellation import Constellation
from turnkeeper.config.home import Home


@pytest.fixture
def stopped(home: Home) -> Iterator[Constellation]:
    """An initialised home with nothing running yet."""
    made = Constellation(home)
    made.command("turnkeeper", "init")
    yield made
    made.stop()


@pytest.fixture
def constellation(stopped: Constellation) -> Constellation:
    """Both daemons, running."""
    stopped.start()
    return stopped
