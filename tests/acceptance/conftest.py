"""A constellation for each test, stopped at the end whatever happened.

With `--database postgres` it is two machines that share a database: one is asked, and the other runs the turns.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.support.constellation import Constellation
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from tests.support.web import Web, serving
from turnkeeper.config.home import Home

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with import_module("tests.support.tabs").chromium() as launched:  # an environment without Playwright runs the rest
        yield launched


@pytest.fixture(scope="module")
def unsupervised(browser: "Browser") -> Iterator[Constellation]:
    """Both daemons of a module without a supervisor: a killed one stays dead until a test starts it again."""
    del browser  # where there is none, nothing is started
    with new_home() as home, constellation_on(None, home) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def web(unsupervised: Constellation) -> Iterator[Web]:
    with serving(unsupervised.home) as made:
        yield made
