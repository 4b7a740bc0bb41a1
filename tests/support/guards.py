"""Removing guards, to show that an attack succeeds without them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest


def take_out(guards: Mapping[str, Any], patch: pytest.MonkeyPatch) -> None:
    """Replace each guard, named by its path: module, class if any, name."""
    for path, instead in guards.items():
        owner, name = _found(path)
        assert getattr(owner, name) is not instead, path
        patch.setattr(owner, name, instead)


def _found(path: str) -> tuple[Any, str]:
    """Return the module or class that a path leads to, and the name in it."""
    *parts, name = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            owner: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            owner = getattr(owner, part)
        return owner, name
    raise AssertionError(path)
