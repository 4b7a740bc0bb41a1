"""What `status` and `doctor` find about machines that share a database."""

from typing import Any

import pytest

from turnkeeper.constellation.inspect.cluster import of_cordons
from turnkeeper.storage.nodes import Cluster


def cluster(*states: str) -> Cluster:
    rows: list[dict[str, Any]] = [
        {"name": f"m{at}", "host": "h", "role": "agent-runtime", "state": state, "beat_at": ""}
        for at, state in enumerate(states)
    ]
    return Cluster(processes=rows, queue={}, inboxes=[], server={}, revisions={})


@pytest.mark.parametrize(
    ("states", "found"), [(["cordoned", "stale"], 1), (["cordoned", "ready"], 0), (["ready"], 0), (["draining"], 0)]
)
def test_it_is_a_finding_if_every_machine_is_cordoned(states: list[str], found: int) -> None:
    assert len(list(of_cordons(cluster(*states)))) == found
