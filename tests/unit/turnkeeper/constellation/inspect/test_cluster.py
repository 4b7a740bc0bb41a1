"""Findings of `status` and `doctor` about machines that share a database."""

from typing import Any

import pytest

from turnkeeper.constellation.inspect.cluster import of_cordons, of_nodes
from turnkeeper.storage.nodes import UNUSABLE, Cluster


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


@pytest.mark.parametrize(
    ("builds", "found"),
    [
        (("0.1.0+ga", "0.1.0+ga"), ["category loop differs", "category own differs", "config [scheduler] differs"]),
        (
            ("0.1.0+ga", "0.1.0+gb"),
            [
                "the machines run different builds: 0.1.0+ga, 0.1.0+gb",
                "category own differs",
                "config [scheduler] differs",
            ],
        ),
    ],
)
def test_between_builds_the_categories_that_they_ship_are_not_compared(
    builds: tuple[str, str], found: list[str]
) -> None:
    facts = [
        {"category loop": "1", "category own": "1", "config [scheduler]": "1"},
        {"category loop": "2", "category own": f"{UNUSABLE}a key is wrong", "config [scheduler]": "2"},
    ]
    shared = cluster("ready", "ready")
    for number, row in enumerate(shared.processes):
        row |= {"node_id": f"agent-runtime-{number}", "version": builds[number], "facts": facts[number], "offset_s": 0}
    assert [one.what.partition(";" if one.what.startswith("the") else ":")[0] for one in of_nodes(shared)] == found
