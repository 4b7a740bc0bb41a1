"""Telling apart calls of one node that are just like each other, so that each is known when the node runs again."""

import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from langgraph.config import get_config

from agent_runtime.model.approval import canonical

_IN_TASK = "__pregel_call"  # in a config: the function by which a node starts tasks of its own


class Alike:
    """Counts, for each run of a node, the calls that are just like each other."""

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
        self._outside = itertools.count()
        self._lock = threading.Lock()

    def told_apart(self, call: str) -> str:
        """Return a name for a call, which others of its node may be just like: equal whenever the node is run again.

        Args:
            call: all that is known of it.
        """
        run = configurable().get(_IN_TASK)  # made anew for each run of a node
        with self._lock:
            if run is None:  # nothing runs it again
                return f"{call}|outside {next(self._outside)}"
            alike = self._runs.setdefault(run, Counter())
            alike[call] += 1
            return f"{call}|{alike[call]}"


def made_id(at: str, name: str, args: Mapping[str, Any]) -> str:
    """Return an id for a call that has none: equal whenever its node is run again."""
    return "direct-" + hashlib.sha256(canonical([at, name, args]).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def place() -> str:
    """Return the checkpoint namespace of the running node, or nothing outside a graph."""
    return str(configurable().get("checkpoint_ns", ""))


def configurable() -> Mapping[str, Any]:
    """Return what the running graph was configured with, or nothing outside a graph."""
    try:
        found: Mapping[str, Any] = get_config().get("configurable", {})
    except RuntimeError:
        return {}
    return found
