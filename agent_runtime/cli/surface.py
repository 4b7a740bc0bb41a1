"""The commands of `turnkeeper` for approvals."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_APPROVALS = Later("agent_runtime.cli.approvals:app", "Approvals: calls and questions that wait for you.", Panel.TALK)
_COMMANDS = {
    "approvals": _APPROVALS,
    "interrupts": _APPROVALS._replace(panel=None),
}
SURFACE = Surface(name="agent-runtime", place=20, commands=_COMMANDS, is_core=True)
