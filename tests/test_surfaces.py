"""Surfaces: each registers itself in a light module, and lifts off: the main job works without it."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from turnkeeper.config.surfaces import commands, surfaces

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("module", surfaces())
def test_a_registration_imports_nothing_but_the_table(module: str) -> None:
    tree = ast.parse((ROOT / module.replace(".", "/") / "surface.py").read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [node.module for node in imported] == ["turnkeeper.config.surfaces"]


def test_each_command_is_added_once() -> None:
    counted = Counter(name for surface in surfaces().values() for name in surface.commands)
    assert max(counted.values()) == 1
    assert set(commands("turnkeeper")) < set(counted) == set(commands())
