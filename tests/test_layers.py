"""Imports run one way: import-linter finds an upward import wherever one is planted."""

from pathlib import Path

import pytest

from tests.support import planted_imports
from tests.support.planted_imports import Plant, plants

LAYERS = planted_imports.containers()


def test_every_package_has_layers() -> None:
    assert {"", "task_runner", "agent_runtime", "turnkeeper.constellation", "turnkeeper"} <= LAYERS.keys()


def spread(container: str, count: int = 4) -> list[Plant]:
    """Return some of a container's forbidden imports, from the first to the last."""
    found = list(plants(container, LAYERS[container]))
    assert found, container
    return [found[place * (len(found) - 1) // (count - 1)] for place in range(count)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy in which every container has several forbidden imports."""
    folder = planted_imports.copy(tmp_path_factory.mktemp("planted"))
    for planted in (planted for container in LAYERS for planted in spread(container)):
        planted_imports.plant(folder, planted)
    code, said = planted_imports.lint(folder)
    assert code == 1
    return said


@pytest.mark.parametrize("container", LAYERS)
def test_upward_imports_are_found(container: str, report: str) -> None:
    missed = [planted for planted in spread(container) if f"{planted.importer} -> {planted.imported}" not in report]
    assert not missed


def test_a_single_upward_import_makes_the_check_fail(tmp_path: Path) -> None:
    folder = planted_imports.copy(tmp_path)
    assert planted_imports.lint(folder)[0] == 0
    planted_imports.plant(folder, spread("task_runner", 3)[1])
    assert planted_imports.lint(folder)[0] == 1
