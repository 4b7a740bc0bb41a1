"""The commands of `turnkeeper` for turns, threads, approvals, and categories."""

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
    "categories": Later(
        "agent_runtime.cli.categories:app", "Categories: what each kind of standing work may do.", Panel.KNOW
    ),
    "interrupts": _APPROVALS._replace(panel=None),
}
SURFACE = Surface(name="agent-runtime", place=20, commands=_COMMANDS, is_core=True)
