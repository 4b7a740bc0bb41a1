"""The commands about turns and threads."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_TURNS = Later("agent_runtime.cli.records.turns:app", "Runs of the agent, whatever started them.", Panel.LOOK)
_THREADS = Later(
    "agent_runtime.cli.records.turns:threads_app",
    "Threads: each is a sequence of turns that share one history.",
    Panel.LOOK,
)
SURFACE = Surface(
    name="records",
    place=20,
    commands={"turns": _TURNS, "threads": _THREADS},
    offers={"questions of a turn": "agent_runtime.cli.records.turns:questions"},
)
