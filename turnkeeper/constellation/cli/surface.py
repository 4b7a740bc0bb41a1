"""The commands of `turnkeeper` that look after the processes and the home."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_COMMANDS = {
    "init": Later(
        "turnkeeper.constellation.install.setup:init",
        "Create the state directory, with a config.toml that explains every setting.",
        Panel.START,
    ),
    "model": Later(
        "turnkeeper.constellation.cli.commands:model",
        "Show the model, or use another: check it, write it into config.toml, and restart agent-runtime if it runs.",
        Panel.START,
    ),
    "up": Later(
        "turnkeeper.constellation.cli.commands:up",
        "Start the daemons and their supervisor in the background, and return once they answer.",
        Panel.START,
    ),
    "down": Later("turnkeeper.constellation.cli.commands:down", "Stop the supervisor and the daemons.", Panel.START),
    "restart": Later(
        "turnkeeper.constellation.cli.commands:restart",
        "Restart agent-runtime: check that it can start, stop it, start it, and hand over notes to agent0, your agent.",
        Panel.START,
    ),
    "status": Later(
        "turnkeeper.constellation.cli.commands:status",
        "Show whether the processes run, what the watchdog found, and what waits for your decision.",
        Panel.START,
    ),
    "logs": Later(
        "turnkeeper.constellation.cli.commands:logs",
        "Print the log output of the processes, each line with the name of its process.",
        Panel.START,
    ),
    "doctor": Later(
        "turnkeeper.constellation.cli.commands:doctor",
        "Check the installation, the processes and the stores, and say how to fix each problem.",
        Panel.HOME,
    ),
    "escalate": Later(
        "turnkeeper.constellation.cli.commands:escalate",
        "Send yourself an alert by the page command or the webhook of [watchdog].",
        Panel.HOME,
    ),
    "quiet": Later(
        "turnkeeper.constellation.cli.commands:suspend",
        "Suspend hang detection for a while, for example while a daemon is stopped in a debugger.",
        None,
    ),
    "config": Later("turnkeeper.constellation.cli.commands:config", "Show the settings.", Panel.HOME),
    "keys": Later("turnkeeper.constellation.cli.commands:keys", "The home's own keys.", Panel.HOME),
    "service": Later(
        "turnkeeper.constellation.install.service:service",
        "Run Turnkeeper as a service of systemd, or of launchd on macOS.",
        Panel.HOME,
    ),
    "watchdog": Later("turnkeeper.constellation.cli.commands:watchdog", "Check and repair the processes.", Panel.HOME),
}
SURFACE = Surface(name="constellation", place=30, commands=_COMMANDS, is_core=True)
