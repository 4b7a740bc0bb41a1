"""Which agents the runtime hosts. Every other agent lives in a terminal, and reads its inbox there."""

from importlib import import_module
from typing import TYPE_CHECKING

from turnkeeper.config.home import Home

if TYPE_CHECKING:
    from turnkeeper.config.settings import Settings

FIRST_AGENT = "agent0"
NOT_AGENTS = frozenset({"author", "task-runner", "agentloop"})  # they send, and have no inbox


def hosted(settings: "Settings") -> list[str]:
    """Return the names of the agents that the settings ask for: `agent0` always, its workers after it."""
    workers = settings.agents[FIRST_AGENT].workers if FIRST_AGENT in settings.agents else 0
    return [FIRST_AGENT, *(f"agent{number}" for number in range(1, workers + 1))]


def hosted_on(home: Home) -> list[str]:
    """Return the names of the agents that a home's settings ask for. Raises InvalidInput."""
    # Settings bring pydantic, which takes longer to import than a command to run: load them only where they are read.
    settings = import_module("turnkeeper.config.settings")
    return hosted(settings.staffed(settings.load_settings(home), home))
