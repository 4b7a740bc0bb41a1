"""A database that several runners share, with the runtime's tables in it."""

from collections.abc import Iterator

import pytest

from tests.integration.cluster.shared import Cluster
from tests.support.postgres import Server


@pytest.fixture
def cluster(postgres_server: Server | None) -> Iterator[Cluster]:
    if postgres_server is None:
        pytest.skip("several runners share a server's database: --database postgres")
    url = postgres_server.create()
    made = Cluster(url)
    yield made
    made.close()
    postgres_server.drop(url)
