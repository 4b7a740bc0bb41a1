"""The commands of `turnkeeper` that manage the processes and the home."""

from turnkeeper.config.surfaces import Later, Panel, Surface, commands_in

_QUIET = Later(
    "turnkeeper.constellation.cli.commands:suspend",
    "Suspend hang detection for a while, for example while a daemon is stopped in a debugger.",
    None,
)
_START = {
    "install.setup:init": "Create the state directory, with a config.toml that explains every setting.",
    "cli.commands:model": (
        "Show the model, or use another: check it, write it into config.toml, and restart agent-runtime if it runs."
    ),
    "cli.commands:up": "Start the daemons and their supervisor in the background, and return once they answer.",
    "cli.commands:down": "Stop the supervisor and the daemons.",
    "cli.commands:restart": (
        "Restart agent-runtime: check that it can start, stop it, start it, and hand over notes to agent0, your agent."
    ),
    "cli.commands:status": "Show whether the processes run, what is wrong or paused, and what waits for your decision.",
    "cli.commands:logs": "Print the log output of the processes, each line with the name of its process.",
}
_HOME = {
    "cli.commands:doctor": "Check the installation, the processes and the stores, and say how to fix each problem.",
    "cli.commands:escalate": "Send yourself an alert by the page command or the webhook of [watchdog].",
    "cli.commands:config": "Show the settings.",
    "cli.commands:keys": "The home's own keys.",
    "install.service:service": "Run Turnkeeper as a service of systemd, or of launchd on macOS.",
    "cli.commands:watchdog": "Check and repair the processes.",
}
_COMMANDS = commands_in("turnkeeper.constellation", {Panel.START: _START, Panel.HOME: _HOME}) | {"quiet": _QUIET}
SURFACE = Surface(name="constellation", place=30, commands=_COMMANDS, is_core=True)
