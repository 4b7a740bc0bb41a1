"""The tool by which agent0 asks to be restarted. Its docstring is what a model reads."""

from collections.abc import Mapping
from typing import Annotated, Any

from agent_runtime.model.tool_spec import ToolSpec
from agent_runtime.tools.call import Runtime, call_of, spec
from agent_runtime.tools.restart import SCOPE, Lifecycle


def lifecycle_tools(lifecycle: Lifecycle) -> list[ToolSpec]:
    """Return the tools that concern the runtime itself."""

    async def lifecycle_request_restart(
        notes: Annotated[str, "what your next session has to know: open work, next actions, why you restart"],
        runtime: Runtime,
    ) -> Mapping[str, Any]:
        """Ask to be restarted. It comes within a minute or so; your next turn is shown the notes."""
        return await lifecycle.request_restart(call_of(runtime), notes)

    return [spec(lifecycle_request_restart, scope=SCOPE, effect="write")]
