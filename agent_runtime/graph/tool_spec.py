"""What the guard must know of a tool beside the tool itself."""

from dataclasses import dataclass

from langchain_core.tools import BaseTool

from agent_runtime.model.values import Effect


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool, the scope that a category must grant for it, and what it does to the world.

    Attributes:
        tool: named as models see it, with underscores: `workspace_read`.
        scope: named as categories grant it, with a dot: `workspace.read`.
        effect: read, external-read or write.
    """

    tool: BaseTool
    scope: str
    effect: Effect


WAKEUP_TOOL = "schedule_loop_wakeup"
