"""The commands of `turnkeeper` for turns, threads and approvals."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_APPROVALS = Later("agent_runtime.cli.approvals:app", "Approvals: what waits for your decision.", Panel.TALK)
_COMMANDS = {
    "approvals": _APPROVALS,
    "turns": Later("agent_runtime.cli.turns:app", "Runs of the agent, whatever started them.", Panel.LOOK),
    "threads": Later(
        "agent_runtime.cli.turns:threads_app",
        "Threads: each is a sequence of turns that share one history.",
        Panel.LOOK,
    ),
    "interrupts": _APPROVALS._replace(panel=None),
}
SURFACE = Surface(name="agent-runtime", place=20, commands=_COMMANDS, is_core=True)
