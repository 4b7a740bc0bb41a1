"""A constellation for each test, stopped at the end whatever happened.

With `--database postgres` it is two machines that share a database: one is asked, and the other runs the turns.
"""

from collections.abc import Iterator

import pytest

from tests.support.constellation import Constellation
from tests.support.machines import constellation_on
from tests.support.postgres import Server
from turnkeeper.config.home import Home


@pytest.fixture
def stopped(home: Home, postgres_server: Server | None) -> Iterator[Constellation]:
    """An initialised home with nothing running yet."""
    with constellation_on(postgres_server, home) as made:
        yield made


@pytest.fixture
def constellation(stopped: Constellation) -> Constellation:
    """Both daemons, running."""
    stopped.start()
    return stopped
