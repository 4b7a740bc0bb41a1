"""Looking after a home: back it up, restore, erase, move or migrate it, forget a machine."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_COMMANDS = {
    "backup": Later(
        "turnkeeper.constellation.upkeep.backup_commands:backup",
        "Copy the home into a new directory, also while the daemons run: stores, envelopes, settings, keys; no logs.",
        Panel.HOME,
    ),
    "restore": Later(
        "turnkeeper.constellation.upkeep.backup_commands:restore", "Restore a backup as the home.", Panel.HOME
    ),
    "erase": Later(
        "turnkeeper.constellation.upkeep.erase_commands:erase",
        "Overwrite a person's texts wherever the home keeps them; the history still verifies.",
        Panel.HOME,
    ),
    "move": Later(
        "turnkeeper.constellation.upkeep.move:move",
        "Move the home to another directory, also on another disk: stop it, move it, and start it again if it ran.",
        Panel.HOME,
    ),
    "migrate": Later(
        "turnkeeper.constellation.upkeep.migrate:migrate",
        "Move what the home's files hold into a PostgreSQL database that several machines may share.",
        Panel.HOME,
    ),
    "forget": Later(
        "turnkeeper.constellation.upkeep.forget:forget",
        "Strike a machine that will not come back off the list of those that share a database.",
        Panel.HOME,
    ),
}
SURFACE = Surface(name="upkeep", place=32, commands=_COMMANDS)
