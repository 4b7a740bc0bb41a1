"""The subagents that a turn may start: what each is for, and the most that it may do; its turn narrows it."""

from collections.abc import Mapping
from types import MappingProxyType

from agent_runtime.model.values import Category

_READS = frozenset({"web.fetch", "attachment.read", "workspace.read", "workspace.search"})

SUBAGENTS: Mapping[str, Category] = MappingProxyType(
    {
        "researcher": Category(
            name="researcher",
            description="Finds and reads what its brief asks for, and reports what the sources say, each by its name.",
            autonomous=True,
            tools=_READS | {"memory.read", "memory.search"},
            memory=frozenset({"channel", "workspace"}),
            network=frozenset({"*"}),
            seconds=180,
            tool_calls=20,
            tokens=100_000,
        ),
        "reviewer": Category(
            name="reviewer",
            description="Checks each claim of a text against the sources that its brief names; says what is borne out.",
            autonomous=True,
            tools=_READS,
            network=frozenset({"*"}),
            seconds=180,
            tool_calls=20,
            tokens=100_000,
        ),
    }
)
